#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/fragments.h"

namespace centroid::worker {

/// Consecutive tensors that travel together.
struct Bucket {
  std::uint64_t begin = 0, end = 0;  ///< elements of all tensors laid end to end
  std::vector<TensorId> tensors;     ///< the last one first
};

/// From the last tensor to the first, as backward makes their gradients: each bucket ends with the
/// tensor that makes it bucket_bytes long. Of this fragment's tensors.
inline std::vector<Bucket> make_buckets(const ChunkPlan& plan, std::uint64_t bucket_bytes,
                                        const FragmentPlan& fragments, std::uint32_t fragment) {
  std::vector<Bucket> buckets;
  const Manifest& manifest = plan.manifest();
  Bucket bucket;
  for (std::size_t i = manifest.size(); i-- > 0;) {
    const TensorId tensor(static_cast<std::uint32_t>(i));
    const bool is_in = fragments.number_of(tensor) == fragment;
    if (is_in) {
      const std::uint64_t begin = plan.position_of(tensor), elements = manifest[i].elements();
      if (bucket.tensors.empty()) bucket.end = begin + elements;
      bucket.begin = begin;
      bucket.tensors.push_back(tensor);
    }
    const bool is_full = (bucket.end - bucket.begin) * sizeof(float) >= bucket_bytes;
    if (bucket.tensors.empty() || (is_in && !is_full && i > 0)) continue;
    buckets.push_back(std::move(bucket));
    bucket = {};
  }
  return buckets;
}

}  // namespace centroid::worker
