#include "worker/model/adapters.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/checkpoint/merge.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/fingerprint.h"
#include "tests/support/faulty_storage.h"
#include "tests/unit/data_fixture.h"

namespace centroid::worker::adapters_test {
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

MATCHER(Succeeds, "") {
  if (!arg.ok()) *result_listener << arg.error().to_string();
  return arg.ok();
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

// The process dies before each file operation: what is read back is the old or the new, or refused,
// and never the new tensors by the old description.
TEST(Adapters, DeathAtAnyOperationLeavesNoneThatAreDescribedAsOthers) {
  const auto old_config = config_of(",lora=2,lora_alpha=2,lora_targets=q_proj");
  const auto new_config = config_of(",lora=2,lora_alpha=6,lora_targets=q_proj");
  const auto before = random_floats(old_config.trained(), 2);
  const auto after = random_floats(old_config.trained(), 3);
  for (const bool is_alike : {true, false}) {
    const auto& config = is_alike ? old_config : new_config;
    for (int die_at = 1;; ++die_at) {
      ASSERT_LT(die_at, 60);
      SCOPED_TRACE(std::to_string(die_at) + (is_alike ? " alike" : " other"));
      const Folder folder;
      ASSERT_TRUE(save_adapters(folder.path(), old_config, 77, before).ok());
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        int operations = 0;
        const test::ScopedFaults hook([&](std::string_view, const std::filesystem::path&) {
          if (++operations == die_at) ::_exit(9);
          return 0;
        });
        ::_exit(save_adapters(folder.path(), config, 77, after).ok() ? 0 : 1);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1);
      std::vector<float> back(before.size());
      const bool is_old = load_adapters(folder.path(), old_config, 77, back).ok();
      if (is_old) {
        EXPECT_TRUE(back == before || (is_alike && back == after));
      }
      const bool is_new = load_adapters(folder.path(), config, 77, back).ok();
      if (is_new) {
        EXPECT_TRUE(back == after || (is_alike && back == before));
      }
      EXPECT_TRUE(is_old || is_new || !is_alike);
      ASSERT_TRUE(save_adapters(folder.path(), config, 77, after).ok()) << "begun again";
      if (WEXITSTATUS(status) == 0) break;
    }
  }
}

TEST(Adapters, DraftsOfKilledProgramsGoAnHourLater) {
  const Folder folder;
  const auto config = config_of(",lora=2,lora_targets=q_proj");
  const auto params = random_floats(config.trained(), 2);
  const std::filesystem::path root(folder.path());
  for (const char* name : {"adapter_model.safetensors.new-1", "adapter_config.json.new-1",
                           "adapter_config.json.new-2", "notes.new-1"})
    std::ofstream(root / name) << "x";
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::minutes(61);
  for (const char* name :
       {"adapter_model.safetensors.new-1", "adapter_config.json.new-1", "notes.new-1"})
    std::filesystem::last_write_time(root / name, old);
  ASSERT_TRUE(save_adapters(root, config, 77, params).ok());
  std::set<std::string> names;
  for (const auto& one : std::filesystem::directory_iterator(root))
    names.insert(one.path().filename().string());
  EXPECT_THAT(names, testing::ElementsAre("adapter_config.json", "adapter_config.json.new-2",
                                          "adapter_model.safetensors", "notes.new-1"));
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
  // What other programs say in it, and means other numbers.
  const std::string json = text_of(folder.file("adapter_config.json"));
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = json;
    CENTROID_CHECK(text.find(what) != std::string::npos);
    folder.write("adapter_config.json", text.replace(text.find(what), what.size(), instead));
  };
  with("\"bias\"", "\"use_rslora\": true, \"bias\"");
  EXPECT_THAT(refusal(lora, 77), AllOf(HasSubstr("lora_alpha is 2.0 (use_rslora"),
                                       HasSubstr("the model's is 2.0"), HasSubstr("2.828")));
  EXPECT_EQ(refusal(lora + ",lora_alpha=2.8284271247461903", 77), "ok");
  for (const std::string set :
       {"\"use_dora\": true", "\"lora_bias\": true", "\"rank_pattern\": {\"q_proj\": 4}",
        "\"alpha_pattern\": {\"q_proj\": 4}"}) {
    with("\"bias\"", set + ", \"bias\"");
    EXPECT_THAT(refusal(lora, 77), HasSubstr(set.substr(1, set.find('"', 1) - 1) + " is set"));
  }
  with("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true");
  EXPECT_THAT(refusal(lora, 77), HasSubstr("fan_in_fan_out is set"));
  with("\"LORA\"", "\"IA3\"");
  EXPECT_THAT(refusal(lora, 77), HasSubstr("peft_type is not LORA"));
  with("\"r\": 2", "\"r\": 2.5");
  EXPECT_THAT(refusal(lora, 77), HasSubstr("integer"));
  with("\"bias\"", "\"use_dora\": false, \"rank_pattern\": {}, \"bias\"");
  EXPECT_EQ(refusal(lora, 77), "ok");
  Manifest more = config.trained();
  for (auto& tensor : more) tensor.name.insert(0, "base_model.model.");
  more.push_back({.name = "base_model.model.norm.bias", .dtype = DType::kF32, .shape = {1}});
  params.push_back(1);
  std::filesystem::remove(folder.file("adapter_model.safetensors"));
  write(folder.file("adapter_model.safetensors"), more, std::as_bytes(std::span(params)));
  EXPECT_THAT(refusal(lora, 77), HasSubstr("norm.bias is none of the model's adapters"));
  folder.write("adapter_config.json", "{");
  EXPECT_THAT(refusal(lora, 77), HasSubstr("not a JSON object"));
  std::filesystem::remove(folder.file("adapter_config.json"));
  EXPECT_THAT(refusal(lora, 77), HasSubstr("cannot be read"));
}

