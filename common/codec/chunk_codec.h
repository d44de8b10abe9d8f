#pragma once

#include <cstddef>

#include "common/codec/codec.h"
#include "common/tensor/chunk_plan.h"

namespace centroid {

/// The codec of one chunk, where `codec` is that of a contribution or a result: chunks of buffers
/// are f32, whatever the codec, so that their mean is exact.
const Codec& codec_of(const Codec& codec, const ChunkPlan& plan, const Chunk& chunk);

/// Memory for the payload of any chunk of the plan.
std::size_t largest_payload(const Codec& codec, const ChunkPlan& plan);

}  // namespace centroid
