#pragma once

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/standstill.h"
#include "transport/server_list.h"
#include "transport/session.h"

namespace centroid::transport {

/// How often a side sends a heartbeat, and how long it accepts silence of the other.
struct Pulse {
  std::chrono::milliseconds beat, silence;
  Standstill standstill = {};
  /// Wait for a beat. False: cancelled.
  Task<bool> rest();
  /// fails  deadline_exceeded: `peer`, which was heard last at `then`, was silent for too long
  Status check(TimePoint then, const std::string& peer) const;
};

/// If several servers may lead: half of a takeover in docs/how-to/high-availability.md is the lease
/// in etcd.
inline constexpr Pulse kPulseOfSeveral{std::chrono::milliseconds(500),
                                       std::chrono::milliseconds(3000)};

/// Connects to the leader: follows standbys' answers, tries the others of the list in turn, pauses
/// longer and longer after all have been tried, and finally fails. The owner loops: `connect`, use
/// the session, `retry` with the error that ended it.
///
/// log     server.switched, server.connection_failed
/// thread  one executor
class Connector {
 public:
  struct Options {
    std::vector<Endpoint> servers;
    /// Fail after this time, from the first try, without an answer from any server. "Not ready" is
    /// an answer.
    std::chrono::milliseconds timeout = std::chrono::hours(24 * 365);
    std::string timeout_name;  ///< name of the setting
    std::chrono::milliseconds first_pause{100}, longest_pause{2000};
    bool logs_pauses = true;
  };
  Connector(Executor executor, Options options);

  /// The server to call now.
  const Endpoint& present() const { return servers_.present(); }
  bool is_several() const { return servers_.is_several(); }
  /// Deadline of one call.
  TimePoint call_limit(Deadline deadline = TimePoint::max()) const;
  TimePoint time_limit() const { return answered_ + options_.timeout; }
  /// If several servers may lead, a dead one is noticed soon.
  Pulse pulse(std::chrono::milliseconds lease) const;

  /// A new call of the owner: its pauses start short.
  void begin() { pause_ = options_.first_pause; }
  /// A try of the present server begins; `connect` calls it itself.
  void try_begins();
  /// fails  as connect_session
  Task<Result<std::unique_ptr<Session>>> connect(Transport& transport, Greeting greeting,
                                                 Deadline deadline = TimePoint::max());
  /// The server accepted this program.
  void joined();
  /// The server does not answer: call another one next.
  void pass_over(const Error& why) { (void)servers_.failed(why); }
  /// Choose the server to call next, and wait until then. `why`: the error of the last call.
  /// fails  cancelled: stopped; unavailable: no server answered until the timeout; `why` if another
  ///        try cannot help or would be after the deadline
  Task<Status> retry(Error why, Deadline deadline = TimePoint::max());
  /// End a pause, now and later.
  void stop();

 private:
  std::chrono::milliseconds next_pause();

  const Options options_;
  ServerList servers_;
  Event stopped_;
  bool is_stopped_ = false, is_joined_ = false;
  TimePoint answered_ = now();           ///< a server, last; none has: the first try began
  TimePoint called_ = TimePoint::max();  ///< the present try began; max: there was none
  std::chrono::milliseconds pause_;
  std::mt19937_64 jitter_;
};

}  // namespace centroid::transport
