#include "server/service/room.h"

#include <algorithm>

#include "common/codec/chunk_codec.h"
#include "common/codec/spec.h"
#include "server/service/job_types.h"

namespace centroid::server {

std::string codec_in(const CheckpointInfo& info) {
  const auto kept = info.extra.find("codec");
  const bool is_known = kept != info.extra.end() && CodecSpec::parse(kept->second).ok();
  return is_known ? kept->second : kUnknownCodec;
}

std::uint64_t elements_of_largest(const FragmentPlan& fragments) {
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i)
    most = std::max(most, fragments[i].elements);
  return most;
}

Result<std::uint64_t> contribution_bytes(const ChunkPlan& plan, const FragmentPlan& fragments,
                                         const std::string& spec) {
  CENTROID_ASSIGN(const auto codec, make_codec(spec));
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i) {
    std::uint64_t bytes = 0;
    for (const Chunk& chunk : fragments[i].chunks)
      bytes += codec_of(*codec, plan, chunk).max_bytes(chunk.elements);
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace centroid::server
