// Fibers are left by longjmp, which a fortified C library reports as an error.
#undef _FORTIFY_SOURCE

#include "tests/support/simt.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/random.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace centroid::simt {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr unsigned kWarp = 32, kMostThreads = 1024;

struct Fiber {
  ucontext_t context{};  // for its start
  jmp_buf where{};       // afterwards: no system call, ten times faster than ucontext
  bool has_begun = false;
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  Place place;
  bool is_done = false;
  const std::uint64_t* waits_for = nullptr;  // runnable when this is no longer `waits_while`
  std::uint64_t waits_while = 0;
  void* fake_stack = nullptr;
};

struct Warp {
  std::array<std::array<std::uint64_t, kWarp>, 2> values{};  // used alternately
  std::uint64_t turn = 0;
  std::uint32_t mask = 0, arrived = 0;
  int what = 0;
};

/// The one machine: fibers of a block, its warps, its barrier.
struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  std::uint64_t barrier_turn = 0;
  unsigned barrier_arrived = 0, threads = 0;
  ucontext_t beginner{};
  jmp_buf scheduler{};
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_bottom = nullptr;
  std::size_t scheduler_bytes = 0;
  Fiber* running = nullptr;
  const std::function<void()>* kernel = nullptr;
  CounterRng random{1};
  std::uint64_t launches = 0;
};

Machine& machine() {
  static Machine only;
  return only;
}

// The address sanitizer must be notified of every change of stacks.
void leave_for_fiber([[maybe_unused]] Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&machine().scheduler_fake_stack, fiber.stack.get(), kStackBytes);
#endif
}
void back_in_scheduler() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(machine().scheduler_fake_stack, nullptr, nullptr);
#endif
}
void leave_for_scheduler([[maybe_unused]] Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  Machine& m = machine();
  __sanitizer_start_switch_fiber(&fiber.fake_stack, m.scheduler_bottom, m.scheduler_bytes);
#endif
}
void back_in_fiber([[maybe_unused]] Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  Machine& m = machine();
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &m.scheduler_bottom, &m.scheduler_bytes);
#endif
}

[[gnu::noinline]] void leave(Fiber& fiber) {
  leave_for_scheduler(fiber);
  if (_setjmp(fiber.where) == 0) _longjmp(machine().scheduler, 1);
  back_in_fiber(*machine().running);
}

/// A fiber is reused, so it never returns.
void body() {
  Fiber& fiber = *machine().running;
  back_in_fiber(fiber);
  for (;;) {
    (*machine().kernel)();
    fiber.is_done = true;
    leave(fiber);
  }
}

void wait_while(const std::uint64_t& counter, std::uint64_t value) {
  Fiber& fiber = *machine().running;
  fiber.waits_for = &counter;
  fiber.waits_while = value;
  leave(fiber);
}

[[gnu::noinline]] void resume(Fiber& fiber) {
  fiber.waits_for = nullptr;
  machine().running = &fiber;
  leave_for_fiber(fiber);
  if (_setjmp(machine().scheduler) == 0) {
    if (std::exchange(fiber.has_begun, true)) _longjmp(fiber.where, 1);
    swapcontext(&machine().beginner, &fiber.context);
  }
  back_in_scheduler();
  machine().running = nullptr;
}

std::unique_ptr<Fiber> make_fiber() {
  auto fiber = std::make_unique<Fiber>();
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, body, 0);
  return fiber;
}

void run_block() {
  constexpr int kRounds = 32;  // in which only some threads run
  Machine& m = machine();
  std::vector<unsigned> order(m.threads);
  for (unsigned i = 0; i < m.threads; ++i) order[i] = i;
  std::size_t some = 0;
  int rounds = 0;
  for (unsigned left = m.threads; left > 0;) {
    if (rounds-- == 0) {  // choose another first thread, direction and share of the threads
      const auto first = static_cast<std::ptrdiff_t>(m.random.below(m.threads));
      std::rotate(order.begin(), order.begin() + first, order.end());
      if (m.random.below(2) != 0) std::reverse(order.begin(), order.end());
      some = 1 + m.random.below(m.threads);
      rounds = kRounds;
    }
    bool has_moved = false;
    for (const unsigned i : std::span(order).first(some)) {
      Fiber& fiber = *m.fibers[i];
      if (fiber.is_done || (fiber.waits_for != nullptr && *fiber.waits_for == fiber.waits_while))
        continue;
      resume(fiber);
      has_moved = true;
      if (fiber.is_done) --left;
    }
    if (has_moved) continue;
    if (some == m.threads) fail("threads wait for others that never come");
    some = m.threads;  // try all once, to detect a deadlock
    rounds = 0;
  }
}

}  // namespace

void fail(const char* what) {
  const Machine& m = machine();
  const Place at = m.running != nullptr ? m.running->place : Place{};
  std::fprintf(stderr, "simt: %s (launch %llu, block %u, thread %u)\n", what,
               static_cast<unsigned long long>(m.launches), at.block.x, at.thread.x);
  std::abort();
}

void use_seed(std::uint64_t seed) { machine().random = CounterRng(seed); }
std::uint64_t launches() { return machine().launches; }
const Place& place() { return machine().running->place; }

void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  Machine& m = machine();
  ++m.launches;
  if (m.running != nullptr) fail("a kernel is launched by a kernel");
  if (blocks == 0 || blocks > 0x7FFFFFFFu) fail("a grid has 1 to 2^31 - 1 blocks");
  if (threads == 0 || threads > kMostThreads) fail("a block has 1 to 1024 threads");
  while (m.fibers.size() < threads) m.fibers.push_back(make_fiber());
  m.threads = threads;
  m.kernel = &kernel;
  for (unsigned block = 0; block < blocks; ++block) {
    m.warps.assign((threads + kWarp - 1) / kWarp, Warp{});
    m.barrier_arrived = 0;
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& fiber = *m.fibers[i];
      fiber.place = {{i}, {block}, {threads}, {blocks}};
      fiber.is_done = false;
      fiber.waits_for = nullptr;
    }
    run_block();
    if (m.barrier_arrived != 0) fail("threads left while others wait at __syncthreads");
  }
}

void launch_on(void* stream, unsigned blocks, unsigned threads, std::function<void()> kernel) {
  if (stream == nullptr) return launch(blocks, threads, kernel);
  static_cast<Queue*>(stream)->push([blocks, threads, of = std::move(kernel)] {
    launch(blocks, threads, of);
    return true;
  });
}

void sync_threads() {
  Machine& m = machine();
  if (++m.barrier_arrived == m.threads) {
    m.barrier_arrived = 0;
    ++m.barrier_turn;
    return;
  }
  wait_while(m.barrier_turn, m.barrier_turn);
}

const std::array<std::uint64_t, 32>& meet(std::uint32_t mask, std::uint64_t value, int what) {
  Warp& warp = machine().warps[place().thread.x / kWarp];
  const std::uint32_t me = std::uint32_t{1} << lane();
  if ((mask & me) == 0) fail("a lane takes part in a collective whose mask leaves it out");
  if (warp.arrived == 0) {
    warp.mask = mask;
    warp.what = what;
  } else if (warp.mask != mask || warp.what != what) {
    fail("lanes of a warp are at different collectives");
  }
  const std::uint64_t turn = warp.turn;
  warp.values[turn % 2][lane()] = value;
  warp.arrived |= me;
  if (warp.arrived == mask) {
    warp.arrived = 0;
    ++warp.turn;
  } else {
    wait_while(warp.turn, turn);
  }
  return warp.values[turn % 2];
}

}  // namespace centroid::simt
