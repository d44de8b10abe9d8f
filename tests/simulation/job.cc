#include "tests/simulation/job.h"

#include <algorithm>
#include <cstdlib>

namespace centroid::simulation {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// With everything healed a round takes some milliseconds; leases and reconnects take seconds.
constexpr seconds kMostWithoutProgress{90};
constexpr std::chrono::hours kMostTime{2};    ///< of a job
constexpr std::uint64_t kMostInTrouble = 15;  ///< rounds behind a checkpoint, of a journal
constexpr seconds kNamedWithin{2};            ///< a wait that is longer must have a name
/// Looks, one each 20 ms: between two waits nobody waits for a moment, and a wait has no name while
/// it is younger than Waits::kYoung.
constexpr std::size_t kMostLooks = 15;

}  // namespace

std::string Outcome::to_string() const {
  return std::to_string(rounds) + " rounds (" + std::to_string(checked) + " checked), " +
         std::to_string(injected) + " faults, " + std::to_string(pulls) + " pulls of rows, " +
         std::to_string(static_cast<std::uint64_t>(seconds)) + " s of virtual time";
}

Job::Job(const Plan& plan, bool prints) : around_(plan) { around_.world.prints = prints; }

Outcome Job::run() {
  around_.world.run([this] { drive(); });
  Outcome outcome;
  outcome.faults = around_.faults;
  for (std::string& fault : around_.ledger.check(around_.plan.rule(), kSamples))
    outcome.faults.push_back(std::move(fault));
  outcome.rounds = newest_;
  outcome.checked = around_.ledger.checked();
  outcome.injected = injected_;
  for (const RowsProgram& client : rows_) outcome.pulls += client.pulls();
  outcome.seconds = around_.world.seconds();
  outcome.log_hash = around_.world.log_hash();
  return outcome;
}

void Job::start_all() {
  const Plan& plan = around_.plan;
  const auto make_disk = [this] {
    return std::make_shared<test::MemoryDisk>([this] {
      return std::chrono::nanoseconds(around_.world.time().time_since_epoch()).count();
    });
  };
  const auto shared = make_disk();
  for (std::size_t i = 0; i < plan.servers; ++i)
    servers_.emplace_back(around_, "server-" + std::string(1, static_cast<char>('a' + i)), shared);
  for (std::size_t i = 0; i < plan.shards; ++i)
    shards_.emplace_back(around_, "shard-" + std::to_string(i), make_disk());
  for (std::size_t i = 0; i < plan.workers; ++i)
    workers_.emplace_back(around_, "worker-" + std::to_string(i), make_disk());
  for (std::size_t i = 0; i < plan.rows_clients; ++i)
    rows_.emplace_back(around_, "rows-" + std::to_string(i), make_disk());
  primary_ = &servers_.front();
  for (ServerProgram& one : servers_) one.start();
  for (ShardProgram& one : shards_) one.start();
  for (WorkerProgram& one : workers_) one.start();
  for (RowsProgram& one : rows_) one.start();
  Process& outside = around_.world.add_process("operator");
  operator_ = around_.world.start(outside, "main", [this] { operate(); });
}

void Job::end_all() {
  around_.is_over = true;
  for (ServerProgram& one : servers_) {
    const bool has_ended = one.ended() && one.ended()->ok();
    if (has_ended && around_.faults.empty())
      around_.fault(one.name() + " ended: " +
                    (one.ended()->ok() ? std::string("ok") : one.ended()->error().to_string()));
  }
  for (ServerProgram& one : servers_)
    if (!one.has_ended()) one.kill();
  for (ShardProgram& one : shards_)
    if (!one.has_ended()) one.kill();
  for (WorkerProgram& one : workers_)
    if (!one.has_ended()) one.kill();
  around_.world.join_thread(operator_);
  for (RowsProgram& one : rows_) one.join();
  for (WorkerProgram& one : workers_) one.join();
  for (ShardProgram& one : shards_) one.join();
  for (ServerProgram& one : servers_) one.join();
}

void Job::drive() {
  start_all();
  World& world = around_.world;
  moved_ = world.time();
  std::vector<std::uint64_t> when;  // versions
  for (std::size_t i = 0; i < around_.plan.faults; ++i)
    when.push_back(world.random_numbers().below(around_.plan.rounds));
  std::ranges::sort(when);
  std::size_t next = 0, errors = 0;
  CounterRng of_disks(around_.plan.seed, 8);
  std::uint64_t next_error = of_disks.below(around_.plan.rounds);
  const auto is_over = [this] {
    return std::ranges::all_of(workers_, [](const WorkerProgram& one) { return one.is_done(); });
  };
  while (!is_over() && around_.faults.empty()) {
    world.let_pass(milliseconds(20));
    watch();
    supervise();
    while (next < when.size() && newest_ >= when[next] && newest_ <= around_.plan.rounds) {
      ++next;
      inject();
    }
    if (errors < around_.plan.disk_errors && newest_ >= next_error) {
      ++errors;
      next_error = newest_ + of_disks.below(100);
      fail_disk(of_disks);
    }
    if (world.seconds() > std::chrono::duration<double>(kMostTime).count())
      around_.fault("the job does not end");
    if (world.time() - moved_ <= kMostWithoutProgress) continue;
    around_.fault("no progress beyond version " + std::to_string(newest_) + " for " +
                  std::to_string(kMostWithoutProgress.count()) + " s");
    for (ServerProgram& one : servers_) {
      if (!one.view()) continue;
      const auto waits =
          one.ask<std::vector<server::WaitView>>([](server::Control& c) { return c.waits(); });
      for (const server::WaitView& wait : waits.value_or(std::vector<server::WaitView>()))
        world.note(one.name() + " wait: " + wait.waiter + " for " + wait.waits_for + ": " +
                   wait.what);
    }
  }
  end_all();
}

