#pragma once

#include "worker/config.h"
#include "worker/data/data_source.h"
#include "worker/model/model.h"
#include "worker/node/training_loop.h"

namespace centroid::worker {

/// Exchange sharded: join the other ranks at the rendezvous and train until the goal.
/// `is_signalled`: a signal ended it.
///
/// fails  failed_precondition: the memory is too small, or the loss is not finite
///        (summary.is_halted); as PeerGroup::join and ShardedReplica
Status run_sharded(const WorkerConfig& config, const Model& model, const DataSplit& data,
                   TrainingSummary& summary, bool& is_signalled);

}  // namespace centroid::worker
