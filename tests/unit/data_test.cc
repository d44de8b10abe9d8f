#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "common/base/random.h"
#include "worker/data/command.h"
#include "worker/data/data_source.h"
#include "worker/data/digits.h"
#include "worker/data/file.h"
#include "worker/data/idx.h"
#include "worker/data/packages.h"
#include "worker/data/split.h"

namespace centroid::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pair;

MATCHER_P2(FailsWith, code, message, "") {
  if (arg.ok()) return false;
  *result_listener << arg.error().to_string();
  return arg.error().code() == code &&
         testing::ExplainMatchResult(message, arg.error().message(), result_listener);
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "centroid-data-XXXXXX").string();
    CENTROID_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(file(name), std::ios::binary) << content;
  }
  void write_gzip(const std::string& name, const std::string& content) const {
    const gzFile out = gzopen(file(name).c_str(), "wb");
    gzwrite(out, content.data(), static_cast<unsigned>(content.size()));
    gzclose(out);
  }

 private:
  std::string path_;
};

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string digit_line(unsigned pixel, unsigned label) {
  std::string line;
  for (int i = 0; i < 64; ++i) line += std::to_string(pixel) + ",";
  return line + std::to_string(label);
}

std::string digit_lines(std::size_t count) {
  std::string csv;
  for (std::size_t i = 0; i < count; ++i)
    csv += digit_line(static_cast<unsigned>(i % 17), static_cast<unsigned>(i % 10)) + "\n";
  return csv;
}

std::string word(std::uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xFF);
  return out;
}

std::string idx_images(std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
  std::string out = word(0x803) + word(count) + word(rows) + word(columns);
  for (std::uint32_t i = 0; i < count * rows * columns; ++i) out += static_cast<char>(i % 256);
  return out;
}

std::string idx_labels(const std::string& labels) {
  return word(0x801) + word(static_cast<std::uint32_t>(labels.size())) + labels;
}

// ---- order and data sets

TEST(Permutation, IsTheSameOnEveryMachine) {
  // From an independent implementation of common/base/random.h and Fisher-Yates in Python.
  EXPECT_THAT(permutation(10, 1, 0), ElementsAre(3, 4, 6, 2, 5, 0, 7, 9, 1, 8));
  EXPECT_THAT(permutation(10, 1, 1), ElementsAre(9, 1, 8, 4, 3, 7, 0, 5, 6, 2));
  EXPECT_THAT(permutation(10, 2, 0), ElementsAre(6, 1, 2, 3, 7, 5, 4, 8, 0, 9));
  const auto digits = permutation(1437, 1, 0);
  EXPECT_THAT(std::vector(digits.begin(), digits.begin() + 4), ElementsAre(919, 1187, 240, 1146));
  EXPECT_EQ(digits.back(), 172U);
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

// ---- digits

TEST(Digits, PixelsAreScaledAndLabelsKept) {
  const auto all = parse_digits(digit_line(16, 9) + "\r\n" + digit_line(4, 0), "f");
  ASSERT_TRUE(all.ok()) << all.error().to_string();
  EXPECT_EQ(all->samples, 2U);
  EXPECT_EQ(all->features, 64U);
  EXPECT_EQ(all->classes, 10U);
  EXPECT_EQ(all->x[63], 1.0F);
  EXPECT_EQ(all->x[64], 0.25F);
  EXPECT_THAT(all->y, ElementsAre(9, 0));
}

TEST(Digits, DamageNamesFileLineAndWhatWasExpected) {
  const std::string good = digit_line(1, 1) + "\n";
  const auto at_line_2 = [&](const std::string& line, const std::string& what) {
    EXPECT_THAT(parse_digits(good + line, "d.csv"),
                FailsWith(ErrorCode::kDataLoss, AllOf(HasSubstr("d.csv line 2"), HasSubstr(what))));
  };
  at_line_2(digit_line(17, 1), "pixel from 0 to 16");
  at_line_2(digit_line(1, 10), "digit from 0 to 9");
  at_line_2(digit_line(1, 1).substr(0, 40), "pixel");
  at_line_2(digit_line(1, 1) + ",1", "end of the line");
  at_line_2(std::string("-").append(digit_line(1, 1)), "field 1");
  at_line_2("\n" + good, "field 1");
  at_line_2("\x1f\x8b", "field 1");
  EXPECT_THAT(parse_digits("", "d.csv"),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("d.csv")));
}

