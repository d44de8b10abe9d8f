// simulation_test [--seeds FIRST-LAST] [--first] [--print]: jobs of the real server in virtual
// time.
//
// A seed decides everything. Where an oracle finds a fault the seed and the plan are printed: the
// same command with that seed gives the same run.

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <gtest/gtest.h>

#include "common/base/log.h"
#include "tests/simulation/job.h"

namespace centroid::simulation {
namespace {

std::uint64_t first_seed = 1, last_seed = 200;
bool prints = false, stops_at_first = false;

Outcome play(const Plan& plan) {
  Job job(plan, prints);
  return job.run();
}

void expect_no_fault(const Plan& plan, const Outcome& outcome) {
  if (!outcome.faults.empty())  // the rest often follows from the first
    ADD_FAILURE() << plan.to_string() << ": " << outcome.faults.front();
}

TEST(Simulation, EverySeedEndsWithWhatTheLedgerSays) {
  Outcome all;
  const std::clock_t begin = std::clock();
  for (std::uint64_t seed = first_seed; seed <= last_seed; ++seed) {
    const Plan plan = Plan::draw(seed);
    const Outcome outcome = play(plan);
    all.rounds += outcome.rounds;
    all.checked += outcome.checked;
    all.injected += outcome.injected;
    all.pulls += outcome.pulls;
    all.seconds += outcome.seconds;
    std::printf("seed %" PRIu64 ": %s, log %016" PRIx64 "\n", seed, outcome.to_string().c_str(),
                outcome.log_hash);
    expect_no_fault(plan, outcome);
    if (stops_at_first && !outcome.faults.empty()) break;
  }
  std::printf("all: %s; %.1f s of processor time\n", all.to_string().c_str(),
              static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
}

TEST(Simulation, SeedsThatFoundAFaultOnceEndWell) {
  for (const std::uint64_t seed : {52u, 54u, 456u, 680u, 813u, 1133u, 1216u, 1430u, 1641u, 2018u,
                                   5801u, 5816u, 6302u, 6438u, 11118u, 15106u, 16153u, 19483u}) {
    Plan plan = Plan::draw(seed);
    plan.local_steps = plan.fragments = 1;  // there were none then
    plan.overlap = 0;
    expect_no_fault(plan, play(plan));
  }
}

TEST(Simulation, SameSeedGivesTheSameLog) {
  const Plan plan = Plan::draw(first_seed);
  EXPECT_EQ(play(plan).log_hash, play(plan).log_hash);
}

}  // namespace
}  // namespace centroid::simulation

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using namespace centroid::simulation;
  centroid::log::Level level = centroid::log::Level::kOff;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--print") {
      prints = true;
      level = centroid::log::Level::kInfo;
    } else if (word == "--first") {
      stops_at_first = true;
    } else if (word == "--seeds" && i + 1 < argc) {
      const char* const text = argv[++i];
      const char* const end = text + std::strlen(text);
      const auto first = std::from_chars(text, end, first_seed);
      last_seed = first_seed;
      if (first.ptr != end) std::from_chars(first.ptr + 1, end, last_seed);
    } else {
      std::fprintf(stderr, "usage: simulation_test [--seeds FIRST-LAST] [--first] [--print]\n");
      return 2;
    }
  }
  if (!centroid::log::configure(level, centroid::log::Format::kText).ok()) return 2;
  return RUN_ALL_TESTS();
}
