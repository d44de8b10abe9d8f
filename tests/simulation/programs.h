#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "server/shard/shard.h"
#include "tests/simulation/machine.h"

namespace centroid::simulation {

/// A shard server.
class ShardProgram final : public Machine {
 public:
  using Machine::Machine;
  bool has_failed() const { return has_ended() && failed_; }

 private:
  void run(Process& process) override;
  void ask_to_end() override;

  std::shared_ptr<server::Shard*> shard_;  ///< of this life; nullptr when it has ended
  Executor executor_;
  bool failed_ = false;
};

/// A training program: the trainer library, with gradients that the ledger knows.
class WorkerProgram final : public Machine {
 public:
  using Machine::Machine;
  bool is_done() const { return is_done_; }  ///< the job is over, and it knows

 private:
  enum class Next : std::uint8_t { kRound, kAgain, kDone };
  class Trained;
  void run(Process& process) override;
  void ask_to_end() override;
  Next train(Process& process);
  Next ended(const Error& why);

  std::shared_ptr<Trained> trained_;
  bool is_done_ = false;
};

/// One client of the table, with keys of its own. Rates and gradients are binary fractions, so sums
/// are exact in every order: each row is what the answered pushes make of it.
class RowsProgram final : public Machine {
 public:
  using Machine::Machine;
  std::uint64_t pulls() const { return pulls_; }

 private:
  void run(Process& process) override;

  std::uint64_t pulls_ = 0;
};

}  // namespace centroid::simulation
