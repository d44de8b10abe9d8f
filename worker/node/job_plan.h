#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/optim/optimizer_config.h"
#include "worker/model/model.h"
#include "worker/node/step_time.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// A job whose model may be divided among workers in several ways.
struct PlanQuestion {
  std::uint32_t workers = 2;
  std::uint64_t batch = 32;   ///< samples of a worker in a step; stages take those of their workers
  std::uint64_t memory = 0;   ///< bytes of a worker
  double bandwidth = 0;       ///< bytes that a link carries in a second, each way
  OptimizerConfig optimizer;  ///< its state needs memory
  parallel::PartCodec codec{}, codec_down{};
};

/// The fastest that a worker computes.
struct ComputingSpeed {
  Speeds batch, micro_batch;  ///< without bandwidth
};
/// Samples of a micro-batch in a plan.
std::uint64_t micro_batch_of(const PlanQuestion& question);
/// Measure the layers and the optimizer on this machine, in about a second.
///
/// fails  as measure_layers; failed_precondition: a layer does not fit into `limit` bytes
Result<ComputingSpeed> measure_speed(const Model& model, const PlanQuestion& question,
                                     std::uint64_t limit);
/// The speed with which a worker computes its batch in this time, divided among the layers by the
/// elements of their matrices.
///
/// fails  as measure_layers
Result<ComputingSpeed> speed_of(const Model& model, const PlanQuestion& question,
                                double batch_seconds);

/// One way to divide the model.
struct PlanRow {
  std::string flags;                ///< "--sharding full", "--parallel dp=2,pp=2 --sharding none"
  std::uint64_t batch = 0;          ///< of a data parallel rank
  std::uint64_t micro_batches = 0;  ///< 0: no stages
  parallel::ShardedMemory memory;   ///< of the worker that needs the most; without the data set
  StepTime time;
  bool fits = false;
};
/// All shardings and numbers of stages, not tp. Each way trains the same samples in a step. Stages
/// that the model cannot have are left out.
///
/// fails  invalid_argument: fewer than 2 workers, a batch of 0; as sharded_memory
Result<std::vector<PlanRow>> plan_job(const Model& model, const PlanQuestion& question,
                                      const ComputingSpeed& speed);
/// The fastest that fits; null: none does.
const PlanRow* recommended(const std::vector<PlanRow>& rows);

/// Bytes per second of "1Gb/s" or "125MB/s": b is a bit, B a byte, k, M and G are powers of 1000.
///
/// fails  invalid_argument: no number over 0, no such unit
Result<double> parse_bandwidth(const std::string& text);

}  // namespace centroid::worker
