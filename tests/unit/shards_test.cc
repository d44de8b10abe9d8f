#include "common/checkpoint/shards.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/checkpoint/export.h"
#include "tests/unit/temporary_directory.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

Manifest model(const std::vector<Shape>& shapes) {
  Manifest manifest;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    manifest.push_back({std::string("t").append(std::to_string(i)), DType::kF32, shapes[i]});
  return manifest;
}

class ShardsTest : public ::testing::Test {
 protected:
  /// A checkpoint whose element i of plane p is p * 1e6 + i.
  CheckpointEntry write(const Manifest& manifest, const CheckpointPolicy& policy,
                        std::uint64_t round = 1) {
    auto directory = CheckpointDirectory::open(folder_.path() / "checkpoints", policy);
    CheckpointInfo info;
    info.run_id = "r";
    info.version = Version(round + 1);
    info.round = Round(round);
    info.optimizer = "momentum";
    info.slot_names = {"momentum_buffer"};
    const auto read = [](std::size_t plane, std::uint64_t at, std::span<float> into) -> Status {
      for (float& x : into) x = static_cast<float>(plane) * 1e6f + static_cast<float>(at++);
      return {};
    };
    auto written = directory->write(info, manifest, read);
    EXPECT_TRUE(written.ok()) << written.error().message();
    return written.value();
  }

  CheckpointDirectory look() {
    return CheckpointDirectory::view(folder_.path() / "checkpoints").value();
  }

  void expect_sound(const Manifest& manifest, const CheckpointEntry& entry) {
    const auto directory = look();
    ASSERT_EQ(directory.list(true).front().problem, "");
    EXPECT_EQ(directory.manifest_of(entry).value(), manifest);
    std::uint64_t seen[2] = {0, 0};
    const auto take = [&](std::size_t plane, std::uint64_t at,
                          std::span<const float> from) -> Status {
      for (const float x : from) {
        EXPECT_EQ(x, static_cast<float>(plane) * 1e6f + static_cast<float>(at));
        ++at;
      }
      seen[plane] += from.size();
      return {};
    };
    const Status read = directory.read(entry, manifest, take);
    ASSERT_TRUE(read.ok()) << read.error().message();
    std::uint64_t elements = 0;
    for (const TensorInfo& tensor : manifest) elements += tensor.elements();
    EXPECT_EQ(seen[0], elements);
    EXPECT_EQ(seen[1], elements);
  }

  TemporaryDirectory folder_;
};

TEST_F(ShardsTest, LargeModelIsSeveralFilesAndAnIndexAsHuggingFaceNamesThem) {
  const Manifest manifest = model({{100}, {50, 2}, {300}, {10}});
  CheckpointPolicy policy;
  policy.shard_bytes = 800;
  const CheckpointEntry entry = write(manifest, policy);
  expect_sound(manifest, entry);
  for (const char* name : {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                           "model-00003-of-00003.safetensors", "model.safetensors.index.json"})
    EXPECT_TRUE(fs::exists(entry.path / name)) << name;
  const auto index = nlohmann::json::parse(slurp(entry.path / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * 510);
  EXPECT_EQ(index["weight_map"]["t1"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["t2"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["t3"], "model-00003-of-00003.safetensors");
}

TEST_F(ShardsTest, AnyCutGivesTheSameNumbers) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (std::uint64_t round = 1; round <= 30; ++round) {
    std::vector<Shape> shapes;
    const std::size_t tensors = 1 + random() % 12;
    for (std::size_t i = 0; i < tensors; ++i) {
      const auto kind = random() % 6;
      if (kind == 0)
        shapes.push_back({});  // a scalar
      else if (kind == 1)
        shapes.push_back({3, 0});
      else
        shapes.push_back({1 + random() % 40, 1 + random() % 9});
    }
    const Manifest manifest = model(shapes);
    CheckpointPolicy policy;
    policy.shard_bytes = random() % 3 == 0 ? 0 : 1 + random() % 2000;
    expect_sound(manifest, write(manifest, policy, round));
  }
}

TEST_F(ShardsTest, MissingPartIsDamage) {
  CheckpointPolicy policy;
  policy.shard_bytes = 400;
  const CheckpointEntry entry = write(model({{100}, {100}}), policy);
  fs::remove(entry.path / "model-00002-of-00002.safetensors");
  EXPECT_THAT(look().list(false).front().problem, ::testing::HasSubstr("model-00002-of-00002"));
}

TEST_F(ShardsTest, ExportAsOneFileInAnotherType) {
  const Manifest manifest = model({{100}, {}, {0}, {30, 3}});
  CheckpointPolicy policy;
  policy.shard_bytes = 200;
  const CheckpointEntry entry = write(manifest, policy);
  ExportOptions options;
  options.dtype = DType::kBF16;
  const fs::path target = folder_.path() / "out.safetensors";
  ASSERT_TRUE(export_checkpoint(look(), entry, target, options).ok());
  const auto reader = SafetensorsReader::open(target);
  ASSERT_TRUE(reader.ok());
  Manifest expected = manifest;
  for (TensorInfo& tensor : expected) tensor.dtype = DType::kBF16;
  EXPECT_EQ(reader->manifest(), expected);
  std::vector<std::uint16_t> values(90);
  ASSERT_TRUE(reader->read("t3", 0, std::as_writable_bytes(std::span(values))).ok());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(values[i], bf16_from_f32(static_cast<float>(101 + i)));
  const Status again = export_checkpoint(look(), entry, target, options);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), ErrorCode::kAlreadyExists);
}

TEST_F(ShardsTest, ExportInShards) {
  const Manifest manifest = model({{100}, {200}});
  const CheckpointEntry entry = write(manifest, {});
  ExportOptions options;
  options.shard_bytes = 800;
  ASSERT_TRUE(export_checkpoint(look(), entry, folder_.path() / "model.safetensors", options).ok());
  const auto second = SafetensorsReader::open(folder_.path() / "model-00002-of-00002.safetensors");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->manifest().front().name, "t1");
  EXPECT_TRUE(fs::exists(folder_.path() / "model.safetensors.index.json"));
}

TEST_F(ShardsTest, MultiplesOfARoundStayBesideTheNewest) {
  CheckpointPolicy policy;
  policy.keep = 2;
  policy.keep_every_rounds = 4;
  for (std::uint64_t round = 1; round <= 11; ++round) write(model({{3}}), policy, round);
  std::vector<std::uint64_t> kept;
  for (const CheckpointEntry& entry : look().list(true)) kept.push_back(entry.info.round.value);
  EXPECT_THAT(kept, ElementsAre(11, 10, 8, 4));
}

}  // namespace
}  // namespace centroid
