// simulation_test [--seeds FIRST-LAST] [--print]: jobs of the real server in virtual time.
//
// A seed decides everything. Where an oracle finds a fault the seed and the plan are printed: the
// same command with that seed gives the same run.

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <gtest/gtest.h>

#include "common/base/log.h"
#include "tests/simulation/job.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::simulation {
namespace {

std::uint64_t first_seed = 1, last_seed = 20;
bool prints = false;

Outcome play(std::uint64_t seed) {
  TemporaryDirectory folder;
  Job job(Plan::draw(seed), folder.path(), prints);
  return job.run();
}

TEST(Simulation, EverySeedEndsWithWhatTheLedgerSays) {
  std::uint64_t rounds = 0, injected = 0;
  const std::clock_t begin = std::clock();
  for (std::uint64_t seed = first_seed; seed <= last_seed; ++seed) {
    const Outcome outcome = play(seed);
    rounds += outcome.rounds;
    injected += outcome.injected;
    std::printf(
        "seed %llu: %llu rounds, %llu checked, %llu faults, %.1f s, %llu switches, log %016llx\n",
        static_cast<unsigned long long>(seed), static_cast<unsigned long long>(outcome.rounds),
        static_cast<unsigned long long>(outcome.checked),
        static_cast<unsigned long long>(outcome.injected), outcome.seconds,
        static_cast<unsigned long long>(outcome.switches),
        static_cast<unsigned long long>(outcome.log_hash));
    for (const std::string& fault : outcome.faults)
      ADD_FAILURE() << Plan::draw(seed).to_string() << ": " << fault;
  }
  std::printf("%llu rounds, %llu faults, %.1f s of processor time\n",
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(injected),
              static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
}

TEST(Simulation, SameSeedGivesTheSameLog) {
  EXPECT_EQ(play(first_seed).log_hash, play(first_seed).log_hash);
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
    } else if (word == "--seeds" && i + 1 < argc) {
      const char* const text = argv[++i];
      const char* const end = text + std::strlen(text);
      const auto first = std::from_chars(text, end, first_seed);
      last_seed = first_seed;
      if (first.ptr != end) std::from_chars(first.ptr + 1, end, last_seed);
    } else {
      std::fprintf(stderr, "usage: simulation_test [--seeds FIRST-LAST] [--print]\n");
      return 2;
    }
  }
  if (!centroid::log::configure(level, centroid::log::Format::kText).ok()) return 2;
  return RUN_ALL_TESTS();
}
