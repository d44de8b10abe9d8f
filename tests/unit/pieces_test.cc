#include "common/checkpoint/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/range_reader.h"
#include "common/checkpoint/safetensors.h"
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
  const auto text = [](const Piece::Interval& of) {
    return " " + std::to_string(of.begin) + " " + std::to_string(of.end);
  };
  return piece->tensor + text(piece->elements) + (piece->columns ? text(*piece->columns) : "");
}

TEST(Pieces, NamesAreRead) {
  EXPECT_EQ(text_of("w[3:12]"), "w 3 12");
  EXPECT_EQ(text_of("w[0:1][3:12]"), "w[0:1] 3 12");
  EXPECT_EQ(text_of("w[3:12,0:4]"), "w 3 12 0 4");
  for (const char* name : {"w[1:2,]", "w[1:2,3]", "w[1:2,3:3]", "w[1:2,3:4,5:6]", "w[,1:2]", "w[]",
                           "w", "[1:2]", "w[1:2", "w[1]", "w[1:]", "w[:2]", "w[2:2]", "w[-1:2]",
                           "w[1:2] ", "w[1:99999999999999999999]", "", "]"})
    EXPECT_EQ(text_of(name), "none") << name;
}

TEST(Pieces, WholeTensorsHaveTheirOwnNames) {
  const std::vector<ElementRun> runs = {{2, 5}, {8, 5}};
  EXPECT_THAT(pieces_of(kModel, runs),
              ElementsAre(TensorInfo{"a[2:7]", DType::kF32, {5}},
                          TensorInfo{"a[8:10]", DType::kF32, {2}}, kModel[1]));
}

TEST(Pieces, SomeColumnsOfManyRowsAreOne) {
  const Manifest model = {{"a", DType::kF32, {1000, 2, 8}}, {"b", DType::kF32, {8}}};
  std::vector<ElementRun> runs;
  for (std::uint64_t row = 0; row < 2000; ++row) runs.push_back({row * 8 + 2, 3});
  const std::vector<ElementRun> all(runs);
  EXPECT_THAT(pieces_of(model, runs),
              ElementsAre(TensorInfo{"a[0:2000,2:5]", DType::kF32, {2000, 3}}));
  // Of a shard that begins and ends within rows.
  runs = {runs.begin() + 10, runs.begin() + 20};
  runs.front() = {runs.front().begin + 1, 2};
  runs.back().count = 1;
  EXPECT_THAT(pieces_of(model, runs), ElementsAre(TensorInfo{"a[83:85]", DType::kF32, {2}},
                                                  TensorInfo{"a[11:19,2:5]", DType::kF32, {8, 3}},
                                                  TensorInfo{"a[154:155]", DType::kF32, {1}}));
  // The last columns, after which another tensor begins.
  runs = {{15990, 2}, {15998, 6}};
  EXPECT_THAT(pieces_of(model, runs),
              ElementsAre(TensorInfo{"a[1998:2000,6:8]", DType::kF32, {2, 2}},
                          TensorInfo{"b[0:4]", DType::kF32, {4}}));
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
    std::filesystem::remove(folder_.path() / part.file_name("model"));
    const auto record = write_part(folder_.path(), "model", part, model, runs);
    ASSERT_TRUE(record.ok()) << record.error().message();
    content_.files[part.file_name("model")] = *record;
  }
  /// A file with these tensors, whose values are the numbers of these elements.
  void write(std::size_t index, const Manifest& tensors, const std::vector<float>& values) {
    const PartOf part{"r", Version(3), manifest_hash(content_.tensors), index, 2};
    std::filesystem::remove(folder_.path() / part.file_name("model"));
    auto writer = SafetensorsWriter::create(folder_.path() / part.file_name("model"), tensors,
                                            part.metadata());
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    ASSERT_TRUE(writer->append(std::as_bytes(std::span(values))).ok());
    const auto record = writer->finish();
    ASSERT_TRUE(record.ok()) << record.error().message();
    content_.files[part.file_name("model")] = *record;
  }
  void expect_any_range() {
    auto reader = RangeReader::open(folder_.path(), content_);
    ASSERT_TRUE(reader.ok()) << reader.error().to_string();
    for (std::size_t begin = 0; begin <= 13; ++begin) {
      for (std::size_t end = begin; end <= 13; ++end) {
        std::vector<float> into(end - begin);
        ASSERT_TRUE(reader->read(0, begin, into).ok());
        EXPECT_EQ(into, std::vector(values_.begin() + begin, values_.begin() + end));
      }
    }
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
  expect_any_range();
  auto reader = RangeReader::open(folder_.path(), content_);
  ASSERT_TRUE(reader.ok()) << reader.error().to_string();
  std::vector<float> two(2);
  EXPECT_THAT(reader->read(0, 12, two).error().to_string(), HasSubstr("invalid_argument: read"));
  EXPECT_THAT(reader->read(1, 0, two).error().to_string(), HasSubstr("there are 1 of 13"));
}

