#pragma once

#include <algorithm>

#include "transport/collective/schedule.h"

namespace centroid::collective {

/// Cuts ranges of elements into segments of complete elements, at most segment_bytes each.
class Segments {
 public:
  Segments(const Shape& shape, Range elements)
      : element_bytes_(shape.element_bytes),
        begin_(elements.begin * shape.element_bytes),
        bytes_(elements.size() * shape.element_bytes),
        step_(std::max<std::uint64_t>(1, shape.segment_bytes / shape.element_bytes) *
              shape.element_bytes) {}

  std::uint32_t count() const { return static_cast<std::uint32_t>((bytes_ + step_ - 1) / step_); }
  Region at(std::uint32_t segment, Place place) const {
    Region region;
    region.place = place;
    region.offset = begin_ + segment * step_;
    region.bytes = std::min(step_, bytes_ - segment * step_);
    return region;
  }

 private:
  std::uint64_t element_bytes_, begin_, bytes_, step_;
};

inline Region region_of(const Shape& shape, Range elements, Place place) {
  Region region;
  region.place = place;
  region.offset = elements.begin * shape.element_bytes;
  region.bytes = elements.size() * shape.element_bytes;
  return region;
}

/// Index of the receive added last.
inline std::int32_t last_receive(const Schedule& schedule) {
  return static_cast<std::int32_t>(schedule.receives.size()) - 1;
}

}  // namespace centroid::collective
