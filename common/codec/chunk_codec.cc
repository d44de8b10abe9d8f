#include "common/codec/chunk_codec.h"

#include <algorithm>

#include "common/codec/plain.h"
#include "common/codec/spec.h"

namespace centroid {
namespace {

const Codec& buffer_codec() {
  static const std::unique_ptr<const Codec> kCodec = make_plain_codec(CodecSpec{});
  return *kCodec;
}

}  // namespace

const Codec& codec_of(const Codec& codec, const ChunkPlan& plan, const Chunk& chunk) {
  return plan.is_buffer(chunk) ? buffer_codec() : codec;
}

std::size_t largest_payload(const Codec& codec, const ChunkPlan& plan) {
  const std::size_t most = codec.max_bytes(plan.max_chunk_elements());
  return plan.has_buffers() ? std::max(most, buffer_codec().max_bytes(plan.max_chunk_elements()))
                            : most;
}

}  // namespace centroid
