#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "tests/unit/data_fixture.h"
#include "worker/data/data_source.h"
#include "worker/data/digits.h"
#include "worker/data/idx.h"
#include "worker/data/packages.h"

namespace centroid::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pair;

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
  list += stanza("p24-0", "s23", "a second version");
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
  EXPECT_THAT(load_packages("/nonexistent/list", 1),
              FailsWith(ErrorCode::kNotFound, HasSubstr("apt-cache dumpavail > FILE")));
}

// ---- all

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

}  // namespace
}  // namespace centroid::worker
