#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/world.h"
#include "transport/transport.h"

namespace centroid::simulation {

class Flow;

/// The network between simulated processes: every connection is two byte streams with a delay that
/// the seed decides. Bytes of one stream stay in order, those of different ones do not.
///
/// thread  the world's
class Network {
 public:
  explicit Network(World& world) : world_(world) {}

  /// Of the process whose thread calls; frames and sessions are the product's own.
  std::unique_ptr<transport::Transport> make_transport(Executor executor,
                                                       transport::TransportOptions options);

  // Faults. A pair has no direction.
  /// Connections between the two break: both ends hear of it, what is under way is lost.
  void cut(const Process& a, const Process& b);
  /// Nothing arrives between the two for so long; then what was sent does.
  void partition(const Process& a, const Process& b, Duration time);
  /// What was sent, and will be, over the present connections never arrives. As a system does with
  /// user timeout and keep-alives, both ends hear of it after the stall timeout.
  void lose_silently(const Process& a, const Process& b);
  /// The process is gone: nobody reaches it, and it reaches nobody. Its peers hear of it, or,
  /// `silently`, nothing.
  void remove(const Process& process, bool silently);

  // Of transports
  struct Half {
    std::shared_ptr<Flow> in, out;
    std::string peer;
  };
  class Backlog;
  Result<std::shared_ptr<Backlog>> listen(transport::Endpoint& endpoint);
  void close(const transport::Endpoint& endpoint, const Backlog& backlog);
  /// nullptr: refused.
  std::unique_ptr<Half> connect(const transport::Endpoint& endpoint,
                                std::chrono::milliseconds stall_timeout);
  Duration draw_delay();
  TimePoint blocked_until(const Process& a, const Process& b) const;
  bool is_removed(const Process& process) const { return process.is_killed; }
  World& world() { return world_; }

 private:
  using Pair = std::pair<const Process*, const Process*>;
  struct Connection {
    const Process *a, *b;
    std::weak_ptr<Flow> there, back;
    std::chrono::milliseconds stall_timeout;
  };
  template <class F>
  void for_each(const Process& a, const Process* b, F act);
  static Pair pair_of(const Process& a, const Process& b) {
    return a.name < b.name ? Pair(&a, &b) : Pair(&b, &a);
  }

  World& world_;
  std::map<std::string, std::pair<Process*, std::weak_ptr<Backlog>>> listeners_;
  std::vector<Connection> connections_;
  std::map<std::pair<std::string, std::string>, TimePoint> blocked_;
  std::uint16_t next_port_ = 40'000;
  std::uint64_t clients_ = 0;
};

}  // namespace centroid::simulation
