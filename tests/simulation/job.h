#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/wait_on.h"
#include "server/config.h"
#include "server/service/cluster.h"
#include "server/shard/shard.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace centroid::simulation {

/// What a seed decides of a job.
struct Plan {
  std::uint64_t seed = 1;
  std::size_t workers = 3;
  std::size_t shards = 0;  ///< shard servers beside the server
  std::uint64_t rounds = 200;
  std::size_t faults = 6;
  std::uint64_t min_workers = 1;
  std::uint64_t checkpoint_every = 0;

  static Plan draw(std::uint64_t seed);
  std::string to_string() const;
};

struct Outcome {
  std::vector<std::string> faults;  ///< what the oracles found; empty: nothing
  std::uint64_t rounds = 0, checked = 0, injected = 0, log_hash = 0, switches = 0;
  double seconds = 0;  ///< virtual
};

/// The real server and trainers of one job in one world, the faults that the plan injects, and the
/// oracles.
///
/// oracles  every version is what the ledger says; all replicas have its bits, in every life of the
///          server; the version never goes back; whoever waits has a name; when all faults are
///          over the job reaches its goal
class Job {
 public:
  Job(Plan plan, const std::filesystem::path& folder, bool prints = false);
  Outcome run();

 private:
  /// One life of the server's process.
  struct Server {
    Process* process = nullptr;
    Host::Number thread = 0;
    std::filesystem::path folder;
    server::Cluster* cluster = nullptr;  ///< while it runs
    Executor executor;
    std::optional<Status> ended;
  };
  /// A shard server, through all lives of its process.
  struct ShardServer {
    std::string name;
    transport::Endpoint endpoint;
    Process* process = nullptr;
    Host::Number thread = 0;
    std::filesystem::path folder;
    std::shared_ptr<server::Shard*> shard;  ///< of this life; nullptr when it has ended
    Executor executor;
    std::optional<Status> ended;
    std::size_t lives = 0;
  };
  struct Worker {
    std::string name;
    Process* process = nullptr;
    Host::Number thread = 0;
    bool is_done = false;
    std::function<void()> stop;  ///< of the trainer that runs
  };

  void drive();
  void start_server(bool resumes);
  void run_server(Server& life, server::ServerConfig config);
  void kill_server();
  void start_shard(ShardServer& one);
  void run_shard(ShardServer& one, Process& process, std::filesystem::path folder);
  void kill_shard(ShardServer& one);
  void start_worker(Worker& worker);
  void run_worker(Worker& worker, Process& process);
  void kill_worker(Worker& worker);
  void inject();
  void fault(const std::string& what);
  std::optional<server::ClusterView> view();
  void watch();
  void supervise();
  Server& server() { return lives_.back(); }

  const Plan plan_;
  const std::filesystem::path folder_;
  World world_;
  Network network_{world_};
  Ledger ledger_;
  std::deque<Server> lives_;
  std::deque<ShardServer> shards_;
  std::deque<Worker> workers_;
  Outcome outcome_;
  std::uint64_t newest_ = 0;  ///< version that the server has shown
  std::string position_;      ///< what it has shown last
  TimePoint moved_{};         ///< when that has changed last
  std::size_t looks_ = 0;     ///< in a row that found neither progress nor a wait
};

}  // namespace centroid::simulation
