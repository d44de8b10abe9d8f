#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/tensor/buffer.h"

namespace centroid::parallel {

/// Memory of units, of their gradients and of the means. What is given back is used again: fresh
/// pages cost more than to fill them.
///
/// memory  in use and spare together, at most what was in use at once: spares never raise the peak
/// thread  one at a time
class UnitBuffers {
 public:
  /// Memory of so many float32, uninitialised; empty for 0.
  Buffer take(std::uint64_t elements);
  void give_back(Buffer buffer);
  /// Free what is spare.
  void drop_spares();
  // Float32 in memory:
  std::uint64_t used() const { return used_; }
  std::uint64_t spare() const { return spare_; }

 private:
  void trim();

  std::vector<Buffer> spares_;  ///< in the order in which they were given back
  std::uint64_t used_ = 0, spare_ = 0, most_ = 0;
};

/// Parts of units, several of them in the memory of one unit, so that the spares of units serve for
/// them too.
///
/// thread  one at a time
class UnitParts {
 public:
  /// `buffers` outlives it.
  explicit UnitParts(UnitBuffers& buffers) : buffers_(buffers) {}
  /// Room for so many float32; empty: there is none, `add` a unit's memory.
  std::span<float> find(std::uint64_t elements);
  /// The memory of a unit, whose first `used` elements are in use. Returns these.
  std::span<float> add(Buffer unit, std::uint64_t used);
  /// Give all memory back; spans end.
  void clear();

 private:
  struct Slab {
    Buffer memory;
    std::uint64_t used = 0;
  };
  UnitBuffers& buffers_;
  std::vector<Slab> slabs_;
};

}  // namespace centroid::parallel
