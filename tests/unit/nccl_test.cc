#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/node/nccl_group.h"

/// What the host does with NCCL, against a library that stands in for it. What only GPUs can show
/// is not here.
namespace centroid::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

#ifndef NCCL_STAND_IN
#error "the build says where the library is"
#endif

struct StandIn {
  void (*reset)() = nullptr;
  void (*set)(const char*, int, int) = nullptr;
  int (*is_done)(int) = nullptr;
  int (*done)(int) = nullptr;
  int (*aborts)(int) = nullptr;
  const char* (*calls)() = nullptr;
};

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    handle_ = ::dlopen(NCCL_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle_, nullptr) << ::dlerror();
    find(in_.reset, "stand_in_reset");
    find(in_.set, "stand_in_set");
    find(in_.is_done, "stand_in_is_done");
    find(in_.done, "stand_in_done");
    find(in_.aborts, "stand_in_aborts");
    find(in_.calls, "stand_in_calls");
    in_.reset();
  }
  void TearDown() override { ::dlclose(handle_); }

  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(handle_, name));
    ASSERT_NE(function, nullptr) << name;
  }

  std::unique_ptr<NcclGroup> make(
      int devices, std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000)) {
    std::vector<int> numbers;
    for (int device = 0; device < devices; ++device) numbers.push_back(device);
    NcclGroup::Options options;
    options.timeout = timeout;
    options.poll = std::chrono::milliseconds(1);
    return NcclGroup::make(nccl::Library::load(NCCL_STAND_IN).value(), numbers, options).value();
  }

  Status wait(NcclGroup& group, std::size_t rank) {
    return group.wait(
        rank, [this, rank]() -> Result<bool> { return in_.is_done(static_cast<int>(rank)) == 1; });
  }

  /// `body(rank)` on a thread each; their results.
  template <class Body>
  static std::vector<Status> on_all(std::size_t ranks, const Body& body) {
    std::vector<Status> out(ranks);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { out[rank] = body(rank); });
    for (std::thread& thread : threads) thread.join();
    return out;
  }

  void* handle_ = nullptr;
  StandIn in_;
};

TEST_F(NcclTest, ALibraryThatIsNotThereOrTooOldIsNamedWithTheRemedy) {
  const auto none = nccl::Library::load("libnccl-that-is-not-here.so.2");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(none.error().message(), HasSubstr("libnccl-that-is-not-here.so.2"));
  EXPECT_THAT(none.error().message(), HasSubstr("install NCCL 2.11"));
  const auto other = nccl::Library::load("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), HasSubstr("without ncclGetVersion"));
  in_.set("version", 2804, 0);
  EXPECT_THAT(nccl::Library::load(NCCL_STAND_IN).error().message(),
              HasSubstr("is NCCL 2.8.4, 2.11"));
  in_.set("version", 21003, 0);
  EXPECT_THAT(nccl::Library::load(NCCL_STAND_IN).error().message(), HasSubstr("NCCL 2.10.3"));
  in_.set("version", 21104, 0);
  EXPECT_TRUE(nccl::Library::load(NCCL_STAND_IN).ok());
}

TEST_F(NcclTest, AFailedStartSaysWhatNcclSays) {
  in_.set("fail_init", 1, 0);
  const auto group =
      NcclGroup::make(nccl::Library::load(NCCL_STAND_IN).value(), {0, 1}, NcclGroup::Options());
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(group.error().message(), HasSubstr("ncclCommInitAll: unhandled cuda error"));
}

/// The numbers of the other paths: 1 step of value 1 and 3 of value 5 are 4.
TEST_F(NcclTest, TheMeanIsWeightedBySamples) {
  const auto group = make(2);
  std::array<std::array<float, 3>, 2> x{{{1, 2, -1}, {5, 6, 3}}};
  std::array<std::array<float, 1>, 2> bias{{{10}, {20}}};
  const std::array<double, 2> weights{1, 3};
  const auto done = on_all(2, [&](std::size_t rank) -> Status {
    const std::array<std::span<float>, 2> tensors{std::span<float>(x[rank]),
                                                  std::span<float>(bias[rank])};
    CENTROID_TRY(group->all_reduce(rank, tensors, weights[rank], 4, nullptr));
    return wait(*group, rank);
  });
  for (const Status& status : done) EXPECT_TRUE(status.ok());
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(x[rank], ElementsAre(4, 5, 2));
    EXPECT_THAT(bias[rank], ElementsAre(17.5f));
  }
  EXPECT_STREQ(in_.calls(), "all_reduce all_reduce |");  // one group
}

