#include "server/store/memory_need.h"

#include <sys/resource.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/service/room.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

MemoryQuestion plain(std::uint64_t parameters) {
  MemoryQuestion question;
  question.parameters = parameters;
  question.contribution_bytes = question.result_bytes = 4 * parameters;
  question.workers = 6;
  question.credit_bytes = 128u << 20;
  question.snapshot_bytes = 64u << 20;
  return question;
}

TEST(MemoryNeed, TwoPlanesAndOnePerSlot) {
  EXPECT_EQ(memory_need(plain(1'000'000'000)).planes, 8'000'000'000u);
  MemoryQuestion adam = plain(1'000'000'000);
  adam.slots = 2;
  EXPECT_EQ(memory_need(adam).planes, 16'000'000'000u);
  adam.stores_residual = true;
  EXPECT_EQ(memory_need(adam).planes, 20'000'000'000u);
}

TEST(MemoryNeed, WhatDoesNotGrowWithTheModelStaysSmall) {
  const MemoryNeed need = memory_need(plain(840'000'000));
  EXPECT_LT(need.total() - need.planes, 300u << 20);
}

TEST(MemoryNeed, PoliciesKeepContributionsWhole) {
  MemoryQuestion question = plain(1'000'000'000);
  question.is_elastic = true;
  EXPECT_GE(memory_need(question).contributions, 6u * 4'000'000'000u);
  question.kept = 4;  // as a shard server does
  EXPECT_EQ(memory_need(question).contributions, 4 * 6 * std::uint64_t{4'000'000'000});
}

/// 0.84 billion parameters with quorum:2, of which each may have two contributions here.
TEST(MemoryNeed, ContributionsAreReckonedByWorkersCodecAndFragment) {
  MemoryQuestion question = plain(840'000'000);
  question.is_elastic = true;
  question.workers = 2;
  EXPECT_EQ(memory_need(question).contributions, 13'440'000'000u);
  question.contribution_bytes /= 2;  // bf16
  EXPECT_EQ(memory_need(question).contributions, 6'720'000'000u);
  question.contribution_bytes /= 24;  // as many fragments
  EXPECT_EQ(memory_need(question).contributions, 280'000'000u);
  const std::uint64_t copies = memory_need(question).copies;
  question.result_bytes /= 24;
  EXPECT_EQ(copies - memory_need(question).copies, 3'220'000'000u) << "results, too";
  question.is_elastic = false;
  question.credit_bytes = ~std::uint64_t{0};
  EXPECT_EQ(memory_need(question).contributions, 280'000'000u) << "of two workers, as float32";
}

TEST(MemoryNeed, PoliciesCountTwoImagesOfTheState) {
  MemoryQuestion question = plain(1'000'000'000);
  EXPECT_EQ(memory_need(question).image, 0u);
  const std::uint64_t synchronous = memory_need(question).copies;
  question.is_elastic = question.applies_on_worker = true;
  question.slots = 2;
  const MemoryNeed need = memory_need(question);
  EXPECT_EQ(need.image, 12'000'000'000u) << "parameters and slots";
  EXPECT_EQ(need.copies - synchronous, 2 * need.image + 4'000'000'000u) << "and the results";
}

TEST(MemoryNeed, WhatWaitsForAllWorkersMayBeAllOfARound) {
  MemoryQuestion question = plain(1'000'000'000);
  question.credit_bytes = 1 << 20;
  question.workers = 8;
  EXPECT_EQ(memory_need(question).contributions, 1u << 20);
  question.waits_for_all = true;
  EXPECT_EQ(memory_need(question).contributions, 8 * std::uint64_t{4'000'000'000});
  const std::uint64_t before = memory_need(question).total();
  question.compared_at_once = 4;
  EXPECT_EQ(memory_need(question).total(), before + 4 * 8 * (8 * 16 + 3328));
  question.compared_at_once = 0;
  question.decoded_bytes = 1000;
  EXPECT_EQ(memory_need(question).total(), before + 8 * 1000);
  question.contribution_bytes /= 2;
  EXPECT_EQ(memory_need(question).contributions, 8 * std::uint64_t{2'000'001'000});
}

/// A shard server does not know the codecs: the leader tells it a number of workers with float32.
TEST(MemoryNeed, AShardServerHasRoomForWhatARobustAggregateDecodes) {
  constexpr std::uint64_t kWorkers = 8, kServers = 2, kElements = 4096;
  const ChunkPlan plan =
      ChunkPlan::make({{.name = "w", .dtype = DType::kF32, .shape = {kElements}}}, kElements)
          .value();
  const FragmentPlan fragments = FragmentPlan::make(plan, 1).value();
  const auto planned = [&](const std::set<std::string>& codecs, const std::string& rule) {
    const auto aggregate = AggregateRule::parse(rule).value();
    return without_codec(plan, fragments, codecs, kWorkers, aggregate, kServers).value();
  };
  EXPECT_EQ(planned({"f32"}, "median"), kWorkers);
  EXPECT_EQ(planned({"bf16"}, "mean"), kWorkers / 2);
  EXPECT_EQ(planned({"bf16"}, "median"), kWorkers / 2 + kWorkers) << "the model is four chunks";
  EXPECT_EQ(planned({"int8"}, "median"), planned({"int8"}, "mean") + kWorkers);
  EXPECT_EQ(planned({"f32", "bf16"}, "median"), 2 * kWorkers);
  EXPECT_GT(planned({"bf16"}, "nnm_trimmed_mean:1"), kWorkers / 2 + kWorkers);
}

TEST(MemoryNeed, RefusalNamesBothNumbers) {
  const MemoryNeed need = memory_need(plain(1'000'000'000));
  EXPECT_TRUE(check_memory(need, {need.total(), "memory_limit"}).ok());
  const Status refused = check_memory(need, {need.total() - 1, "memory_limit"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(),
              ::testing::AllOf(::testing::HasSubstr(std::to_string(need.total())),
                               ::testing::HasSubstr(std::to_string(need.total() - 1)),
                               ::testing::HasSubstr("1000000000 parameters")));
}

TEST(MemoryLimit, SettingWins) {
  EXPECT_EQ(memory_limit(12345).bytes, 12345u);
  EXPECT_EQ(memory_limit(12345).source, "memory_limit");
}

TEST(MemoryLimit, LeastOfMachineAndGroups) {
  const TemporaryDirectory folder;
  const fs::path root = folder.path();
  put(root / "proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\n");
  EXPECT_EQ(memory_limit(0, root.string()).bytes, 1'024'000u);
  put(root / "proc/self/cgroup", "0::/a/b\n");
  put(root / "sys/fs/cgroup/a/b/memory.max", "max\n");
  put(root / "sys/fs/cgroup/a/memory.max", "500000\n");
  const MemoryLimit limit = memory_limit(0, root.string());
  EXPECT_EQ(limit.bytes, 500'000u);
  EXPECT_THAT(limit.source, ::testing::HasSubstr("/a"));
}

TEST(MemoryLimit, AddressSpaceCountsWithoutWhatIsReserved) {
  const TemporaryDirectory folder;
  const fs::path root = folder.path();
  put(root / "proc/self/status", "VmSize:\t 3000 kB\nVmRSS:\t 1000 kB\n");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = std::uint64_t{1} << 40;  // more than this program needs
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  const MemoryLimit found = memory_limit(0, root.string());
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(found.bytes, (std::uint64_t{1} << 40) - 2'048'000u);
  EXPECT_THAT(found.source, ::testing::HasSubstr("ulimit -v"));
}

TEST(MemoryLimit, FirstVersionOfGroups) {
  const TemporaryDirectory folder;
  const fs::path root = folder.path();
  put(root / "proc/meminfo", "MemTotal:       1000 kB\n");
  put(root / "proc/self/cgroup", "9:name=systemd:/\n4:memory:/box\n0::/\n");
  put(root / "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "400000\n");
  put(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_limit(0, root.string()).bytes, 400'000u);
}

TEST(PeakMemory, IsTheSystemsWord) {
  const TemporaryDirectory folder;
  const fs::path root = folder.path();
  EXPECT_EQ(peak_memory(root.string()), 0u);
  put(root / "proc/self/status",
      "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t     70 kB\nVmRSS:\t 60 kB\n");
  EXPECT_EQ(peak_memory(root.string()), 71'680u);
  EXPECT_GT(peak_memory(), 100'000u);  // this process
}

}  // namespace
}  // namespace centroid::server
