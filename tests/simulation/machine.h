#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "tests/simulation/etcd.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/memory_storage.h"
#include "tests/simulation/network.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/world.h"

namespace centroid::simulation {

/// What the programs of one job share.
struct Surroundings {
  explicit Surroundings(const Plan& p)
      : plan(p), world(p.seed), ledger(kParameters, kRate, p.has_peers()) {}

  /// An oracle found a fault of the product.
  void fault(const std::string& what) {
    world.note("FAULT " + what);
    faults.push_back(what);
  }
  transport::Factory transports() {
    return [this](Executor executor, transport::TransportOptions how) {
      return network.make_transport(std::move(executor), std::move(how));
    };
  }
  /// HOST:PORT of every server, separated by commas.
  std::string servers() const {
    return plan.servers > 1 ? "server-a:7070,server-b:7070" : "server-a:7070";
  }

  const Plan plan;
  World world;
  Network network{world};
  SimulatedEtcd etcd{world, network};
  Ledger ledger;
  std::vector<std::string> faults;
  bool is_over = false;  ///< clients and operators end
  bool may_lose_pushes = false;
};

/// A program on a machine with a disk, through all lives of its process. Nothing that a killed
/// process still does is seen by others: it is cut off from network and disk, and asked to end.
class Machine {
 public:
  Machine(Surroundings& around, std::string name, std::shared_ptr<test::MemoryDisk> disk);
  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::string& name() const { return name_; }
  Process& process() { return *lives_.back().process; }
  void start();
  void kill();       ///< SIGKILL: its peers hear of it, what it has written is there
  void cut_power();  ///< its peers hear nothing, what it has not synced may be lost
  void freeze(Duration time);
  void fill_disk(Duration time);
  void fail_disk(Duration time);  ///< some operations fail with EIO
  /// Has returned from `run` by itself in its present life.
  bool has_ended() const { return lives_.back().has_ended; }
  bool is_up() const { return !lives_.empty() && !lives_.back().process->is_killed; }
  void join();  ///< all lives

 protected:
  /// The program. `process`: of this life.
  virtual void run(Process& process) = 0;
  /// The life that was killed is to end.
  virtual void ask_to_end() {}

  Surroundings& around_;

 private:
  struct Life {
    Process* process = nullptr;
    Host::Number thread = 0;
    std::unique_ptr<test::MemoryStorage> storage;
    bool has_ended = false;
  };
  void end(bool silently);
  int on_storage(const Process& process, std::string_view operation);

  const std::string name_;
  const std::shared_ptr<test::MemoryDisk> disk_;
  std::deque<Life> lives_;
  TimePoint full_until_{}, failing_until_{};
};

}  // namespace centroid::simulation