TEST_F(Parts, AnyRangeOfColumnsIsRead) {
  for (std::uint64_t width = 1; width < 5; ++width) {
    write(0, {{0, width}, {5, width}, {10, 3}});
    write(1, {{width, 5 - width}, {5 + width, 5 - width}});
    expect_any_range();
  }
}

// As older versions wrote them.
TEST_F(Parts, ColumnsInAPieceForEachRowAreRead) {
  write(0, {{"a[0:2]", DType::kF32, {2}}, {"a[5:7]", DType::kF32, {2}}, kModel[1]},
        {0, 1, 5, 6, 10, 11, 12});
  write(1, {{"a[2:5]", DType::kF32, {3}}, {"a[7:10]", DType::kF32, {3}}}, {2, 3, 4, 7, 8, 9});
  expect_any_range();
}

TEST_F(Parts, ColumnsInNoPartOrInTwoAreNamed) {
  write(0, {{"a[0:2,0:2]", DType::kF32, {2, 2}}, kModel[1]}, {0, 1, 5, 6, 10, 11, 12});
  write(1, {{"a[2:5]", DType::kF32, {3}}, {"a[8:10]", DType::kF32, {2}}}, {2, 3, 4, 8, 9});
  EXPECT_THAT(opened(), HasSubstr("element 7 of a is in no part"));
  write(1, {{"a[2:10]", DType::kF32, {8}}}, {2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_THAT(opened(), HasSubstr("element 5 of a is in two parts"));
  for (const char* name : {"a[0:3,2:5]", "a[0:2,2:6]", "a[0:1,2:5]"}) {
    write(1, {{name, DType::kF32, {2, 3}}}, {2, 3, 4, 7, 8, 9});
    EXPECT_THAT(opened(), HasSubstr("with shape [2, 3] does not fit the parameter's shape [2, 5]"));
  }
}

TEST_F(Parts, RowsOfTooManyPartsAreRefused) {
  constexpr std::uint64_t kSide = 2100;
  content_.tensors = {{"a", DType::kF32, {kSide, kSide}}};
  const auto text = [](std::uint64_t begin) {
    return std::to_string(begin) + ":" + std::to_string(begin + 1) + "]";
  };
  Manifest columns, elements;
  for (std::uint64_t i = 0; i + 1 < kSide; ++i)
    columns.push_back({"a[0:2100," + text(i), DType::kF32, {kSide, 1}});
  for (std::uint64_t row = 1; row <= kSide; ++row)
    elements.push_back({"a[" + text(row * kSide - 1), DType::kF32, {1}});
  write(0, columns, std::vector<float>(kSide * (kSide - 1)));
  write(1, elements, std::vector<float>(kSide));
  EXPECT_THAT(opened(),
              HasSubstr("its 4199 blocks divide the tensors into more than 4198503 parts of rows"));
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
