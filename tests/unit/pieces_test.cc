#include "common/checkpoint/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/range_reader.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::pieces_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Manifest kModel = {{"a", DType::kF32, {2, 5}}, {"b", DType::kF32, {3}}};

std::string text_of(const std::string& name) {
  const auto piece = piece_of(name);
  if (!piece) return "none";
  return piece->tensor + " " + std::to_string(piece->begin) + " " + std::to_string(piece->end);
}

TEST(Pieces, NamesAreRead) {
  EXPECT_EQ(text_of("w[3:12]"), "w 3 12");
  EXPECT_EQ(text_of("w[0:1][3:12]"), "w[0:1] 3 12");
  for (const char* name : {"w", "[1:2]", "w[1:2", "w[1]", "w[1:]", "w[:2]", "w[2:2]", "w[-1:2]",
                           "w[1:2] ", "w[1:99999999999999999999]", "", "]"})
    EXPECT_EQ(text_of(name), "none") << name;
}

TEST(Pieces, WholeTensorsHaveTheirOwnNames) {
  const std::vector<ElementRun> runs = {{2, 5}, {8, 5}};
  EXPECT_THAT(pieces_of(kModel, runs),
              ElementsAre(TensorInfo{"a[2:7]", DType::kF32, {5}},
                          TensorInfo{"a[8:10]", DType::kF32, {2}}, kModel[1]));
}

/// Files that two ranks wrote, and the manifest that names them.
class Parts : public ::testing::Test {
 protected:
  Parts() {
    for (std::size_t i = 0; i < 13; ++i) values_.push_back(static_cast<float>(i));
    content_.info.run_id = "r";
    content_.info.version = Version(3);
    content_.tensors = kModel;
    content_.files["model.safetensors.index.json"] = {};
  }
  void write(std::size_t index, std::vector<ElementRun> runs, const Manifest& model = kModel) {
    for (ElementRun& run : runs) run.values = values_.data() + run.begin;
    const PartOf part{"r", Version(3), manifest_hash(model), index, 2};
    const auto record = write_part(folder_.path(), "model", part, model, runs);
    ASSERT_TRUE(record.ok()) << record.error().message();
    content_.files[part.file_name("model")] = *record;
  }
  std::string opened() {
    const auto reader = RangeReader::open(folder_.path(), content_);
    return reader.ok() ? "opened" : reader.error().to_string();
  }

  TemporaryDirectory folder_;
  std::vector<float> values_;
  CheckpointManifest content_;
};

TEST_F(Parts, AnyRangeIsRead) {
  write(0, {{0, 4}, {11, 2}});
  write(1, {{4, 7}});
  auto reader = RangeReader::open(folder_.path(), content_);
  ASSERT_TRUE(reader.ok()) << reader.error().to_string();
  for (std::size_t begin = 0; begin <= 13; ++begin) {
    for (std::size_t end = begin; end <= 13; ++end) {
      std::vector<float> into(end - begin);
      ASSERT_TRUE(reader->read(0, begin, into).ok());
      EXPECT_EQ(into, std::vector(values_.begin() + begin, values_.begin() + end));
    }
  }
  std::vector<float> two(2);
  EXPECT_THAT(reader->read(0, 12, two).error().to_string(), HasSubstr("invalid_argument: read"));
  EXPECT_THAT(reader->read(1, 0, two).error().to_string(), HasSubstr("there are 1 of 13"));
}

TEST_F(Parts, ElementsInNoPartAreNamed) {
  write(0, {{0, 4}});
  write(1, {{5, 8}});
  EXPECT_THAT(opened(), AllOf(HasSubstr("data_loss"), HasSubstr("element 4 of a is in no part")));
}

TEST_F(Parts, TheLastElementIsMissedToo) {
  write(0, {{0, 4}});
  write(1, {{4, 8}});
  EXPECT_THAT(opened(), HasSubstr("element 2 of b is in no part"));
}

TEST_F(Parts, ElementsInTwoPartsAreNamed) {
  write(0, {{0, 6}});
  write(1, {{5, 8}});
  EXPECT_THAT(opened(), AllOf(HasSubstr("data_loss"), HasSubstr("element 5 of a is in two parts")));
}

TEST_F(Parts, APartOfAnotherModelIsNamed) {
  write(0, {{0, 6}});
  Manifest other = kModel;
  other[1].shape = {3, 1};
  write(1, {{6, 7}}, other);
  EXPECT_THAT(opened(), AllOf(HasSubstr("model-00002-of-00002.safetensors"),
                              HasSubstr("a part of another checkpoint: field \"model\"")));
}

TEST_F(Parts, TheManifestKeepsNamesAndShapes) {
  const auto text = to_json(content_);
  ASSERT_TRUE(text.ok());
  const auto back = parse_checkpoint_manifest(*text);
  ASSERT_TRUE(back.ok()) << back.error().to_string();
  EXPECT_EQ(back->tensors, kModel);
  content_.tensors.push_back(kModel[0]);  // twice
  EXPECT_THAT(parse_checkpoint_manifest(*to_json(content_)).error().to_string(),
              AllOf(HasSubstr("data_loss"), HasSubstr("\"tensors\"")));
}

}  // namespace
}  // namespace centroid::pieces_test
