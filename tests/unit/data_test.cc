#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/permutation.h"
#include "tests/unit/data_fixture.h"
#include "worker/data/command.h"
#include "worker/data/data_source.h"
#include "worker/data/file.h"
#include "worker/data/split.h"

namespace centroid::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Permutation, IsTheSameOnEveryMachine) {
  // From an independent implementation of common/base/random.h and Fisher-Yates in Python.
  EXPECT_THAT(permutation(10, 1, 0), ElementsAre(3, 4, 6, 2, 5, 0, 7, 9, 1, 8));
  EXPECT_THAT(permutation(10, 1, 1), ElementsAre(9, 1, 8, 4, 3, 7, 0, 5, 6, 2));
  EXPECT_THAT(permutation(10, 2, 0), ElementsAre(6, 1, 2, 3, 7, 5, 4, 8, 0, 9));
  const auto digits = permutation(1437, 1, 0);
  EXPECT_THAT(std::vector(digits.begin(), digits.begin() + 4), ElementsAre(919, 1187, 240, 1146));
  EXPECT_EQ(digits.back(), 172U);
}

TEST(Permutation, IsTheOneTheWireContractDescribes) {
  EXPECT_EQ(permutation(10, 1, 0), (std::vector<std::uint64_t>{3, 4, 6, 2, 5, 0, 7, 9, 1, 8}));
  EXPECT_EQ(permutation(10, 1, 1), (std::vector<std::uint64_t>{9, 1, 8, 4, 3, 7, 0, 5, 6, 2}));
}