/// A base, adapters beside it in the folder "lora", and the model that both are.
struct MergeTest : testing::Test {
  MergeTest() {
    write(folder.file("base.safetensors"), plain.whole(), std::as_bytes(std::span(weights)));
    base = load_base(plain, folder.file("base.safetensors")).value();
    EXPECT_TRUE(save_adapters(folder.file("lora"), config, base->hash, params).ok());
    expected = Transformer(config, base).merged(params);
  }
  Status merge(const std::string& to, MergeOptions options = {},
               const std::string& from = "base.safetensors") {
    return merge_adapters(folder.file(from), folder.file("lora"), folder.file(to), options);
  }
  void replace(const std::string& file, const std::string& what, const std::string& with) {
    std::string text = text_of(folder.file(file));
    ASSERT_NE(text.find(what), std::string::npos);
    folder.write(file, text.replace(text.find(what), what.size(), with));
  }

  const Folder folder;
  const TransformerConfig plain = config_of("");
  const TransformerConfig config = config_of(",lora=2,lora_alpha=6,lora_targets=q_proj+up_proj");
  const std::vector<float> weights = random_floats(plain.whole(), 1);
  const std::vector<float> params = random_floats(config.trained(), 2);
  Base base;
  std::vector<float> expected;
};

TEST_F(MergeTest, IsTheModelThatWasTrained) {
  ASSERT_THAT(merge("merged.safetensors"), Succeeds());
  const auto merged = load_base(plain, folder.file("merged.safetensors"));
  ASSERT_TRUE(merged.ok()) << merged.error().message();
  ASSERT_EQ((*merged)->values.size(), expected.size());
  EXPECT_NE(expected, weights);
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR((*merged)->values[i], expected[i], 2e-6 * (1 + std::abs(expected[i]))) << i;
  ASSERT_THAT(merge("half.safetensors", {.dtype = DType::kBF16}), Succeeds());
  const auto half = load_base(plain, folder.file("half.safetensors"));
  ASSERT_TRUE(half.ok());
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ((*half)->values[i], f32_from_bf16(bf16_from_f32((*merged)->values[i])));
  EXPECT_THAT(merge("merged.safetensors"),
              FailsWith(ErrorCode::kAlreadyExists, HasSubstr("merged")));
}