/// Means of equal weights, of one alone, and what is not finite: it stays so where it is, and
/// nowhere else. The numbers that the host's mean is tested with.
TEST_F(NcclTest, TheMeanOfKnownNumbersIsThatOfTheHost) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto group = make(2);
  std::array<std::array<float, 5>, 2> x{{{1, 2, nan, 1, inf}, {3, 4, 1, inf, -inf}}};
  const auto done = on_all(2, [&](std::size_t rank) -> Status {
    const std::array<std::span<float>, 1> all{std::span<float>(x[rank])};
    CENTROID_TRY(group->all_reduce(rank, all, 3, 6, nullptr));
    return wait(*group, rank);
  });
  for (const Status& status : done) EXPECT_TRUE(status.ok());
  for (const auto& mean : x) {
    EXPECT_EQ(mean[0], 2.0F);
    EXPECT_EQ(mean[1], 3.0F);
    EXPECT_TRUE(std::isnan(mean[2]));
    EXPECT_EQ(mean[3], inf);
    EXPECT_TRUE(std::isnan(mean[4]));
  }
  const auto alone = make(1);
  std::array<float, 1> seven{7};
  const std::array<std::span<float>, 1> all{std::span<float>(seven)};
  ASSERT_TRUE(alone->all_reduce(0, all, 4, 4, nullptr).ok());
  ASSERT_TRUE(wait(*alone, 0).ok());
  EXPECT_EQ(seven[0], 7.0F);
}

TEST_F(NcclTest, ADeviceWithoutSamplesTakesPartWithNothing) {
  const auto group = make(3);
  std::array<std::array<float, 2>, 3> x{{{1, 1}, {99, 99}, {3, 5}}};
  const std::array<double, 3> weights{2, 0, 2};
  on_all(3, [&](std::size_t rank) -> Status {
    const std::array<std::span<float>, 1> tensors{std::span<float>(x[rank])};
    CENTROID_TRY(group->all_reduce(rank, tensors, weights[rank], 4, nullptr));
    return wait(*group, rank);
  });
  for (const auto& one : x) EXPECT_THAT(one, ElementsAre(2, 3));
  const std::array<std::span<float>, 1> tensors{std::span<float>(x[0])};
  EXPECT_THAT(group->all_reduce(0, tensors, 5, 4, nullptr).error().message(), HasSubstr("no part"));
  EXPECT_THAT(group->all_reduce(0, tensors, 0, 0, nullptr).error().message(), HasSubstr("no part"));
}

/// The same mean in parts: 1 step of value 1 and 3 of value 5 are 4, and who has no samples adds
/// nothing.
TEST_F(NcclTest, PartsOfTheSumAreWeightedBySamples) {
  const auto group = make(3);
  std::array<std::array<float, 3>, 3> x{{{1, 2, -1}, {5, 6, 3}, {100, 200, 300}}};
  std::array<std::array<float, 1>, 3> part{};
  const std::array<double, 3> weights{1, 3, 0};
  const auto done = on_all(3, [&](std::size_t rank) -> Status {
    CENTROID_TRY(group->reduce_scatter(rank, x[rank], part[rank], weights[rank], 4, nullptr));
    return wait(*group, rank);
  });
  for (const Status& status : done) EXPECT_TRUE(status.ok());
  EXPECT_THAT(part[0], ElementsAre(4));
  EXPECT_THAT(part[1], ElementsAre(5));
  EXPECT_THAT(part[2], ElementsAre(2));
}