void Job::start_again_after(Machine& machine) {
  around_.world.let_pass(milliseconds(around_.world.random_numbers().below(2000)));
  machine.start();
}

void Job::inject() {
  ++injected_;
  CounterRng& random = around_.world.random_numbers();
  Network& network = around_.network;
  const std::size_t number = random.below(workers_.size());
  WorkerProgram& worker = workers_[number];
  ServerProgram& server = servers_[random.below(servers_.size())];
  Machine& shard =
      shards_.empty() ? static_cast<Machine&>(server) : shards_[random.below(shards_.size())];
  const auto time = milliseconds(1 + random.below(8000));
  const auto between = [&](const char* what) -> std::pair<Process&, Process&> {
    if (around_.plan.has_peers() && workers_.size() > 1 && random.below(2) == 0) {
      const std::size_t further = 1 + random.below(workers_.size() - 1);
      WorkerProgram& other = workers_[(number + further) % workers_.size()];
      around_.world.note(std::string(what) + " " + worker.name() + " and " + other.name());
      return {worker.process(), other.process()};
    }
    const std::size_t which = shards_.empty() ? 0 : random.below(3);
    Machine& one = which == 2 ? static_cast<Machine&>(server) : worker;
    Machine& other = which == 0 ? static_cast<Machine&>(server) : shard;
    around_.world.note(std::string(what) + " " + one.name() + " and " + other.name());
    return {one.process(), other.process()};
  };
  switch (random.below(13)) {
    case 0: {
      const auto [a, b] = between("cut");
      return network.cut(a, b);
    }
    case 1: {
      const auto [a, b] = between("partition");
      return network.partition(a, b, time);
    }
    case 2: {
      const auto [a, b] = between("lose silently between");
      return network.lose_silently(a, b);
    }
    case 3:
      return worker.freeze(time);
    case 4:
      return server.freeze(time);
    case 5:
      return shard.freeze(time);
    case 6:
    case 7:
      if (worker.is_done()) return;
      worker.kill();
      return start_again_after(worker);
    case 8:
      server.kill();
      return start_again_after(server);
    case 9:
      shard.kill();
      return start_again_after(shard);
    case 10:
      if (servers_.size() > 1)
        return network.partition(server.process(), around_.etcd.process(), time);
      server.cut_power();
      return start_again_after(server);
    case 11:
      if (&shard == static_cast<Machine*>(&server) && servers_.size() > 1) return;
      shard.cut_power();
      return start_again_after(shard);
    default:
      // Without a journal the end of a job is in its last checkpoint alone: if that finds a full
      // disk and the server is killed, workers that have ended do not come back.
      if (around_.plan.has_peers()) return;
      return (random.below(2) == 0 ? static_cast<Machine&>(server) : shard).fill_disk(time);
  }
}

void Job::fail_disk(CounterRng& random) {
  ++injected_;
  const std::size_t which = random.below(servers_.size() + shards_.size());
  Machine& machine = which < servers_.size()
                         ? static_cast<Machine&>(servers_[which])
                         : static_cast<Machine&>(shards_[which - servers_.size()]);
  machine.fail_disk(milliseconds(1 + random.below(300)));
}

/// Processes that gave up are started again, as a supervisor does: a server whose disk is full as
/// it starts, a shard server that gets another run's number from a server that was killed before
/// it had a state.
void Job::supervise() {
  for (ServerProgram& one : servers_)
    if (one.is_up() && one.ended() && !one.ended()->ok()) one.start();
  for (ShardProgram& one : shards_)
    if (one.has_failed() || (around_.plan.drains_servers && one.has_ended())) one.start();
}

void Job::watch() {
  for (ServerProgram& one : servers_) {
    const auto present = one.view();
    if (!present || present->lead.role == "standby") continue;
    primary_ = &one;
    if (present->state == "halted") around_.fault("the job halted: " + present->state_reason);
    newest_ = std::max(newest_, present->version);
    const std::string position =
        one.name() + " " + present->state + " " + std::to_string(present->version);
    if (std::exchange(position_, position) != position) {
      moved_ = around_.world.time();
      looks_ = 0;
    }
    if (around_.world.time() - moved_ < kNamedWithin || present->state != "training") continue;
    const auto waits =
        one.ask<std::vector<server::WaitView>>([](server::Control& c) { return c.waits(); });
    if (!waits) continue;
    looks_ = waits->empty() ? looks_ + 1 : 0;
    if (looks_ == kMostLooks)
      around_.fault("version " + std::to_string(present->version) +
                    " stands still and nobody says why");
  }
}

