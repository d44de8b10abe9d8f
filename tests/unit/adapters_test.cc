#include "worker/model/adapters.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/checkpoint/safetensors.h"
#include "tests/unit/data_fixture.h"

namespace centroid::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kShape = "transformer:layers=1,width=8,heads=2,context=4,vocabulary=9";

TransformerConfig config_of(const std::string& more) {
  auto config = TransformerConfig::parse(kShape + more);
  CENTROID_CHECK(config.ok());
  return std::move(config).value();
}

std::vector<float> random_floats(const Manifest& manifest, std::uint64_t seed) {
  CounterRng rng(seed);
  std::size_t n = 0;
  for (const auto& tensor : manifest) n += tensor.elements();
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(rng.normal());
  return out;
}

void write(const std::string& path, const Manifest& manifest, std::span<const std::byte> bytes) {
  auto writer = SafetensorsWriter::create(path, manifest, {});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append(bytes).ok());
  ASSERT_TRUE(writer->finish().ok());
}

std::string text_of(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

TEST(BaseWeights, AreReadFromACheckpointsFileInAnyOrderAndType) {
  const Folder folder;
  const auto config = config_of("");
  const auto weights = random_floats(config.whole(), 1);
  write(folder.file("f32.safetensors"), config.whole(), std::as_bytes(std::span(weights)));
  const auto base = load_base(config, folder.file("f32.safetensors"));
  ASSERT_TRUE(base.ok()) << base.error().message();
  EXPECT_EQ((*base)->values, weights);
  EXPECT_EQ((*base)->hash, fingerprint(weights));

  Manifest half = config.whole();
  std::vector<std::uint16_t> halves;
  for (const float x : weights) halves.push_back(bf16_from_f32(x));
  for (auto& tensor : half) tensor.dtype = DType::kBF16;
  write(folder.file("bf16.safetensors"), half, std::as_bytes(std::span(halves)));
  const auto rounded = load_base(config, folder.file("bf16.safetensors"));
  ASSERT_TRUE(rounded.ok());
  for (std::size_t i = 0; i < weights.size(); ++i)
    ASSERT_EQ((*rounded)->values[i], f32_from_bf16(halves[i]));

  const auto model = make_model(kShape, folder.file("f32.safetensors"));
  ASSERT_TRUE(model.ok());
  std::vector<float> params(weights.size());
  (*model)->initialize(5, params);
  EXPECT_EQ(params, weights);
  EXPECT_THAT((*model)->spec(), testing::EndsWith(",base=" + std::to_string((*base)->hash)));
}

TEST(BaseWeights, WhatDoesNotFitIsNamed) {
  const Folder folder;
  const auto config = config_of("");
  const auto weights = random_floats(config.whole(), 1);
  write(folder.file("base"), config.whole(), std::as_bytes(std::span(weights)));
  EXPECT_THAT(load_base(config_of(",norm=layer"), folder.file("base")),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("norm1.bias is missing")));
  EXPECT_THAT(
      load_base(config_of(",hidden=16"), folder.file("base")),
      FailsWith(ErrorCode::kInvalidArgument,
                AllOf(HasSubstr("up_proj.weight has shape [32, 8]"), HasSubstr("[16, 8]"))));
  EXPECT_THAT(load_base(config, folder.file("none")),
              FailsWith(ErrorCode::kNotFound, HasSubstr("base_weights takes")));
  EXPECT_THAT(make_model("mlp:4-2", folder.file("base")),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("for transformers")));
  // A classifier has another head; it begins alike for everybody.
  const auto classes = load_base(config_of(",classes=3"), folder.file("base"));
  ASSERT_TRUE(classes.ok()) << classes.error().message();
  EXPECT_EQ((*classes)->values, (*load_base(config_of(",classes=3"), folder.file("base")))->values);
  EXPECT_EQ((*classes)->values.size(), weights.size() - (9 - 3) * 8);
}

TEST(Adapters, AreWrittenAsPeftNamesThemAndReadBack) {
  const Folder folder;
  const auto config =
      config_of(",lora=2,lora_alpha=6,lora_dropout=0.25,lora_targets=q_proj+up_proj");
  const auto params = random_floats(config.trained(), 2);
  ASSERT_TRUE(save_adapters(folder.file("out"), config, 77, params).ok());
  ASSERT_TRUE(save_adapters(folder.file("out"), config, 77, params).ok());  // over what is there
  const auto reader = SafetensorsReader::open(folder.file("out/adapter_model.safetensors"));
  ASSERT_TRUE(reader.ok());
  std::vector<std::string> names;
  for (const auto& tensor : reader->manifest())
    names.push_back(tensor.name + centroid::to_string(tensor.shape));
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "base_model.model.blocks.0.attention.q_proj.lora_A.weight[2, 8]",
                         "base_model.model.blocks.0.attention.q_proj.lora_B.weight[8, 2]",
                         "base_model.model.blocks.0.mlp.up_proj.lora_A.weight[2, 8]",
                         "base_model.model.blocks.0.mlp.up_proj.lora_B.weight[32, 2]",
                         "base_model.model.head.weight[9, 8]"));
  const std::string json = text_of(folder.file("out/adapter_config.json"));
  for (const char* part : {"\"peft_type\": \"LORA\"", "\"r\": 2", "\"lora_alpha\": 6.0",
                           "\"lora_dropout\": 0.25", "\"q_proj\"", "\"task_type\": \"CAUSAL_LM\""})
    EXPECT_THAT(json, HasSubstr(part));
  std::vector<float> back(params.size());
  const Status read = load_adapters(folder.file("out"), config, 77, back);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(back, params);
}

TEST(Adapters, OfAnotherModelAreRefused) {
  const Folder folder;
  const std::string lora = ",lora=2,lora_targets=q_proj";
  const auto config = config_of(lora);
  auto params = random_floats(config.trained(), 2);
  ASSERT_TRUE(save_adapters(folder.path(), config, 77, params).ok());
  const auto refusal = [&](const std::string& more, std::uint64_t base) {
    const auto other = config_of(more);
    std::vector<float> into(random_floats(other.trained(), 3).size());
    const Status read = load_adapters(folder.path(), other, base, into);
    return read.ok() ? std::string("ok") : read.error().message();
  };
  EXPECT_EQ(refusal(lora, 77), "ok");
  EXPECT_THAT(refusal(lora, 78), HasSubstr("fingerprint 77, these have 78"));
  EXPECT_THAT(refusal(",lora=3,lora_targets=q_proj", 77), HasSubstr("r is 2, the model's is 3"));
  EXPECT_THAT(refusal(lora + ",lora_alpha=5", 77), HasSubstr("lora_alpha is 2.0"));
  EXPECT_THAT(refusal(",lora=2,lora_targets=v_proj", 77), HasSubstr("target_modules"));
  folder.write("adapter_config.json", "{");
  EXPECT_THAT(refusal(lora, 77), HasSubstr("not a JSON object"));
  std::filesystem::remove(folder.file("adapter_config.json"));
  EXPECT_THAT(refusal(lora, 77), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace centroid::worker