TEST_F(NcclTest, PartsOfTheSumAndBackAgainAreTheSum) {
  const auto group = make(2);
  std::array<std::array<float, 4>, 2> x{{{1, 2, 3, 4}, {5, 6, 7, 8}}}, whole{};
  std::array<std::array<float, 2>, 2> part{};
  std::array<std::array<float, 2>, 2> given{{{7, 8}, {0, 0}}};
  on_all(2, [&](std::size_t rank) -> Status {
    CENTROID_TRY(group->reduce_scatter(rank, x[rank], part[rank], 1, 2, nullptr));
    CENTROID_TRY(group->all_gather(rank, part[rank], whole[rank], nullptr));
    const std::array<std::span<float>, 1> tensors{std::span<float>(given[rank])};
    CENTROID_TRY(group->broadcast(rank, tensors, 0, nullptr));
    return wait(*group, rank);
  });
  EXPECT_THAT(part[0], ElementsAre(3, 4));
  EXPECT_THAT(part[1], ElementsAre(5, 6));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(whole[rank], ElementsAre(3, 4, 5, 6));
    EXPECT_THAT(given[rank], ElementsAre(7, 8));
  }
  EXPECT_STREQ(in_.calls(), "reduce_scatter | all_gather | broadcast |");
  // Parts are equal: other lengths are refused with the numbers, and nothing is begun.
  const std::span<const float> three = std::span(x[0]).first(3);
  const std::array<Status, 3> refused{group->reduce_scatter(0, three, part[0], 1, 2, nullptr),
                                      group->reduce_scatter(0, x[0], x[1], 1, 2, nullptr),
                                      group->all_gather(0, part[0], part[1], nullptr)};
  const std::array<const char*, 3> why{
      "reduce-scatter: 3 numbers are not 2 equal parts of 2, one for each device: it takes 4",
      "reduce-scatter: 4 numbers are not 2 equal parts of 4, one for each device: it takes 8",
      "all-gather: 2 numbers are not 2 equal parts of 2, one for each device: it takes 4"};
  for (std::size_t i = 0; i < refused.size(); ++i) {
    ASSERT_FALSE(refused[i].ok());
    EXPECT_EQ(refused[i].error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused[i].error().message(), HasSubstr(why[i]));
  }
  EXPECT_STREQ(in_.calls(), "reduce_scatter | all_gather | broadcast |");
  EXPECT_FALSE(group->broadcast(0, {}, 2, nullptr).ok());
  EXPECT_FALSE(group->failure());
}

/// Rank 1 never comes: rank 0, joined first, is let go by the watch, not by a join.
TEST_F(NcclTest, ARankThatNeverComesEndsTheWaitOfTheOthers) {
  const auto group = make(2, std::chrono::milliseconds(50));
  std::array<float, 2> x{1, 2};
  Status ended;
  std::thread first([&] {
    const std::array<std::span<float>, 1> tensors{std::span<float>(x)};
    ended = group->all_reduce(0, tensors, 1, 2, nullptr);
    if (ended.ok()) ended = wait(*group, 0);
  });
  first.join();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(ended.error().message(),
              HasSubstr("ncclAllReduce of device 0 has not ended within 50 ms"));
  EXPECT_THAT(ended.error().message(), HasSubstr("not started by device 1"));
  // Nothing goes on after it.
  const std::array<std::span<float>, 1> tensors{std::span<float>(x)};
  EXPECT_FALSE(group->all_reduce(1, tensors, 1, 2, nullptr).ok());
  EXPECT_FALSE(wait(*group, 1).ok());
  group->abort("again");
  group->abort("and again");
  EXPECT_EQ(in_.aborts(0), 1);
  EXPECT_EQ(in_.aborts(1), 1);
  EXPECT_THAT(x, ElementsAre(1, 2));
}