/// Go back to a checkpoint. Whatever becomes of it, the versions behind may be made once more.
void Job::restore(CounterRng& random) {
  const auto all = primary().ask<std::vector<server::CheckpointView>>(
      [](server::Control& control) { return control.checkpoints(); });
  if (!all || all->empty()) return;
  const std::uint64_t version = (*all)[random.below(all->size())].version;
  around_.world.note("restore checkpoint " + std::to_string(version));
  around_.ledger.go_back(around_.plan.rounds + 1, version);
  const auto restored = primary().ask<Result<server::RestoreView>>(
      [version](server::Control& control) { return control.restore_checkpoint(version, true); });
  if (restored) around_.world.note(restored->ok() ? "restored" : restored->error().to_string());
}

/// A shard server that is drained ends, and its supervisor starts it again. (While the job waits
/// for a journal's part on it, to drain it would give up those rounds.)
void Job::drain_server(CounterRng& random) {
  const auto present = primary().view();
  if (!present || present->state != "training") return;
  const std::string name = shards_[random.below(shards_.size())].name();
  around_.world.note("drain " + name);
  (void)primary().ask<Status>(
      [name](server::Control& control) { return control.drain_server(name); });
}

/// A journal that a failed sync has broken begins again with the round behind a checkpoint: it is
/// no longer in a segment of before.
void Job::look_for_trouble() {
  const auto present = primary().view();
  const auto all = primary().ask<std::vector<server::CheckpointView>>(
      [](server::Control& control) { return control.checkpoints(); });
  const auto servers = primary().ask<std::vector<server::ServerView>>(
      [](server::Control& control) { return control.servers(); });
  if (!servers || !present || !all || all->empty()) return;
  const std::uint64_t written = all->front().version;
  for (const server::ServerView& one : *servers) {
    const std::size_t name = one.trouble.find("/journal-");
    if (!one.trouble.starts_with("sync") || name == std::string::npos) continue;
    const std::uint64_t segment = std::strtoull(one.trouble.c_str() + name + 9, nullptr, 10);
    if (segment + 1 < written && present->version > written + kMostInTrouble)
      around_.fault(one.name + " stays in trouble behind checkpoint " + std::to_string(written) +
                    ": " + one.trouble);
  }
}

/// What a person and their tools ask for, now and then.
void Job::operate() {
  World& world = around_.world;
  CounterRng random(around_.plan.seed, 7), rare(around_.plan.seed, 9);
  while (!around_.is_over) {
    world.let_pass(milliseconds(50 + random.below(1500)));
    if (around_.is_over) return;
    if (around_.plan.disk_errors > 0) look_for_trouble();
    if (around_.plan.restores && rare.below(10) == 0) restore(rare);
    if (around_.plan.drains_servers && rare.below(10) == 0) drain_server(rare);
    switch (random.below(6)) {
      case 0: {
        const auto made = primary().ask<Result<server::CheckpointView>>(
            [](server::Control& control) { return control.make_checkpoint(); });
        if (made)
          world.note("checkpoint asked for: " +
                     (made->ok() ? "written" : std::string(to_string(made->error().code()))));
        break;
      }
      case 1: {
        (void)primary().ask<Result<server::ActView>>([](server::Control& c) { return c.pause(); });
        world.let_pass(milliseconds(random.below(1000)));
        while (!around_.is_over) {
          const auto resumed =
              primary().ask<Result<server::ActView>>([](server::Control& c) { return c.resume(); });
          const bool is_done = resumed && (resumed->ok() || resumed->error().code() ==
                                                                ErrorCode::kFailedPrecondition);
          if (is_done) break;
          world.let_pass(milliseconds(100));
        }
        break;
      }
      case 2: {
        const auto members = primary().ask<std::vector<server::WorkerView>>(
            [](server::Control& control) { return control.workers(); });
        if (!members || members->empty()) break;
        const std::uint64_t member = (*members)[random.below(members->size())].member;
        world.note("drain member " + std::to_string(member));
        (void)primary().ask<Status>(
            [member](server::Control& control) { return control.drain(member); });
        break;
      }
      case 3:
        (void)primary().ask<Result<server::ParametersView>>(
            [](server::Control& c) { return c.parameters(); });
        break;
      default:
        (void)primary().ask<std::vector<server::RoundView>>(
            [](server::Control& control) { return control.rounds(100, std::nullopt); });
        (void)primary().ask<std::vector<server::ServerView>>(
            [](server::Control& c) { return c.servers(); });
    }
  }
}

}  // namespace centroid::simulation
