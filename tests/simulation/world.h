#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/host.h"
#include "common/base/random.h"
#include "common/storage/storage.h"
#include "tests/support/fiber.h"

namespace centroid::simulation {

/// One simulated process. Its clock has an origin of its own.
struct Process {
  std::string name;
  Duration clock_ahead{};    ///< of the world's time
  TimePoint frozen_until{};  ///< it stands still until then: neither threads nor timers run
  /// It was killed: nobody sees what it still does, and its end is waited for by itself.
  bool is_killed = false;
  storage::Storage* storage = nullptr;  ///< of its threads; nullptr: the operating system's
};

/// All processes of a simulated cluster on one thread, with virtual time. A seed decides in which
/// order threads run and what `random` gives; time moves on only when no thread can run.
///
/// thread  its maker's; while it lives it is that thread's Host
class World final : public Host {
 public:
  explicit World(std::uint64_t seed);
  ~World() override;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Process& add_process(std::string name);
  /// Start a thread of `process`.
  Number start(Process& process, std::string name, std::function<void()> body);
  /// Run `driver` as a thread of a process of its own, and all others until all have ended. Aborts
  /// where nothing can happen any more, and says who waits.
  void run(std::function<void()> driver);
  /// The process of the running thread.
  Process& process();
  void freeze(Process& process, Duration time);
  /// Block the running thread.
  void let_pass(Duration time);

  TimePoint time() const { return time_; }  ///< the world's
  double seconds() const;                   ///< since it began
  /// As `schedule`, by the world's time, and also while the process stands still.
  Number schedule_in_world(TimePoint when, std::function<void()> act);
  CounterRng& random_numbers() { return random_; }

  /// An event of the run: goes into the hash, and to stderr where `prints`.
  void note(const std::string& event);
  std::uint64_t log_hash() const { return hash_; }
  std::uint64_t switches() const { return switches_; }
  bool prints = false;

  // Host
  TimePoint now() const override;
  double unix_seconds() const override;
  std::uint64_t random() override { return random_.next(); }
  unsigned cores() const override { return 1; }
  Number schedule(TimePoint when, std::function<void()> act) override;
  void unschedule(Number timer) override;
  Number start_thread(std::string name, std::function<void()> body) override;
  void join_thread(Number thread) override;
  bool block(const void* on, TimePoint deadline) override;
  void wake(const void* on) override;
  void yield(bool found_work) override;

 private:
  enum class State : std::uint8_t { kReady, kPolling, kBlocked, kDone };
  struct Thread {
    Number number = 0;
    std::string name;
    Process* process = nullptr;
    std::unique_ptr<test::Fiber> fiber;
    State state = State::kReady;
    const void* waits_on = nullptr;
    TimePoint deadline{};  // of the world
    bool is_woken = false;
    storage::ThreadState storage;
  };
  struct Act {
    Number number = 0;
    Process* process = nullptr;  ///< nullptr: of the world
    std::function<void()> act;
  };
  using Acts = std::multimap<TimePoint, Act>;

  Number add_act(TimePoint when, Act act);
  bool run_threads();
  void move_time();
  void run_acts();
  [[noreturn]] void give_up(const char* why) const;  ///< says who waits
  bool is_frozen(const Process& process) const { return process.frozen_until > time_; }

  CounterRng random_;
  TimePoint time_{std::chrono::hours(1)};
  std::deque<Process> processes_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Number last_thread_ = 0, last_act_ = 0;
  Acts acts_;
  std::map<Number, Acts::iterator> act_of_;
  Thread* running_ = nullptr;
  Process* acting_ = nullptr;  ///< whose timer runs
  Process* nature_ = nullptr;  ///< the driver's
  std::uint64_t hash_ = 0, switches_ = 0;
};

}  // namespace centroid::simulation