TEST_F(MergeTest, TheRootOfTheRankWhereTheConfigSaysSo) {
  ASSERT_THAT(merge("plain.safetensors"), Succeeds());
  replace("lora/adapter_config.json", "\"bias\"", "\"use_rslora\": true, \"bias\"");
  ASSERT_THAT(merge("root.safetensors"), Succeeds());
  const auto by_rank = load_base(plain, folder.file("plain.safetensors")).value()->values;
  const auto by_root = load_base(plain, folder.file("root.safetensors")).value()->values;
  // 6 / 2 and 6 / sqrt(2)
  std::size_t at = 0;
  for (const auto& tensor : plain.whole()) {
    const bool is_adapted = tensor.name.find("q_proj") != std::string::npos;
    for (std::size_t i = at; is_adapted && i < at + tensor.elements(); ++i)
      ASSERT_NEAR(by_root[i] - weights[i], std::sqrt(2.0f) * (by_rank[i] - weights[i]), 1e-4);
    at += tensor.elements();
  }
}

TEST_F(MergeTest, AnotherBaseIsRefusedUnlessThatIsWanted) {
  auto other = weights;
  other[3] += 1;
  write(folder.file("other.safetensors"), plain.whole(), std::as_bytes(std::span(other)));
  EXPECT_THAT(
      merge("out.safetensors", {}, "other.safetensors"),
      FailsWith(ErrorCode::kInvalidArgument,
                AllOf(HasSubstr(std::to_string(base->hash)),
                      HasSubstr(std::to_string(fingerprint(other))), HasSubstr("--any-base"))));
  EXPECT_FALSE(std::ifstream(folder.file("out.safetensors")).is_open());
  EXPECT_THAT(merge("out.safetensors", {.any_base = true}, "other.safetensors"), Succeeds());
}

TEST_F(MergeTest, WhatCannotBeMergedIsNamed) {
  EXPECT_THAT(merge("out.bin"), FailsWith(ErrorCode::kInvalidArgument, HasSubstr(".safetensors")));
  EXPECT_THAT(merge("out.safetensors", {.dtype = DType::kI64}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("f32, bf16 or f16")));
  EXPECT_THAT(merge("out.safetensors", {}, "none.safetensors"),
              FailsWith(ErrorCode::kNotFound, HasSubstr("none.safetensors")));
  const auto narrow = config_of(",hidden=16");
  const auto few = random_floats(narrow.whole(), 1);
  write(folder.file("narrow.safetensors"), narrow.whole(), std::as_bytes(std::span(few)));
  EXPECT_THAT(
      merge("out.safetensors", {}, "narrow.safetensors"),
      FailsWith(ErrorCode::kInvalidArgument,
                AllOf(HasSubstr("up_proj.weight has shape [16, 8]"), HasSubstr("[32, 8]"))));
  const Manifest head{{.name = "head.weight", .dtype = DType::kF32, .shape = {9, 8}}};
  const auto numbers = random_floats(head, 1);
  write(folder.file("head.safetensors"), head, std::as_bytes(std::span(numbers)));
  EXPECT_THAT(merge("out.safetensors", {}, "head.safetensors"),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("contains no matrix blocks.0.")));
  const std::string json = text_of(folder.file("lora/adapter_config.json"));
  const auto refused = [&](const std::string& what, const std::string& with) {
    replace("lora/adapter_config.json", what, with);
    const Status merged = merge("out.safetensors");
    folder.write("lora/adapter_config.json", json);
    return merged.ok() ? std::string("ok") : merged.error().message();
  };
  EXPECT_THAT(refused("\"LORA\"", "\"IA3\""), HasSubstr("peft_type"));
  EXPECT_THAT(refused("\"r\": 2", "\"r\": 3"), HasSubstr("of rank 3"));
  EXPECT_THAT(refused("\"r\": 2", "\"r\": 0"), HasSubstr("above 0"));
  EXPECT_THAT(refused("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true"),
              HasSubstr("fan_in_fan_out"));
  EXPECT_THAT(refused("\"bias\"", "\"rank_pattern\": {\"q_proj\": 4}, \"bias\""),
              HasSubstr("rank_pattern"));
  EXPECT_THAT(refused("{", "["), HasSubstr("not a JSON object"));
  EXPECT_EQ(refused("\"bias\"", "\"rank_pattern\": {}, \"bias\""), "ok");
}

}  // namespace
}  // namespace centroid::worker::adapters_test
