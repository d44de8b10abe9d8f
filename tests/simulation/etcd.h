#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "server/election/etcd.h"
#include "tests/simulation/network.h"

namespace centroid::simulation {

/// One etcd for all simulated processes: keys and leases by the world's time. A request takes the
/// network's time there and back, and fails where the way to etcd is partitioned.
class SimulatedEtcd {
 public:
  SimulatedEtcd(World& world, Network& network)
      : world_(world), network_(network), process_(world.add_process("etcd")) {}

  server::MakeEtcd connector();
  const Process& process() const { return process_; }

 private:
  friend class SimulatedEtcdClient;
  struct Key {
    std::string value;
    std::uint64_t created = 0;  ///< revision
    std::int64_t lease = 0;
  };
  struct Lease {
    Duration ttl{};
    TimePoint end{};  ///< of the world
  };
  /// Take away what has run out.
  void expire();
  void remove_lease(std::int64_t lease);

  World& world_;
  Network& network_;
  Process& process_;
  std::map<std::string, Key> keys_;
  std::map<std::int64_t, Lease> leases_;
  std::uint64_t revision_ = 0;
  std::int64_t last_lease_ = 0;
};

}  // namespace centroid::simulation