// What a rank has seen end says nothing of what it called later: that stays under the watch, and
// is seen by `settle`.
TEST_F(NcclTest, ALaterOperationIsWatchedWhenAnEarlierOneIsOver) {
  for (const bool is_settled : {false, true}) {
    SCOPED_TRACE(is_settled ? "settled" : "waited for");
    in_.reset();
    const auto group = make(2, std::chrono::milliseconds(is_settled ? 60'000 : 1000));
    std::array<float, 1> x{1}, y{2}, z{3};
    const auto add = [&](std::size_t rank, std::array<float, 1>& of) {
      const std::array<std::span<float>, 1> tensors{std::span<float>(of)};
      return group->all_reduce(rank, tensors, 1, 2, nullptr);
    };
    const auto has_done = [this](int count) {
      return [this, count] { return Result<bool>(in_.done(0) >= count); };
    };
    ASSERT_TRUE(add(0, x).ok() && add(1, y).ok());
    const std::uint64_t calls = group->calls(0);
    ASSERT_TRUE(add(0, z).ok());
    ASSERT_TRUE(group->wait(0, has_done(1), calls).ok());
    EXPECT_THAT(x, ElementsAre(1.5F));
    ASSERT_TRUE(wait(*group, 1).ok());
    const Status ended = is_settled ? group->settle() : group->wait(0, has_done(2));
    ASSERT_FALSE(ended.ok());
    EXPECT_THAT(
        ended.error().message(),
        HasSubstr(is_settled ? "ncclAllReduce of device 0 was under way"
                             : "ncclAllReduce of device 0 has not ended within 1000 ms; not "
                               "started by device 1"));
    EXPECT_EQ(in_.aborts(0), 1);
  }
}

TEST_F(NcclTest, AnErrorOnOneDeviceEndsAllOfThem) {
  const auto group = make(2);
  std::array<float, 1> x{1};
  Status ended;
  std::thread waiting([&] {
    const std::array<std::span<float>, 1> tensors{std::span<float>(x)};
    ended = group->all_reduce(0, tensors, 1, 2, nullptr);
    if (ended.ok()) ended = wait(*group, 0);
  });
  in_.set("async_error", 1, 1);
  waiting.join();
  ASSERT_FALSE(ended.ok());
  EXPECT_THAT(ended.error().message(), HasSubstr("device 1: unhandled cuda error"));
  EXPECT_EQ(in_.aborts(0), 1);
  EXPECT_EQ(in_.aborts(1), 1);
}

TEST_F(NcclTest, ACallThatFailsAbortsOnce) {
  const auto group = make(2);
  in_.set("fail_call", 0, 1);
  std::array<std::array<float, 1>, 2> x{{{1}, {2}}};
  const auto ended = on_all(2, [&](std::size_t rank) -> Status {
    const std::array<std::span<float>, 1> tensors{std::span<float>(x[rank])};
    CENTROID_TRY(group->all_reduce(rank, tensors, 1, 2, nullptr));
    return wait(*group, rank);
  });
  for (const Status& status : ended) {
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(), HasSubstr("ncclAllReduce: unhandled cuda error"));
  }
  EXPECT_EQ(in_.aborts(0), 1);
  EXPECT_EQ(in_.aborts(1), 1);
}

TEST_F(NcclTest, AFailedStreamAbortsToo) {
  const auto group = make(2);
  std::array<float, 1> x{1};
  const std::array<std::span<float>, 1> tensors{std::span<float>(x)};
  ASSERT_TRUE(group->all_reduce(0, tensors, 1, 2, nullptr).ok());
  const Status ended = group->wait(
      0, []() -> Result<bool> { return Error(ErrorCode::kInternal, "an illegal address"); });
  ASSERT_FALSE(ended.ok());
  EXPECT_THAT(ended.error().message(), HasSubstr("device 0: an illegal address"));
}

/// Before a copy from a device: nothing may wait in front of it.
TEST_F(NcclTest, SnapshotsComeAfterAnAbortOrAfterTheEnd) {
  auto group = make(2);
  std::array<std::array<float, 1>, 2> x{{{1}, {3}}};
  const auto reduce = [&](std::size_t rank) -> Status {
    const std::array<std::span<float>, 1> tensors{std::span<float>(x[rank])};
    CENTROID_TRY(group->all_reduce(rank, tensors, 1, 2, nullptr));
    return wait(*group, rank);
  };
  on_all(2, reduce);
  EXPECT_TRUE(group->settle().ok());
  EXPECT_EQ(in_.aborts(0), 0);
  const std::array<std::span<float>, 1> tensors{std::span<float>(x[0])};
  ASSERT_TRUE(group->all_reduce(0, tensors, 1, 2, nullptr).ok());
  const Status settled = group->settle();
  ASSERT_FALSE(settled.ok());
  EXPECT_THAT(settled.error().message(), HasSubstr("ncclAllReduce of device 0 was under way"));
  EXPECT_EQ(in_.aborts(0), 1);  // done when it returns
  EXPECT_EQ(in_.aborts(1), 1);
  EXPECT_FALSE(group->settle().ok());
  group.reset();
  EXPECT_EQ(in_.aborts(0), 1);
}

TEST_F(NcclTest, ManyRoundsOnManyDevices) {
  constexpr std::size_t kRanks = 8;
  const auto group = make(kRanks);
  std::vector<std::vector<float>> x(kRanks, std::vector<float>(17));
  const auto done = on_all(kRanks, [&](std::size_t rank) -> Status {
    for (int round = 0; round < 50; ++round) {
      std::ranges::fill(x[rank], static_cast<float>(rank + 1));
      const std::array<std::span<float>, 1> tensors{std::span<float>(x[rank])};
      CENTROID_TRY(group->all_reduce(rank, tensors, 1, kRanks, nullptr));
      CENTROID_TRY(wait(*group, rank));
      for (const float value : x[rank])
        if (value != 4.5f) return Error(ErrorCode::kInternal, std::to_string(value));
    }
    return {};
  });
  for (const Status& status : done) EXPECT_TRUE(status.ok()) << status.error().message();
}

/// From here on this process gets no thread. False where the system lets it have them all the same.
bool has_no_more_threads() {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0 && ::setuid(kNobody) != 0) return false;  // root has no limit
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  if (::setrlimit(RLIMIT_NPROC, &none) != 0) return false;
  try {
    std::thread([] {}).join();
    return false;
  } catch (const std::system_error&) {
    return true;
  }
}
constexpr int kEnded = 0, kHasThreads = 77;

