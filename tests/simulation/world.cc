#include "tests/simulation/world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace centroid::simulation {
namespace {

// A cluster of ten processes has turns of some hundred switches; more without time moving is a
// busy loop.
constexpr std::uint64_t kMostTurns = 5'000'000;
constexpr double kUnixBegin = 1.7e9;
/// Of virtual time: no job takes so long, but a wait without end does.
constexpr std::chrono::hours kLongestRun{100};

double to_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

World::World(std::uint64_t seed) : random_(seed) {
  nature_ = &add_process("nature");
  nature_->clock_ahead = {};
  set_current(this);
}

World::~World() { set_current(nullptr); }

Process& World::add_process(std::string name) {
  Process& process = processes_.emplace_back();
  process.name = std::move(name);
  process.clock_ahead = std::chrono::seconds(random_.below(1'000'000));
  return process;
}

Host::Number World::start(Process& process, std::string name, std::function<void()> body) {
  auto thread = std::make_unique<Thread>();
  thread->number = ++last_thread_;
  thread->name = process.name + "/" + name;
  thread->process = &process;
  thread->storage.storage = process.storage;
  thread->fiber = std::make_unique<test::Fiber>(std::move(body));
  threads_.push_back(std::move(thread));
  return last_thread_;
}

void World::run(std::function<void()> driver) {
  start(*nature_, "driver", std::move(driver));
  const TimePoint limit = time_ + kLongestRun;
  std::uint64_t turns = 0;
  const auto is_over = [&] {
    return std::ranges::none_of(threads_, [](const auto& t) { return t->state != State::kDone; });
  };
  while (!is_over()) {
    if (run_threads()) {
      if (++turns > kMostTurns) give_up("time stands still");
      continue;
    }
    turns = 0;
    move_time();
    if (time_ > limit) give_up("it does not end");
  }
  threads_.clear();
}

Process& World::process() {
  if (running_ != nullptr) return *running_->process;
  return acting_ != nullptr ? *acting_ : *nature_;
}

void World::freeze(Process& process, Duration time) {
  process.frozen_until = std::max(process.frozen_until, time_ + time);
}

void World::let_pass(Duration time) {
  const TimePoint until = now() + time;
  while (now() < until) block(nullptr, until);
}

double World::seconds() const { return to_seconds(time_ - TimePoint(std::chrono::hours(1))); }

void World::note(const std::string& event) {
  for (const char c : event) hash_ = mix64(hash_, static_cast<unsigned char>(c));
  hash_ = mix64(hash_, static_cast<std::uint64_t>(time_.time_since_epoch().count()));
  if (prints) std::fprintf(stderr, "%10.6f %s\n", seconds(), event.c_str());
}

TimePoint World::now() const {
  const Process* const of = running_ != nullptr ? running_->process : acting_;
  return of == nullptr ? time_ : time_ + of->clock_ahead;
}

double World::unix_seconds() const { return kUnixBegin + seconds(); }

Host::Number World::add_act(TimePoint when, Act act) {
  act.number = ++last_act_;
  act_of_[last_act_] = acts_.emplace(when, std::move(act));
  return last_act_;
}

Host::Number World::schedule(TimePoint when, std::function<void()> act) {
  Process& of = process();
  // A deadline near the ends of time would leave them.
  const TimePoint local = std::clamp(when, TimePoint(of.clock_ahead), TimePoint::max());
  return add_act(local - of.clock_ahead, {.number = 0, .process = &of, .act = std::move(act)});
}

Host::Number World::schedule_in_world(TimePoint when, std::function<void()> act) {
  return add_act(when, {.number = 0, .process = nullptr, .act = std::move(act)});
}

void World::unschedule(Number timer) {
  const auto found = act_of_.find(timer);
  if (found == act_of_.end()) return;
  acts_.erase(found->second);
  act_of_.erase(found);
}

Host::Number World::start_thread(std::string name, std::function<void()> body) {
  return start(process(), std::move(name), std::move(body));
}

void World::join_thread(Number number) {
  const auto find = [&] {
    return std::ranges::find_if(threads_, [&](const auto& t) { return t->number == number; });
  };
  while (find() != threads_.end() && (*find())->state != State::kDone)
    block((*find()).get(), TimePoint::max());
}

bool World::block(const void* on, TimePoint deadline) {
  Thread& self = *running_;
  self.state = State::kBlocked;
  self.waits_on = on;
  self.is_woken = false;
  self.deadline = deadline == TimePoint::max()
                      ? deadline
                      : std::max(deadline - self.process->clock_ahead, time_);
  test::Fiber::suspend();
  return self.is_woken;
}

void World::wake(const void* on) {
  for (const auto& thread : threads_) {
    if (thread->state != State::kBlocked || thread->waits_on != on || on == nullptr) continue;
    thread->state = State::kReady;
    thread->is_woken = true;
  }
}

void World::yield(bool found_work) {
  running_->state = found_work ? State::kReady : State::kPolling;
  test::Fiber::suspend();
}

/// Each thread that can run, once, in an order that the seed decides. False: nobody found work.
bool World::run_threads() {
  std::vector<Thread*> order;
  order.reserve(threads_.size());
  for (const auto& thread : threads_)
    if (thread->state == State::kReady || thread->state == State::kPolling)
      order.push_back(thread.get());
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
  bool found_work = false;
  for (Thread* thread : order) {
    if (is_frozen(*thread->process)) continue;
    running_ = thread;
    thread->state = State::kReady;
    const storage::ThreadState outside = storage::exchange(thread->storage);
    thread->fiber->resume();
    thread->storage = storage::exchange(outside);
    ++switches_;
    running_ = nullptr;
    found_work = found_work || thread->state != State::kPolling;
    if (!thread->fiber->is_done()) continue;
    thread->state = State::kDone;
    wake(thread);
  }
  std::erase_if(threads_, [](const auto& t) { return t->state == State::kDone; });
  return found_work;
}

/// To the next moment at which something can happen, and let it happen.
void World::move_time() {
  TimePoint next = acts_.empty() ? TimePoint::max() : acts_.begin()->first;
  for (const auto& thread : threads_) {
    const Process& of = *thread->process;
    if (is_frozen(of))
      next = std::min(next, of.frozen_until);
    else if (thread->state == State::kBlocked)
      next = std::min(next, thread->deadline);
  }
  if (next == TimePoint::max()) give_up("nothing can happen any more");
  time_ = std::max(time_, next);
  run_acts();
  for (const auto& thread : threads_) {
    if (thread->state != State::kBlocked || thread->deadline > time_) continue;
    if (is_frozen(*thread->process)) continue;
    thread->state = State::kReady;
  }
}

void World::run_acts() {
  while (!acts_.empty() && acts_.begin()->first <= time_) {
    const auto first = acts_.begin();
    Act act = std::move(first->second);
    acts_.erase(first);
    act_of_.erase(act.number);
    if (act.process != nullptr && is_frozen(*act.process)) {
      const Number number = act.number;
      act_of_[number] = acts_.emplace(act.process->frozen_until, std::move(act));
      continue;
    }
    acting_ = act.process;
    act.act();
    acting_ = nullptr;
  }
}

void World::give_up(const char* why) const {
  std::fprintf(stderr, "simulation: %s at %.6f s\n", why, seconds());
  for (const auto& thread : threads_)
    std::fprintf(stderr, "  %s: %s\n", thread->name.c_str(),
                 thread->state == State::kBlocked   ? "blocked"
                 : thread->state == State::kPolling ? "polls"
                                                    : "ready");
  std::abort();
}

}  // namespace centroid::simulation
