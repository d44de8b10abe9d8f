#pragma once

#include <cstdint>
#include <string>

#include "common/checkpoint/checkpoint.h"
#include "common/tensor/fragments.h"

/// What contributions take of memory. Bytes are of the fragment that takes most.
namespace centroid::server {

/// As a codec may encode it.
/// fails  as make_codec
Result<std::uint64_t> contribution_bytes(const ChunkPlan& plan, const FragmentPlan& fragments,
                                         const std::string& codec);
std::uint64_t elements_of_largest(const FragmentPlan& fragments);
/// As the workers said that were there when the checkpoint was written.
std::string codec_in(const CheckpointInfo& info);

}  // namespace centroid::server