TEST(Digits, GzipAndPlainFilesGiveTheSame) {
  const Folder folder;
  folder.write_gzip("digits.csv.gz", digit_lines(100));
  folder.write("plain.csv", digit_lines(100));
  DataOptions options;
  options.cache_dir = folder.path();
  const auto cached = load_data(options);
  options.spec = "digits:" + folder.file("plain.csv");
  const auto named = load_data(options);
  ASSERT_TRUE(cached.ok() && named.ok());
  EXPECT_EQ(cached->train.samples, 80U);
  EXPECT_EQ(cached->test.samples, 20U);
  EXPECT_EQ(cached->train.fingerprint(), named->train.fingerprint());
  EXPECT_EQ(cached->test.fingerprint(), named->test.fingerprint());
}

TEST(Digits, AMissingFileNamesTheCommandThatFetchesIt) {
  DataOptions options;
  options.cache_dir = "/nonexistent";
  EXPECT_THAT(load_data(options),
              FailsWith(ErrorCode::kNotFound, AllOf(HasSubstr("/nonexistent/digits.csv.gz"),
                                                    HasSubstr("./centroid build"))));
}

TEST(Digits, TheRealFileHas1797Images) {
  DataOptions options;
  options.cache_dir = ".cache/data";
  if (!std::filesystem::exists(".cache/data/digits.csv.gz"))
    GTEST_SKIP() << ".cache/data/digits.csv.gz is not there: run `./centroid build`";
  const auto split = load_data(options);
  ASSERT_TRUE(split.ok()) << split.error().to_string();
  EXPECT_EQ(split->train.samples, 1438U);
  EXPECT_EQ(split->test.samples, 359U);
  EXPECT_THAT(split->train.name, HasSubstr("1797"));
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

// ---- IDX

TEST(Idx, ReadsTheFourFilesUnderAllTheirNames) {
  const Folder folder;
  folder.write_gzip("train-images-idx3-ubyte.gz", idx_images(3, 2, 2));
  folder.write("train-labels.idx1-ubyte", idx_labels({0, 2, 1}));
  folder.write("t10k-images-idx3-ubyte", idx_images(1, 2, 2));
  folder.write_gzip("t10k-labels.idx1-ubyte.gz", idx_labels({1}));
  DataOptions options;
  options.spec = "idx:" + folder.path();
  const auto split = load_data(options);
  ASSERT_TRUE(split.ok()) << split.error().to_string();
  EXPECT_EQ(split->train.samples, 3U);
  EXPECT_EQ(split->train.features, 4U);
  EXPECT_EQ(split->train.classes, 3U);
  EXPECT_EQ(split->test.classes, 3U);
  EXPECT_THAT(split->train.y, ElementsAre(0, 2, 1));
  EXPECT_FLOAT_EQ(split->train.x[11], 11.0F / 255.0F);
  EXPECT_EQ(split->test.samples, 1U);
}

TEST(Idx, MissingFilesSayWhatToPutWhere) {
  const Folder folder;
  EXPECT_THAT(load_idx(folder.path()),
              FailsWith(ErrorCode::kNotFound, AllOf(HasSubstr("train-images-idx3-ubyte"),
                                                    HasSubstr("t10k-labels-idx1-ubyte.gz"))));
}

TEST(Idx, FilesThatDoNotFitTogetherAreRefused) {
  const auto load = [](const std::string& train_labels, const std::string& test_images,
                       const std::string& test_labels) {
    const Folder folder;
    folder.write("train-images-idx3-ubyte", idx_images(2, 2, 2));
    folder.write("train-labels-idx1-ubyte", idx_labels(train_labels));
    folder.write("t10k-images-idx3-ubyte", test_images);
    folder.write("t10k-labels-idx1-ubyte", idx_labels(test_labels));
    return load_idx(folder.path());
  };
  EXPECT_TRUE(load({0, 1}, idx_images(1, 2, 2), {1}).ok());
  EXPECT_THAT(load({0}, idx_images(1, 2, 2), {1}),
              FailsWith(ErrorCode::kDataLoss, HasSubstr("expected 2 labels")));
  EXPECT_THAT(load({0, 1}, idx_images(1, 2, 3), {1}),
              FailsWith(ErrorCode::kDataLoss, HasSubstr("6 pixels")));
  EXPECT_THAT(load({0, 1}, idx_images(1, 2, 2), {2}),
              FailsWith(ErrorCode::kDataLoss, HasSubstr("labels reach 2")));
}

TEST(Idx, EveryDamageOfAHeaderIsAnError) {
  const auto images = [](const std::string& content) {
    return parse_idx_images(as_bytes(content), "i");
  };
  const std::string good = idx_images(2, 3, 3);
  ASSERT_TRUE(images(good).ok());
  const auto bad = [&](const std::string& content, const std::string& what) {
    EXPECT_THAT(images(content),
                FailsWith(ErrorCode::kDataLoss, AllOf(HasSubstr("i:"), HasSubstr(what))));
  };
  for (std::size_t length = 0; length < good.size(); ++length)
    bad(good.substr(0, length), "expected");
  bad(good + "x", "expected 18 bytes");
  bad(idx_labels("abcdefghijkl"), "found 0x00000801");
  bad(word(0x803) + word(1) + word(0) + word(3), "found 0x3");
  bad(word(0x803) + word(~0U) + word(~0U) + word(~0U), "4294967295x4294967295");
  bad(word(0x803) + word(~0U) + word(4096) + word(4096), "expected 72057594021150720 bytes");
  EXPECT_THAT(images(word(0x803) + word(0) + word(3) + word(3)),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("no samples")));
  EXPECT_THAT(parse_idx_labels(as_bytes(word(0x801) + word(0)), "l"),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("no samples")));
}

