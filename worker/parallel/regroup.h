#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "worker/parallel/sharded_parameters.h"

namespace centroid::parallel {

/// Consecutive parameters of a model. Tensor parallel ranks have parts of the model, which are
/// models of their own.
struct Portion {
  std::uint32_t model = 0;  ///< the tensor parallel rank
  Range parameters;
};

/// What a rank has of the earlier generation. Without parameters: a newcomer, or one that waited.
struct Earlier {
  ShardedParameters* parameters = nullptr;
  Portion portion{};
};

/// What a rank gets in the later one.
struct Later {
  collective::Group ranks;  ///< those that divide these parameters
  Portion portion;
  ShardedOptions options;
};

struct Regrouped {
  std::uint64_t step = 0;
  std::unique_ptr<ShardedParameters> parameters;  ///< null: of a rank that gets none
};

/// Divide the parameters and their state among the ranks of a later generation, from what they have
/// in memory. After the loss of a rank of a job with replicas its last step is that of the ranks
/// that are left; no disk is read.
///
/// group   of the later generation: survivors and newcomers, any number
/// models  their parameters, by tensor parallel rank; the same number as before
/// common  of every rank: the optimizer, the least elements of a unit, the timeout
/// old     of the earlier generation. A step that others have made is made there too; the rest
///         stays as it is until the caller drops it
/// next    none: this rank gets no parameters
/// step    the last one that any rank made; a gradient that was not applied is lost
/// memory  old and new shards at the same time, no spare memory of units
/// fails   unavailable: nobody has some shard of that step: restore a checkpoint; invalid_argument:
///         other parameters or sizes of units than before; as ShardedParameters::make. Then on all
Result<Regrouped> regroup(const collective::Group& group,
                          const std::vector<std::vector<ParameterShape>>& models,
                          const ShardedOptions& common, const Earlier& old,
                          const std::optional<Later>& next);

}  // namespace centroid::parallel
