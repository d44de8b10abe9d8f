#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "common/optim/optimizer_config.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::parallel {

/// How a job divides its parameters, whatever number of ranks it has.
struct ShardedSettings {
  std::string sharding = "full";  ///< as Sharding::parse
  std::string replicas = "auto";  ///< ShardedOptions::replicas; auto: 1 of more than 2 ranks
  std::string codec = "f32", codec_down = "f32";
  OptimizerConfig optimizer;

  /// For so many data parallel ranks.
  ///
  /// is_wanted  false: ranks were lost or joined. hybrid:K with a K that does not divide them is
  ///            full then
  /// fails      as Sharding::parse and PartCodec::parse
  Result<ShardedOptions> options(std::uint32_t ranks, bool is_wanted) const;
};

}  // namespace centroid::parallel
