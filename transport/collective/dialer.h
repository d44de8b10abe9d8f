#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/async/task_group.h"
#include "transport/collective/driver.h"
#include "transport/collective/mesh.h"
#include "transport/collective/wire.h"
#include "transport/strangers.h"

namespace centroid::collective {

class Network;

/// Role in the greeting of a caller that only measures the path: its Echo requests are answered.
inline constexpr const char* kMeasurer = "measure";

/// One process's listener and its way to call peers, in all generations.
struct Station {
  MeshOptions options;
  std::shared_ptr<Driver> driver;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Listener> listener;
  /// For ranks on this machine; none if it is off or does not work here.
  std::unique_ptr<transport::Transport> shared;
  std::unique_ptr<transport::Listener> shared_listener;
  transport::Strangers strangers{0};  ///< that call; Dialer says how many

  void listen_near();
};

/// Connects one rank of one generation with a peer when the first operation needs that, and answers
/// peers that call.
///
/// who calls  the higher rank as soon as it needs the lower one; the lower one a moment later
///            (`MeshOptions::head_start`), because usually both need it at the same time. While the
///            higher rank is calling it refuses the lower one's call, and a rank that is being
///            called does not call back: so a pair never ends with two connections, one per side
/// when       a call is repeated until an operation that needs it has ended. The caller confirms
///            with `stay`: a call that was cancelled before its answer has no effect
/// thread     the driver's executor
class Dialer {
 public:
  Dialer(Network& network, std::shared_ptr<Station> station, Roster roster);

  /// Answer calls until `stop_answering`.
  void answer();
  /// Connect with this rank, unless that is in progress.
  void need(std::uint32_t rank);
  /// Why the last call of this rank failed.
  const std::optional<Error>& failure(std::uint32_t rank) const { return pairs_[rank].failure; }
  /// A later generation answers now.
  Task<void> stop_answering();
  Task<void> stop();

 private:
  struct Pair {
    bool is_connected = false;
    bool has_caller = false;         ///< a task of ours calls it
    bool is_calling = false;         ///< it waits for the peer's answer at this moment
    std::uint32_t answered_now = 0;  ///< undecided calls of the peer
    std::optional<Error> failure;
  };
  class Answering;

  transport::Greeting greeting() const;
  std::uint32_t features(std::uint32_t rank) const;
  void put(std::uint32_t rank, std::unique_ptr<transport::Connection> connection,
           std::uint32_t agreed);
  bool is_wanted(std::uint32_t rank) const;
  Task<bool> pause(std::uint32_t rank, TimePoint until);
  Task<void> call(std::uint32_t rank);
  Task<Status> try_peer(std::uint32_t rank, Deadline deadline);
  Task<Result<JoinReply>> introduce(transport::Connection& connection, std::uint32_t rank,
                                    std::uint32_t requested);
  Task<Status> try_shared(std::uint32_t rank, std::uint32_t port, Deadline deadline);
  using StrangerPlace = std::unique_ptr<transport::Strangers::Place>;
  Task<void> answer_peer(std::unique_ptr<transport::Connection> connection, StrangerPlace place);
  Task<Result<Join>> greet_peer(transport::Connection& connection, const transport::Peer& peer);
  Task<void> answer_echoes(transport::Connection& connection);
  Status judge(const Join& join) const;

  Network& network_;
  const std::shared_ptr<Station> station_;
  const Roster roster_;
  std::vector<Pair> pairs_;  ///< by rank
  Event changed_;
  TaskGroup callers_, answers_;
  bool is_stopping_ = false, is_measured_ = false;
};

}  // namespace centroid::collective