TEST(Parsers, SurviveRandomDamage) {
  constexpr std::uint64_t kSeed = 20240501;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  CounterRng rng(kSeed);
  const std::string idx = idx_images(2, 3, 3);
  const std::string digits = digit_lines(3);
  const std::string packages =
      "Package: a\nSection: x\nDescription: one two\n\nPackage: b\nSection: y\nDescription: "
      "three\n";
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const auto damage = [&](std::string text) {
      for (std::uint64_t n = 1 + rng.below(3); n > 0; --n)
        text[rng.below(text.size())] = static_cast<char>(rng.below(256));
      return text.substr(0, rng.below(4) == 0 ? rng.below(text.size()) : text.size());
    };
    const std::string bad_idx = damage(idx);
    if (const auto images = parse_idx_images(as_bytes(bad_idx), "i"); images.ok()) {
      ASSERT_EQ(images->pixels.size(), images->count * images->rows * images->columns);
    }
    if (const auto all = parse_digits(damage(digits), "d"); all.ok()) {
      ASSERT_TRUE(all->y.size() == all->samples && all->x.size() == 64 * all->samples);
    }
    if (const auto all = parse_packages(damage(packages), "p", 16); all.ok()) {
      ASSERT_EQ(all->row_begin.size(), all->samples + 1);
    }
  }
}

// ---- packages

std::string stanza(const std::string& name, const std::string& section, const std::string& text) {
  return "Package: " + name + "\nVersion: 1\nDescription: " + text +
         "\n a long text that is not read\nSection: " + section + "\nPriority: optional\n\n";
}

TEST(Packages, RowsAreHashedGramsOfLengthOne) {
  const auto all = parse_packages(stanza("ab", "net", "Go go") + stanza("x", "libs", "y"), "p", 64);
  ASSERT_TRUE(all.ok()) << all.error().to_string();
  std::vector<std::pair<std::uint32_t, float>> row;
  for (std::uint64_t k = 0; k < all->row_begin[1]; ++k)
    row.emplace_back(all->cols[k], all->vals[k]);
  // From an independent implementation in Python.
  const auto is = [](std::uint32_t column, float value) {
    return Pair(column, FloatNear(value, 1e-6F));
  };
  EXPECT_THAT(row, ElementsAre(is(4, .213201F), is(8, .426401F), is(9, .213201F), is(21, .213201F),
                               is(29, .426401F), is(38, .213201F), is(44, .213201F),
                               is(46, .426401F), is(52, .426401F), is(61, .213201F)));
}

TEST(Packages, KeepsTheTwentyLargestSectionsAndEachPackageOnce) {
  std::string list;
  for (int section = 0; section < 25; ++section)
    for (int i = 0; i <= section; ++i) {
      std::ostringstream name;
      std::ostringstream place;
      name << 'p' << section << '-' << i;
      place << (section % 2 == 0 ? "universe/s" : "s") << section;
      list += stanza(name.str(), place.str(), "text");
    }
  list += stanza("p24-0", "s0", "a second version");
  const auto all = parse_packages(list, "p", 128);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->classes, 20U);
  std::map<std::uint32_t, int> sizes;
  for (const auto label : all->y) ++sizes[label];
  EXPECT_EQ(sizes[0], 25);
  EXPECT_EQ(sizes[19], 6);
  EXPECT_EQ(all->samples, 310U);
  EXPECT_EQ(all->row_begin.size(), 311U);
}

TEST(Packages, BadInputIsAnError) {
  EXPECT_THAT(parse_packages("", "p", 64),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("apt-get update")));
  EXPECT_THAT(parse_packages(stanza("a", "s", "t"), "p", 64),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("found 1")));
  EXPECT_THAT(parse_packages("", "p", 15), FailsWith(ErrorCode::kInvalidArgument, HasSubstr("15")));
  EXPECT_THAT(load_packages("/nonexistent/list", 1, 64),
              FailsWith(ErrorCode::kNotFound, HasSubstr("apt-cache dumpavail > FILE")));
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
