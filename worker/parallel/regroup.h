#pragma once

#include <memory>
#include <vector>

#include "worker/parallel/sharded_parameters.h"

namespace centroid::parallel {

/// Divide the parameters and their state among the ranks of a later generation, from what they have
/// in memory. After the loss of a rank of a job with replicas its last step is that of the ranks
/// that are left; no disk is read.
///
/// group   of the later generation: survivors and newcomers, any number
/// old     of a survivor, and of the earlier generation; nullptr: a newcomer. A step that others
///         have made is made there too; the rest stays as it is until the caller drops it
/// step    the last one that any rank made; a gradient that was not applied is lost
/// memory  old and new shards at the same time, no spare memory of units
/// fails   unavailable: nobody has some shard of that step: restore a checkpoint; invalid_argument:
///         other parameters or sizes of units than before; as ShardedParameters::make
Result<std::unique_ptr<ShardedParameters>> regroup(const collective::Group& group,
                                                   std::vector<ParameterShape> parameters,
                                                   const ShardedOptions& options,
                                                   ShardedParameters* old);

}  // namespace centroid::parallel
