#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "tests/unit/data_fixture.h"
#include "worker/data/text.h"

namespace centroid::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string random_text(std::size_t bytes, std::uint64_t seed) {
  CounterRng rng(seed);
  std::string text(bytes, ' ');
  for (char& c : text) c = static_cast<char>('a' + rng.below(26));
  return text;
}

std::vector<std::uint32_t> sample_of(const Dataset& data, std::uint64_t sample) {
  return {data.tokens.begin() + static_cast<std::ptrdiff_t>(data.token_begin[sample]),
          data.tokens.begin() + static_cast<std::ptrdiff_t>(data.token_begin[sample + 1])};
}

TEST(Vocabulary, TakesTheLongestTokenThatFits) {
  Vocabulary vocabulary;
  ASSERT_TRUE(vocabulary.add("th\nthe\n the\\n\n\\\\n", "file").ok());
  EXPECT_EQ(vocabulary.size(), 260U);
  std::vector<std::uint32_t> tokens;
  vocabulary.encode("thx the the\n\\n\xff", tokens);
  EXPECT_THAT(tokens, ElementsAre(256, 'x', ' ', 257, 258, 259, 255));
  tokens.clear();
  Vocabulary().encode("the", tokens);
  EXPECT_THAT(tokens, ElementsAre('t', 'h', 'e'));
}

TEST(Vocabulary, RefusesWhatIsNoTokenAndNamesTheLine) {
  for (const auto& [lines, why] : std::vector<std::pair<std::string, std::string>>{
           {"ab\na", "v line 2: a token of 1 bytes, expected 2 to 64"},
           {"ab\n\ncd", "v line 2: a token of 0"},
           {std::string(65, 'x'), "v line 1: a token of 65"},
           {"ab\ncd\nab", "v line 3: this token was there before"},
           {"a\\x", "v line 1: a \\ that is not part of"},
           {"ab\\", "v line 1: a \\ that"}})
    EXPECT_THAT(Vocabulary().add(lines, "v"), FailsWith(ErrorCode::kDataLoss, HasSubstr(why)));
}

TEST(SplitText, EveryTokenIsPredictedOnceAndNoneIsInBothParts) {
  for (const std::size_t length : {1000, 1001, 1024, 37})
    for (const std::uint64_t seed : {1, 2}) {
      SCOPED_TRACE(length);
      const std::vector<std::string> documents = {random_text(length, 1), "", "x",
                                                  random_text(50, 2)};
      const auto split = split_text(documents, {}, 16, seed).value();
      std::size_t predicted = 0;
      std::multiset<std::vector<std::uint32_t>> samples;
      for (const Dataset* set : {&split.train, &split.test}) {
        EXPECT_EQ(set->features, 16U);
        EXPECT_EQ(set->classes, 256U);
        EXPECT_EQ(set->targets(), 16U);
        ASSERT_EQ(set->token_begin.size(), set->samples + 1);
        for (std::uint64_t i = 0; i < set->samples; ++i) {
          const auto sample = sample_of(*set, i);
          ASSERT_TRUE(sample.size() >= 2 && sample.size() <= 17);
          predicted += sample.size() - 1;
          samples.insert(sample);
        }
      }
      EXPECT_EQ(predicted, length - 1 + 49);
      std::size_t whole = 0;
      for (const std::string& text : documents)
        for (std::size_t at = 0; at + 1 < text.size(); at += 16, ++whole) {
          const std::string part = text.substr(at, 17);
          EXPECT_EQ(samples.count({part.begin(), part.end()}), 1U) << at;
        }
      EXPECT_EQ(samples.size(), whole);
      EXPECT_NEAR(double(split.test.samples), double(whole) / 10, 1);
      EXPECT_EQ(split_text(documents, {}, 16, seed)->train.fingerprint(),
                split.train.fingerprint());
    }
  const std::vector<std::string> text = {random_text(5000, 1)};
  EXPECT_NE(split_text(text, {}, 16, 1)->train.fingerprint(),
            split_text(text, {}, 16, 2)->train.fingerprint());
  EXPECT_THAT(split_text({"", "a"}, {}, 16, 1),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("1 bytes: too few")));
}

TEST(GatherTokens, ShiftsLabelsByOneAndFillsUpShortSamples) {
  Dataset data;
  data.samples = 2;
  data.features = 4;
  data.vocabulary = data.classes = 10;
  data.tokens = {1, 2, 3, 4, 5, 5, 6};
  data.token_begin = {0, 5, 7};
  std::vector<std::uint32_t> tokens(8, 99), labels(8, 99), lengths(2);
  const std::vector<std::uint64_t> index = {1, 0};
  data.gather_tokens(index, tokens, labels, lengths);
  constexpr auto kNone = Dataset::kNoLabel;
  EXPECT_THAT(tokens, ElementsAre(5, 0, 0, 0, 1, 2, 3, 4));
  EXPECT_THAT(labels, ElementsAre(6, kNone, kNone, kNone, 2, 3, 4, 5));
  EXPECT_THAT(lengths, ElementsAre(1, 4));
}

TEST(AsTokens, KeepsLabelsAndLevels) {
  Dataset dense;
  dense.samples = 2;
  dense.features = 3;
  dense.classes = 4;
  dense.x = {0, 0.25F, 1, 0.5F, 0.75F, 0};
  dense.y = {3, 1};
  const Dataset out = as_tokens(dense, 5);
  EXPECT_EQ(out.targets(), 1U);
  std::vector<std::uint32_t> tokens(6), labels(2), lengths(2);
  out.gather_tokens(std::vector<std::uint64_t>{0, 1}, tokens, labels, lengths);
  EXPECT_THAT(tokens, ElementsAre(0, 1, 4, 2, 3, 0));
  EXPECT_THAT(labels, ElementsAre(3, 1));
  EXPECT_THAT(lengths, ElementsAre(3, 3));
}

TEST(LoadText, ReadsFilesAndFoldersInOrderAndSaysWhatIsMissing) {
  const Folder folder;
  folder.write("b.txt", random_text(300, 1));
  folder.write_gzip("a.txt.gz", random_text(200, 2));
  std::filesystem::create_symlink(folder.file("b.txt"), folder.file("c.txt"));
  DataOptions options;
  options.context = 8;
  options.spec = "text:" + folder.path();
  const auto all = load_data(options);
  ASSERT_TRUE(all.ok()) << all.error().message();
  EXPECT_THAT(all->train.name, HasSubstr("2 files, 500 bytes in windows of 8 tokens"));
  options.spec = "text:" + folder.file("a.txt.gz") + "," + folder.file("b.txt");
  EXPECT_EQ(load_data(options)->train.fingerprint(), all->train.fingerprint());
  folder.write("v", "aa\nbb");
  options.vocabulary_file = folder.file("v");
  EXPECT_EQ(load_data(options)->train.vocabulary, 258U);
  options.vocabulary_file.clear();
  options.spec = "text:" + folder.file("none");
  EXPECT_THAT(load_data(options), FailsWith(ErrorCode::kNotFound, HasSubstr("name files")));
  options.spec = "text:" + folder.path();
  options.context = 0;
  EXPECT_THAT(load_data(options),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("--model transformer")));
  options.context = 8;
  std::filesystem::create_directory(folder.file("empty"));
  options.spec = "text:" + folder.file("empty");
  EXPECT_THAT(load_data(options),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("contains no files")));
}

}  // namespace
}  // namespace centroid::worker
