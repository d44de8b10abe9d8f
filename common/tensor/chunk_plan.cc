#include "common/tensor/chunk_plan.h"

#include <algorithm>
#include <limits>

#include "common/base/random.h"

namespace centroid {
namespace {

constexpr std::uint64_t kMinChunkBytes = 64;
constexpr std::uint64_t kMaxChunks = std::numeric_limits<std::uint32_t>::max();

Error bad(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

}  // namespace

Range part_of(std::uint64_t total, std::uint64_t parts, std::uint64_t index) {
  CENTROID_CHECK(parts > 0 && index < parts);
  const std::uint64_t each = total / parts;
  const std::uint64_t larger = total % parts;
  Range range;
  range.begin = index * each + std::min(index, larger);
  range.end = range.begin + each + (index < larger ? 1 : 0);
  return range;
}

Result<ChunkPlan> ChunkPlan::make(Manifest manifest, std::uint64_t max_chunk_bytes) {
  CENTROID_TRY(validate(manifest));
  if (max_chunk_bytes < kMinChunkBytes)
    return bad("max_chunk_bytes: " + std::to_string(max_chunk_bytes) + " is below " +
               std::to_string(kMinChunkBytes));
  const std::uint64_t limit = max_chunk_bytes / sizeof(float);

  // Count before cutting: a refused plan allocates nothing.
  std::uint64_t count = 0;
  for (const TensorInfo& tensor : manifest) {
    if (tensor.dtype != DType::kF32)
      return bad("tensor \"" + tensor.name + "\": dtype " + std::string(to_string(tensor.dtype)) +
                 " cannot be cut into chunks, only f32");
    const std::uint64_t elements = tensor.elements();
    count += elements / limit + (elements % limit != 0 ? 1 : 0);  // each summand < 2^60
    if (count > kMaxChunks)
      return bad("max_chunk_bytes: " + std::to_string(max_chunk_bytes) +
                 " cuts the tensors into more than 2^32-1 chunks");
  }

  ChunkPlan plan;
  plan.max_chunk_bytes_ = max_chunk_bytes;
  plan.hash_ = manifest_hash(manifest);
  plan.chunks_.reserve(count);
  plan.positions_.reserve(manifest.size());
  plan.first_chunk_.reserve(manifest.size() + 1);
  for (std::uint32_t t = 0; t < manifest.size(); ++t) {
    const std::uint64_t elements = manifest[t].elements();
    const std::uint64_t parts = elements / limit + (elements % limit != 0 ? 1 : 0);
    plan.positions_.push_back(plan.total_elements_);
    plan.first_chunk_.push_back(static_cast<std::uint32_t>(plan.chunks_.size()));
    for (std::uint64_t p = 0; p < parts; ++p) {
      const Range range = part_of(elements, parts, p);
      Chunk chunk;
      chunk.id = ChunkId(static_cast<std::uint32_t>(plan.chunks_.size()));
      chunk.tensor = TensorId(t);
      chunk.offset = range.begin;
      chunk.elements = range.size();
      chunk.position = plan.total_elements_ + range.begin;
      plan.max_chunk_elements_ = std::max(plan.max_chunk_elements_, chunk.elements);
      plan.chunks_.push_back(chunk);
    }
    plan.hash_ = mix64(plan.hash_, parts);  // with the shape, the number of parts is the cut
    plan.total_elements_ += elements;
  }
  plan.first_chunk_.push_back(static_cast<std::uint32_t>(plan.chunks_.size()));
  plan.has_buffers_ = std::ranges::any_of(manifest, centroid::is_buffer);
  plan.manifest_ = std::move(manifest);
  return plan;
}

std::span<const Chunk> ChunkPlan::chunks_of(TensorId tensor) const {
  const std::uint32_t first = first_chunk_[tensor.value];
  return std::span<const Chunk>(chunks_).subspan(first, first_chunk_[tensor.value + 1] - first);
}

}  // namespace centroid
