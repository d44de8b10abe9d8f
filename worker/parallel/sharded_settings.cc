#include "worker/parallel/sharded_settings.h"

#include <utility>

namespace centroid::parallel {

Result<ShardedOptions> ShardedSettings::options(std::uint32_t ranks, bool is_wanted) const {
  ShardedOptions out;
  auto parsed = Sharding::parse(sharding, ranks);
  if (!parsed.ok() && !is_wanted) parsed = Sharding::parse("full", ranks);
  CENTROID_ASSIGN(out.sharding, std::move(parsed));
  out.optimizer = optimizer;
  CENTROID_ASSIGN(out.codec, PartCodec::parse("codec", codec));
  CENTROID_ASSIGN(out.codec_down, PartCodec::parse("codec_down", codec_down));
  out.replicas = (replicas == "1" && ranks > 1) || (replicas == "auto" && ranks > 2) ? 1 : 0;
  return out;
}

}  // namespace centroid::parallel
