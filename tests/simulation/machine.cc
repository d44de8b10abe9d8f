#include "tests/simulation/machine.h"

#include <cerrno>

namespace centroid::simulation {

Machine::Machine(Surroundings& around, std::string name, std::shared_ptr<test::MemoryDisk> disk)
    : around_(around), name_(std::move(name)), disk_(std::move(disk)) {}

void Machine::start() {
  Life& life = lives_.emplace_back();
  Process& process = around_.world.add_process(name_ + "#" + std::to_string(lives_.size()));
  life.process = &process;
  life.storage = std::make_unique<test::MemoryStorage>(disk_);
  life.storage->set_hook([this, &process](std::string_view operation, const auto& /*path*/) {
    return on_storage(process, operation);
  });
  process.storage = life.storage.get();
  life.thread = around_.world.start(process, "main", [this, &life, &process] {
    if (!process.is_killed) run(process);
    life.has_ended = true;
  });
}

/// A disk takes its time, so that a process can be killed between a write and what follows.
int Machine::on_storage(const Process& process, std::string_view operation) {
  if (process.is_killed) return 0;
  CounterRng& random = around_.world.random_numbers();
  const bool is_change = operation == "write" || operation == "sync" || operation == "rename";
  if (is_change)
    around_.world.let_pass(
        std::chrono::microseconds(10 + random.below(200) + (random.below(50) == 0 ? 10'000 : 0)));
  if (failing_until_ > around_.world.time() && random.below(3) == 0) {
    // Behind a failed sync rounds and pushes are in no journal until the next checkpoint.
    if (operation == "sync") around_.may_lose_pushes = true;
    if (operation == "sync") around_.ledger.go_back(around_.plan.rounds + 1, 1);
    return EIO;
  }
  const bool is_full = full_until_ > around_.world.time();
  return is_full && (operation == "write" || operation == "create") ? ENOSPC : 0;
}

void Machine::end(bool silently) {
  Life& life = lives_.back();
  life.process->is_killed = true;
  life.process->frozen_until = {};
  around_.network.remove(*life.process, silently);
  ask_to_end();
}

void Machine::kill() {
  around_.world.note("kill " + name_);
  lives_.back().storage->detach();
  end(false);
}

void Machine::cut_power() {
  around_.world.note("cut the power of " + name_);
  disk_->crash(around_.world.random_numbers());
  end(true);
}

void Machine::freeze(Duration time) {
  around_.world.note("freeze " + name_);
  around_.world.freeze(process(), time);
}

void Machine::fill_disk(Duration time) {
  around_.world.note("fill the disk of " + name_);
  full_until_ = around_.world.time() + time;
}

void Machine::fail_disk(Duration time) {
  around_.world.note("the disk of " + name_ + " fails");
  failing_until_ = around_.world.time() + time;
}

void Machine::join() {
  for (const Life& life : lives_) around_.world.join_thread(life.thread);
}

}  // namespace centroid::simulation
