#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/async/task.h"
#include "common/base/metrics.h"
#include "common/codec/error_feedback.h"
#include "common/proto/messages.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"
#include "transport/transport.h"
#include "worker/exchange/exchange.h"

namespace centroid::worker {

class PeerReducer;

struct ClusterOptions {
  std::vector<transport::Endpoint> servers;  ///< of one cluster; one of them leads
  std::string token;
  proto::Join join;                                ///< name, codec, model, data
  std::chrono::milliseconds join_timeout{60'000};  ///< give up after so long outside the cluster
  std::chrono::milliseconds stall_timeout{30'000};
  std::string state_dir;  ///< folder of what error feedback has left to send; "": not kept
  /// Exchanges ring and hierarchical: adds the gradients among the workers. Without it they go
  /// through the server (star).
  std::shared_ptr<PeerReducer> peers;
  /// Optional: whether the server knows this worker as a member, when that changes. On the
  /// executor.
  std::function<void(bool)> membership;
};

/// Memory that the exchange moves: the replica group's flat parameters and gradients.
struct ExchangeMemory {
  std::span<float> params;
  std::span<const float> gradients;
  /// Optional: the replicas read parameters from there from now on. Then results need no copy: they
  /// change places with the parameters. Called by the loop's thread, inside `finish`; `leave`
  /// brings the last parameters back to `params`.
  std::function<void(std::span<float>)> use_params;
  /// Optional: memory for what takes the place of the parameters.
  std::function<Buffer(std::size_t bytes)> allocate;
  std::function<void(std::uint64_t seed)>
      initialize;  ///< fill params with initial values; called at most once, while `next` waits
  /// Optional: whoever makes local steps. Called at most once, while `next` waits; gives the memory
  /// of contributions, which takes the place of `gradients`. Without it such a server is refused.
  std::function<Result<std::span<const float>>(const LocalTerms&, const ChunkPlan&)> begin_local;
  /// Optional: a codec with error feedback may add and select where the gradient is. Called at most
  /// once, while `next` waits; then `gradients` is read no more. fails: the host does it
  std::function<Result<std::unique_ptr<DeviceResidual>>(const std::string& codec, const ChunkPlan&)>
      device_residual;
  /// Optional: the server saves the state after this round, and is told whether this worker has
  /// kept its own. Called by the loop's thread in `next`.
  std::function<Status(Round)> save_local;
};

/// Training as a member of a cluster. Contributions go to the parameter server and results come
/// back (star), or the workers add them among themselves and the server says when (`peers`); both
/// overlap with backward: a tensor leaves when it is ready. Reconnects by itself with jittered
/// back-off; after a loss the round is given up and `next` waits for the cluster again. `transport`
/// lives on `executor`, an executor of one thread that is not the loop's.
std::unique_ptr<Exchange> make_cluster_exchange(Executor executor,
                                                std::unique_ptr<transport::Transport> transport,
                                                ClusterOptions options, ExchangeMemory memory,
                                                metrics::Registry& registry);

}  // namespace centroid::worker
