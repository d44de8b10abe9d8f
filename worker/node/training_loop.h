#pragma once

#include <functional>
#include <string>

#include "worker/data/data_source.h"
#include "worker/loop/rounds.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {

class LocalSteps;

struct TrainingSummary {
  std::uint64_t rounds = 0, skipped = 0, lost = 0, late = 0, samples = 0;
  double compute_seconds = 0, wait_seconds = 0, total_seconds = 0;
  double last_loss = 0;                       ///< mean over this worker's last share
  double last_accuracy = 0;                   ///< the same
  double gradient_norm = -1;                  ///< StepStats, last computed
  Divergence divergence;                      ///< of local steps, at the last average
  double test_accuracy = -1, test_loss = -1;  ///< of the last evaluation here; -1: none
  Version version;
  std::string end;  ///< why the loop ended
  bool is_halted = false;
  ExchangeTraffic traffic;
  std::uint64_t optimizer_fingerprint = 0;  ///< Exchange::optimizer_fingerprint, if no error
};

/// Called after every round, on the loop's thread.
using RoundObserver =
    std::function<void(const Share&, const StepStats&, const RoundReport&, const TrainingSummary&)>;

/// Train a built-in model, round after round, until the job ends. Blocks this thread. The summary
/// is valid also after an error. `local` runs the rounds of local steps; required if
/// ExchangeMemory::begin_local calls it.
Status train(ReplicaGroup& group, const DataSplit& data, Rounds& rounds, TrainingSummary& summary,
             const RoundObserver& observer = {}, LocalSteps* local = nullptr);

}  // namespace centroid::worker