/// A machine that has no thread left when a group ends, or is aborted, ends it all the same.
TEST_F(NcclTest, EndsAndAbortsWithoutANewThread) {
  for (const bool aborts : {false, true}) {
    SCOPED_TRACE(aborts);
    const auto end = [&] {
      auto group = make(3);
      if (!has_no_more_threads()) ::_exit(kHasThreads);
      if (aborts) group->abort("a test");
      group.reset();
      ::_exit(in_.aborts(2) == (aborts ? 1 : 0) ? kEnded : 1);
    };
    const auto is_known = [](int status) {
      return WIFEXITED(status) &&
             (WEXITSTATUS(status) == kEnded || WEXITSTATUS(status) == kHasThreads);
    };
    EXPECT_EXIT(end(), is_known, "");
  }
}

/// And one that has none when a group is made says so.
TEST_F(NcclTest, AGroupThatGetsNoThreadsSaysSo) {
  const auto begin = [] {
    const auto library = nccl::Library::load(NCCL_STAND_IN).value();
    if (!has_no_more_threads()) ::_exit(kHasThreads);
    const auto group = NcclGroup::make(library, {0, 1}, {});
    const bool is_said = !group.ok() && group.error().code() == ErrorCode::kResourceExhausted &&
                         group.error().message().find("no threads for 2") != std::string::npos;
    ::_exit(is_said ? kEnded : 1);
  };
  const auto is_known = [](int status) {
    return WIFEXITED(status) &&
           (WEXITSTATUS(status) == kEnded || WEXITSTATUS(status) == kHasThreads);
  };
  EXPECT_EXIT(begin(), is_known, "");
}

}  // namespace
}  // namespace centroid::worker
