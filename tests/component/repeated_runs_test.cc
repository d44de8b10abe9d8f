#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include <gtest/gtest.h>

#include "common/base/trace_events.h"
#include "tests/support/cluster.h"
#include "tests/support/in_process_transport.h"
#include "tests/unit/temporary_directory.h"

/// A process that trains again and again: a notebook, a search over settings, a long test run.
namespace centroid::test {
namespace {

double resident_mib() {
  ::malloc_trim(0);  // what is free is not held
  std::ifstream in("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  in >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/// What the program has asked for and not given back, whatever the allocator keeps of it.
double in_use_mib() {
  const auto info = ::mallinfo2();  // of all arenas
  return static_cast<double>(info.uordblks + info.hblkhd) / (1 << 20);
}

TEST(RepeatedRuns, MemoryStaysFlat) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps freed memory";
#endif
  constexpr int kRuns = 30, kFirst = 10;
  const auto data = make_blobs(256, 64, 4, 1);
  const auto hub = transport::make_inprocess_hub();
  const auto transports = [hub](Executor executor) {
    return transport::make_inprocess(executor, hub);
  };
  // What is kept of traces is full from here on.
  const trace::EventLane lane("before");
  for (int i = 0; i < 1 << 16; ++i) lane.period(trace::Period::kEpoch, TimePoint(), TimePoint(), 0);
  for (int i = 0; i < 1 << 12; ++i) lane.mark("member.joined", std::string(64, 'x'));
  TemporaryDirectory directory;
  double early = 0, early_in_use = 0, late = 0, in_use = 0;
  for (int run = 1; run <= kRuns; ++run) {
    server::ServerConfig config;
    config.run_dir = directory.path() / std::to_string(run);
    config.workers.min = 2;
    config.goal.rounds = 4;
    config.local.count = 2;
    config.local.outer = "average";
    config.cadence.mode = "tuned";
    config.leaving.when_finished = true;
    TestServer server(config, transports);
    std::vector<WorkerSpec> specs(2);
    specs[0].name = "a";
    specs[1].name = "b";
    // 1.2 MiB of parameters; server and workers hold a dozen planes of them.
    for (WorkerSpec& spec : specs) spec.model = "mlp:64-512-512-4";
    for (const auto& outcome : run_workers(specs, data, server.endpoint(), transports))
      ASSERT_TRUE(outcome.status.ok());
    ASSERT_TRUE(server.join().ok());
    late = resident_mib();  // with the server that has ended, each time
    // The most of ten runs: a block of 1 MiB is there after most of them, not after all.
    if (run == kRuns - 9) in_use = 0;
    in_use = std::max(in_use, in_use_mib());
    if (run == kFirst) early = late, early_in_use = in_use;
  }
  std::printf("after %d runs %.1f MiB resident, %.3f MiB in use; after %d runs %.1f and %.3f\n",
              kFirst, early, early_in_use, kRuns, late, in_use);
  // What the allocator keeps moves by as much as 10 MiB from run to run, with the arenas and stacks
  // of the threads that happened to run at once; planes that were mapped and lost would show there.
  EXPECT_LT(late - early, 16);            // one plane lost in each run would be 24
  EXPECT_LT(in_use - early_in_use, 0.1);  // 5 KiB a run
}

}  // namespace
}  // namespace centroid::test
