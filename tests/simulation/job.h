#pragma once

#include <deque>
#include <string>
#include <vector>

#include "tests/simulation/programs.h"
#include "tests/simulation/server_program.h"

namespace centroid::simulation {

struct Outcome {
  std::vector<std::string> faults;  ///< what the oracles found; empty: nothing
  std::uint64_t rounds = 0;         ///< committed
  std::uint64_t checked = 0;        ///< versions that the ledger has computed
  std::uint64_t injected = 0;       ///< faults
  std::uint64_t pulls = 0;          ///< of rows, compared
  double seconds = 0;               ///< virtual
  std::uint64_t log_hash = 0;
  std::string to_string() const;
};

/// The real servers, trainers and clients of one job in one world, the faults that its plan
/// injects, and the oracles.
///
/// oracles  every version is what the ledger says; all replicas have its bits, in every life of the
///          servers; rows are what their answered pushes make of them; nothing halts; whoever
///          waits has a name; when all faults are over the job reaches its goal
class Job {
 public:
  explicit Job(const Plan& plan, bool prints = false);
  Outcome run();

 private:
  void drive();
  void start_all();
  void end_all();
  void inject();
  void fail_disk(CounterRng& random);
  void watch();
  void supervise();
  void operate();
  void look_for_trouble();
  void restore(CounterRng& random);
  void drain_server(CounterRng& random);
  ServerProgram& primary() { return *primary_; }
  void start_again_after(Machine& machine);

  Surroundings around_;
  std::deque<ServerProgram> servers_;
  std::deque<ShardProgram> shards_;
  std::deque<WorkerProgram> workers_;
  std::deque<RowsProgram> rows_;
  Host::Number operator_ = 0;
  ServerProgram* primary_ = nullptr;  ///< as it was seen last
  std::uint64_t injected_ = 0;
  std::uint64_t newest_ = 0;  ///< version that a server has shown
  std::string position_;      ///< what it has shown last
  TimePoint moved_{};         ///< when that has changed last
  std::size_t looks_ = 0;     ///< in a row that found neither progress nor a wait
};

}  // namespace centroid::simulation
