#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/checkpoint/checkpoint.h"
#include "common/optim/local_steps.h"
#include "common/optim/optimizer.h"
#include "common/tensor/tensor.h"
#include "worker/exchange/cluster_exchange.h"

namespace centroid::worker {

struct LocalOptions {
  OptimizerConfig optimizer;
  LocalStepsConfig local;
  std::uint64_t seed = 1;
  std::uint64_t batch = 32;  ///< samples of a step
  std::uint64_t train_samples = 0;
  std::uint64_t epochs = 1, rounds = 0;  ///< 0: no limit; at least one of the two
  bool skip_nonfinite = false, propagate_nonfinite = false;
  Manifest manifest;
  std::uint64_t chunk_bytes = 1u << 20;  ///< the server's, whose bits norm clipping is to have
  std::string checkpoint_dir;            ///< write the final state here; empty: nowhere
  std::uint64_t checkpoint_keep = 3;
  std::string model;
};

/// Settings of a job without a server, as a JSON object with the names of the server's settings.
/// The rest of the options is the caller's.
/// fails  invalid_argument, as config::Schema
Result<LocalOptions> parse_local_options(const std::string& json);

/// The same contract without a network: one worker is the cluster. The oracle of the distributed
/// exchanges, with the bits of a server with this worker alone.
/// fails  invalid_argument: no goal, settings, local steps without ExchangeMemory::begin_local
Result<std::unique_ptr<Exchange>> make_local_exchange(LocalOptions options, ExchangeMemory memory);

}  // namespace centroid::worker
