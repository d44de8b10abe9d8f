#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "transport/strangers.h"
#include "transport/transport.h"

namespace centroid::client {

struct PeerOptions {
  std::uint32_t rank = 0, world = 1;
  /// Of this machine, which the other ranks reach; empty: loopback, or for `join` the one that
  /// leads to the rendezvous.
  std::string host;
  std::string token;                              ///< the same on all ranks; empty: none
  std::shared_ptr<transport::StreamLayer> layer;  ///< TLS among the ranks; nullptr: none
  std::chrono::milliseconds timeout{60'000};      ///< of the start, and of each operation
  bool shared_memory = true;                      ///< among ranks of one machine
  /// The rendezvous may be that of a job that has begun (PeerGroup::running).
  bool may_be_newcomer = false;
  transport::Factory make_transport = transport::make_tcp;  ///< how it reaches the others
};

/// What a process finds at the rendezvous.
struct Found {
  std::vector<std::string> addresses;  ///< of all ranks, by rank; empty: a job has begun
  transport::Endpoint leader;          ///< where that job takes newcomers
};

/// The addresses of all ranks by rank: rank 0 collects them at `place`, and the others give theirs.
/// Or with `may_be_newcomer` the job that has begun: its Redirector answers at `place`, or calls
/// rank 0 there. Rank 0 waits that long, so a job does not begin twice when all first ranks start
/// again at once; longer where its name resolves slowly.
///
/// fails  as PeerGroup::join
Result<Found> find_group(const PeerOptions& options, const transport::Endpoint& place,
                         const std::string& address);

/// The rendezvous of a job that has begun. One that comes there learns the place of the leader.
///
/// listens  at the rendezvous, if it is on this machine and free: tried all the time, so another
///          member takes the place of one that is lost
/// calls    the process that waits there as rank 0 for others, beside calls of machines that may be
///          gone. Its name is resolved once at a time, so that slow answers do not pile up
/// thread   the executor's
class Redirector {
 public:
  /// `is_host`: this process was started as rank 0, so it listens as that does.
  Redirector(Executor executor, transport::Transport& transport, transport::Endpoint rendezvous,
             bool is_host, std::string token);
  ~Redirector();

  void set_leader(const transport::Endpoint& leader) { leader_ = leader; }
  /// Until it is cancelled.
  static Task<void> run(Redirector* self);

 private:
  static Task<void> answer(Redirector* self, std::shared_ptr<transport::Connection> connection,
                           transport::Strangers::Place& place, const transport::InFrame& frame);
  bool listens();
  static Task<void> find(Redirector* self);
  static Task<void> call(Redirector* self, transport::Endpoint place);
  void compare(const std::optional<transport::Endpoint>& leader, TimePoint& agreed);
  std::string text() const;

  const transport::Endpoint rendezvous_, here_;
  const std::string token_;
  const bool may_listen_;
  transport::Transport& transport_;
  std::unique_ptr<transport::Listener> listener_;
  transport::Endpoint leader_;
  bool is_resolving_ = false;
  bool is_answered_ = false;  ///< by another Redirector
  bool has_warned_ = false;
  transport::Strangers strangers_;
  TaskGroup tasks_;
};

}  // namespace centroid::client