TEST(Permutation, HoldsEverySampleOnce) {
  EXPECT_TRUE(permutation(0, 1, 1).empty());
  for (const std::uint64_t n : {1, 2, 3, 1000}) {
    auto order = permutation(n, 5, n);
    std::sort(order.begin(), order.end());
    std::vector<std::uint64_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
}

Dataset small_dense() {
  Dataset d;
  d.samples = 3;
  d.features = 2;
  d.classes = 2;
  d.x = {1, 2, 3, 4, 5, 6};
  d.y = {0, 1, 0};
  return d;
}

TEST(Gather, CopiesDenseRowsInTheOrderAsked) {
  const Dataset d = small_dense();
  std::vector<float> x(6);
  std::vector<std::uint32_t> y(3);
  d.gather(std::vector<std::uint64_t>{2, 0, 2}, x, y);
  EXPECT_THAT(x, ElementsAre(5, 6, 1, 2, 5, 6));
  EXPECT_THAT(y, ElementsAre(0, 0, 0));
  d.gather({}, {}, {});
}

TEST(Gather, DensifiesSparseRows) {
  Dataset d;
  d.samples = 3;
  d.features = 4;
  d.classes = 2;
  d.y = {1, 0, 1};
  d.row_begin = {0, 2, 2, 3};
  d.cols = {0, 3, 1};
  d.vals = {.5F, .25F, 1.0F};
  std::vector<float> x(12, 9.0F);
  std::vector<std::uint32_t> y(3);
  d.gather(std::vector<std::uint64_t>{1, 0, 2}, x, y);
  EXPECT_THAT(x, ElementsAre(0, 0, 0, 0, .5F, 0, 0, .25F, 0, 1, 0, 0));
  EXPECT_THAT(y, ElementsAre(0, 1, 1));
}

TEST(Fingerprint, ChangesWithEveryPartOfTheContent) {
  const Dataset d = small_dense();
  std::set<std::uint64_t> seen = {d.fingerprint()};
  EXPECT_EQ(seen, std::set{small_dense().fingerprint()});
  const auto is_new = [&](auto change) {
    Dataset other = small_dense();
    change(other);
    return seen.insert(other.fingerprint()).second;
  };
  EXPECT_TRUE(is_new([](Dataset& o) { o.x[5] = 7; }));
  EXPECT_TRUE(is_new([](Dataset& o) { std::swap(o.x[0], o.x[1]); }));
  EXPECT_TRUE(is_new([](Dataset& o) { o.y[2] = 1; }));
  EXPECT_TRUE(is_new([](Dataset& o) { o.features = 3; }));
  EXPECT_TRUE(is_new([](Dataset& o) { o.classes = 3; }));
  EXPECT_TRUE(is_new([](Dataset& o) { o.samples = 4; }));
  EXPECT_TRUE(is_new([](Dataset& o) { o.row_begin = {0}; }));
  EXPECT_TRUE(is_new([](Dataset& o) { o.cols = {0}; }));
  EXPECT_TRUE(is_new([](Dataset& o) { o.vals = {0}; }));
}

TEST(StratifiedSplit, HoldsOutAFifthOfEveryClassAndNoSampleTwice) {
  Dataset all;
  all.features = 1;
  all.classes = 4;
  const std::vector<std::uint64_t> sizes = {1, 3, 10, 86};
  for (std::uint32_t c = 0; c < sizes.size(); ++c)
    for (std::uint64_t i = 0; i < sizes[c]; ++i) {
      all.x.push_back(static_cast<float>(all.samples++));
      all.y.push_back(c);
    }
  const DataSplit one = stratified_split(all, 1);
  std::vector<std::uint64_t> held_out(4);
  for (const auto label : one.test.y) ++held_out[label];
  EXPECT_THAT(held_out, ElementsAre(0, 1, 2, 17));
  std::vector<float> together = one.train.x;
  together.insert(together.end(), one.test.x.begin(), one.test.x.end());
  std::sort(together.begin(), together.end());
  EXPECT_EQ(together, all.x);
  for (std::size_t i = 0; i < one.test.samples; ++i)
    EXPECT_EQ(one.test.y[i], all.y[static_cast<std::size_t>(one.test.x[i])]);
  EXPECT_EQ(stratified_split(all, 1).test.fingerprint(), one.test.fingerprint());
  EXPECT_NE(stratified_split(all, 2).test.fingerprint(), one.test.fingerprint());
}

TEST(ReadFile, RefusesDamagedCutAndLongFiles) {
  const Folder folder;
  folder.write_gzip("whole.gz", digit_lines(500));
  const std::string whole = slurp(folder.file("whole.gz"));
  ASSERT_GT(whole.size(), 100U);
  ASSERT_TRUE(read_file(folder.file("whole.gz"), 1 << 20, "").ok());
  for (const std::size_t length : {20UL, whole.size() / 2, whole.size() - 8, whole.size() - 1}) {
    folder.write("cut.gz", whole.substr(0, length));
    EXPECT_THAT(read_file(folder.file("cut.gz"), 1 << 20, ""),
                FailsWith(ErrorCode::kDataLoss, HasSubstr("cut.gz")))
        << length;
  }
  std::string flipped = whole;
  flipped[flipped.size() - 6] ^= 1;  // its CRC
  folder.write("flipped.gz", flipped);
  EXPECT_THAT(read_file(folder.file("flipped.gz"), 1 << 20, ""),
              FailsWith(ErrorCode::kDataLoss, HasSubstr("flipped.gz")));
  EXPECT_THAT(read_file(folder.file("whole.gz"), 1000, ""),
              FailsWith(ErrorCode::kDataLoss, HasSubstr("more than 1000 bytes")));
  EXPECT_THAT(read_file(folder.path(), 1000, ""),
              FailsWith(ErrorCode::kDataLoss, HasSubstr(folder.path())));
}

TEST(RunCommand, GivesBackWhatTheProgramWrote) {
  using std::chrono::seconds;
  const auto out = run_command({"printf", "%s;", "a b", "$HOME"}, 100, seconds(30));
  ASSERT_TRUE(out.ok()) << out.error().to_string();
  EXPECT_EQ(*out, "a b;$HOME;");
}

TEST(RunCommand, EveryWayToFailIsAnError) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  EXPECT_THAT(run_command({"no-such-program-here"}, 100, seconds(30)),
              FailsWith(ErrorCode::kNotFound, HasSubstr("no-such-program-here")));
  EXPECT_THAT(run_command({"false"}, 100, seconds(30)),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("false ended with status 1")));
  EXPECT_THAT(run_command({"yes"}, 100'000, seconds(30)),
              FailsWith(ErrorCode::kResourceExhausted, HasSubstr("more than 100000 bytes")));
  EXPECT_THAT(run_command({"sleep", "1000"}, 100, milliseconds(20)),
              FailsWith(ErrorCode::kDeadlineExceeded, HasSubstr("sleep")));
}

TEST(LoadData, AnUnknownSpecListsTheKnown) {
  for (const char* spec : {"", "mnist", "digits:", "idx", "idx:", "packages:", "Digits"}) {
    DataOptions options;
    options.spec = spec;
    EXPECT_THAT(load_data(options),
                FailsWith(ErrorCode::kInvalidArgument,
                          AllOf(HasSubstr("digits"), HasSubstr("idx:DIR"), HasSubstr("packages"))));
  }
}

}  // namespace
}  // namespace centroid::worker
