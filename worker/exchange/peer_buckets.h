#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/chunk_plan.h"

namespace centroid::worker {

/// Consecutive tensors that travel together.
struct Bucket {
  std::uint64_t begin = 0, end = 0;  ///< elements of all tensors laid end to end
  std::vector<TensorId> tensors;     ///< the last one first
};

/// From the last tensor to the first, as backward makes their gradients: each bucket ends with the
/// tensor that makes it bucket_bytes long.
inline std::vector<Bucket> make_buckets(const ChunkPlan& plan, std::uint64_t bucket_bytes) {
  std::vector<Bucket> buckets;
  const Manifest& manifest = plan.manifest();
  Bucket bucket;
  for (std::size_t i = manifest.size(); i-- > 0;) {
    const TensorId tensor(static_cast<std::uint32_t>(i));
    const std::uint64_t begin = plan.position_of(tensor), elements = manifest[i].elements();
    if (bucket.tensors.empty()) bucket.end = begin + elements;
    bucket.begin = begin;
    bucket.tensors.push_back(tensor);
    if ((bucket.end - bucket.begin) * sizeof(float) < bucket_bytes && i > 0) continue;
    buckets.push_back(std::move(bucket));
    bucket = {};
  }
  return buckets;
}

}  // namespace centroid::worker
