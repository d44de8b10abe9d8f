#include "worker/parallel/sharded_checkpoint.h"

#include <atomic>
#include <fstream>

#include <nlohmann/json.hpp>

#include "common/checkpoint/export.h"
#include "common/checkpoint/safetensors.h"
#include "tests/component/sharded_checkpoint_fixture.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fault_points.h"

namespace centroid::parallel::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ShardedCheckpointTest, RestoresOnAnyNumberOfRanksAndAnyShardingWithTheSameBits) {
  constexpr std::uint64_t kWritten = 4, kEnd = 14;
  for (std::uint32_t from = 1; from <= 5; ++from) {
    for (const char* from_sharding : shardings_of(from)) {
      fs::remove_all(root());
      write(from, from_sharding, {kWritten});
      for (std::uint32_t to = 1; to <= 5; ++to) {
        Job job(Carrier::kInProcess, to);
        job.run([&](Group& group) {
          for (const char* sharding : shardings_of(to)) {
            SCOPED_TRACE(std::to_string(from) + " ranks with " + from_sharding + ", then " +
                         std::to_string(to) + " with " + sharding);
            Oracle oracle(kModel);
            oracle.run(kWritten);
            const auto checkpoints = opened(group);
            auto back = checkpoints->restore(shapes_of(kModel), options_of(sharding, to));
            ASSERT_TRUE(back.ok()) << refusal(back);
            EXPECT_EQ(back->info.version, Version(kWritten + 1));
            EXPECT_EQ(back->info.offset, 640u);
            expect_same(*back->parameters, oracle);
            ASSERT_TRUE(succeeds(run(*back->parameters, kEnd)));
            oracle.run(kEnd);
            expect_same(*back->parameters, oracle);
          }
        });
      }
    }
  }
}

TEST_F(ShardedCheckpointTest, KeepsTheStateOfEveryRule) {
  for (const std::string& rule : optimizer_names()) {
    SCOPED_TRACE(rule);
    fs::remove_all(root());
    write(3, "full", {3}, rule.c_str());
    Job job(Carrier::kInProcess, 2);
    job.run([&](Group& group) {
      Oracle oracle(kModel, rule.c_str());
      oracle.run(13);
      auto back = opened(group)->restore(shapes_of(kModel), options_of("grad", 2, rule.c_str()));
      ASSERT_TRUE(back.ok()) << refusal(back);
      ASSERT_TRUE(succeeds(run(*back->parameters, 13)));
      expect_same(*back->parameters, oracle);
    });
  }
}

// Real gradients, whose sums depend on their order, and clipping.
TEST_F(ShardedCheckpointTest, ARestoredRunOfTheSameRanksHasTheBitsOfAnUndisturbedOne) {
  const Chain chain;
  Manifest model;
  for (const ParameterShape& shape : chain.shapes())
    model.push_back({shape.name, DType::kF32, {shape.elements}});
  for (const char* sharding : shardings_of(4)) {
    SCOPED_TRACE(sharding);
    fs::remove_all(root());
    ShardedOptions options = options_of(sharding, 4);
    options.optimizer.clip_norm = 0.5;
    const auto train = [&](ShardedParameters& parameters, std::uint32_t rank, std::uint64_t until) {
      ShardedModel sharded(parameters, true);
      while (parameters.steps() < until) {
        (void)chain.run(sharded, parameters.steps() + 1, rank, 3);
        ASSERT_TRUE(succeeds(sharded.status));
        ASSERT_TRUE(parameters.step().ok());
      }
    };
    Job job(Carrier::kInProcess, 4);
    job.run([&](Group& group) {
      const auto initial = [](std::size_t index, std::span<float> out) {
        return Chain::initial(7, index, out);
      };
      const auto checkpoints = opened(group, model);
      auto whole = ShardedParameters::make(group, chain.shapes(), options, initial);
      ASSERT_TRUE(whole.ok());
      train(**whole, group.rank(), 5);
      ASSERT_TRUE(succeeds(checkpoints->write(**whole, info_of(6))));
      train(**whole, group.rank(), 15);
      auto back = checkpoints->restore(chain.shapes(), options);
      ASSERT_TRUE(back.ok()) << refusal(back);
      train(*back->parameters, group.rank(), 15);
      for (std::size_t unit = 0; unit < (*whole)->layout().units().size(); ++unit) {
        const auto values = [](std::span<const float> of) { return Floats(of.begin(), of.end()); };
        EXPECT_EQ(values(back->parameters->shard(unit)), values((*whole)->shard(unit)));
        for (std::size_t slot = 0; slot < 2; ++slot)
          EXPECT_EQ(values(back->parameters->state(unit, slot)),
                    values((*whole)->state(unit, slot)));
      }
    });
  }
}

TEST_F(ShardedCheckpointTest, TrainingGoesOnWhileACopyIsWritten) {
  Job job(Carrier::kInProcess, 3);
  std::optional<test::HeldPoint> held(std::in_place, "checkpoint.file_torn");
  std::atomic<int> trained = 0;
  job.run([&](Group& group) {
    const auto checkpoints = opened(group);
    const auto parameters = made(group, options_of("full", 3));
    ASSERT_TRUE(succeeds(run(*parameters, 4)));
    ASSERT_TRUE(succeeds(checkpoints->begin(*parameters, info_of(5))));
    ASSERT_TRUE(held->wait_reached());
    ASSERT_TRUE(succeeds(run(*parameters, 9)));  // every writer is stopped, or will be
    EXPECT_TRUE(view().list(false).empty());
    ++trained;
    ASSERT_TRUE(succeeds(collective::barrier(group)));
    if (group.rank() == 0) held.reset();
    EXPECT_TRUE(succeeds(checkpoints->wait()));
  });
  EXPECT_EQ(trained, 3);
  EXPECT_EQ(view().list(true).size(), 1u);
}

TEST_F(ShardedCheckpointTest, ACopyIsOfTheStepAtWhichItBegan) {
  Job job(Carrier::kInProcess, 3);
  job.run([&](Group& group) {
    const auto checkpoints = opened(group);
    const auto parameters = made(group, options_of("full", 3));
    for (const std::uint64_t step : {4, 5}) {
      ASSERT_TRUE(succeeds(run(*parameters, step)));
      ASSERT_TRUE(succeeds(checkpoints->begin(*parameters, info_of(step + 1))));
    }
    ASSERT_TRUE(succeeds(run(*parameters, 9)));
    ASSERT_TRUE(succeeds(checkpoints->wait()));
    for (const std::uint64_t step : {4, 5}) {
      Oracle oracle(kModel);
      oracle.run(step);
      const auto back =
          checkpoints->restore(shapes_of(kModel), options_of("full", 3), Version(step + 1));
      ASSERT_TRUE(back.ok()) << refusal(back);
      expect_same(*back->parameters, oracle);
    }
    // The failure of a copy is that of the next call.
    ASSERT_TRUE(succeeds(checkpoints->begin(*parameters, info_of(6))));
    EXPECT_THAT(refusal(checkpoints->wait()), HasSubstr("is there and sound"));
    EXPECT_TRUE(succeeds(checkpoints->write(*parameters, info_of(10))));
  });
}

TEST_F(ShardedCheckpointTest, OtherProgramsFindEveryPieceByTheIndex) {
  write(3, "full", {2});
  Oracle oracle(kModel);
  oracle.run(2);
  const auto index = nlohmann::json::parse(slurp(folder(3) / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], oracle.values.size() * sizeof(float));
  const auto& map = index["weight_map"];
  EXPECT_EQ(map["one"], "model-00003-of-00003.safetensors");  // the last of 34 elements
  std::map<std::string, Floats> joined;
  std::size_t pieces = 0;
  for (const TensorInfo& tensor : kModel) joined[tensor.name].resize(tensor.elements());
  for (const auto& [name, file] : map.items()) {
    const auto reader = SafetensorsReader::open(folder(3) / file.get<std::string>());
    ASSERT_TRUE(reader.ok());
    EXPECT_THAT(reader->metadata().at("pieces"), HasSubstr("NAME[BEGIN:END]"));
    EXPECT_EQ(reader->metadata().at("format"), "centroid");  // others do not join pieces
    const std::size_t bracket = name.find('['), begin = bracket == std::string::npos
                                                            ? 0
                                                            : std::stoul(name.substr(bracket + 1));
    Floats& into = joined.at(name.substr(0, bracket));
    std::size_t count = into.size();
    if (bracket != std::string::npos) count = std::stoul(name.substr(name.find(':') + 1)) - begin;
    ASSERT_TRUE(succeeds(reader->read_f32(name, std::span(into).subspan(begin, count))));
    ++pieces;
  }
  EXPECT_GT(pieces, kModel.size());
  Floats all;
  for (const TensorInfo& tensor : kModel)
    all.insert(all.end(), joined[tensor.name].begin(), joined[tensor.name].end());
  EXPECT_EQ(all, oracle.values);
}

TEST_F(ShardedCheckpointTest, ExportAndOneProcessHaveTheWholeModel) {
  for (const char* sharding : shardings_of(4)) {
    SCOPED_TRACE(sharding);
    fs::remove_all(root());
    write(4, sharding, {3});
    Oracle oracle(kModel);
    oracle.run(3);
    const auto entries = view().list(true);
    ASSERT_EQ(entries.size(), 1u);
    ASSERT_EQ(entries[0].problem, "");
    EXPECT_EQ(entries[0].info.optimizer_step, 3u);
    const fs::path file = root() / "model.safetensors";
    ASSERT_TRUE(succeeds(export_checkpoint(view(), entries[0], file, {})));
    const auto reader = SafetensorsReader::open(file);
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(reader->manifest(), kModel);
    std::size_t at = 0;
    for (const TensorInfo& tensor : kModel) {
      Floats values(tensor.elements());
      ASSERT_TRUE(succeeds(reader->read_f32(tensor.name, values)));
      EXPECT_EQ(values,
                Floats(oracle.values.begin() + at, oracle.values.begin() + at + tensor.elements()));
      at += tensor.elements();
    }
    std::vector<Floats> planes(3, Floats(at));
    const auto take = [&](std::size_t plane, std::uint64_t offset, std::span<const float> from) {
      std::copy(from.begin(), from.end(), planes[plane].begin() + offset);
      return Status();
    };
    ASSERT_TRUE(succeeds(view().read(entries[0], kModel, take)));
    EXPECT_EQ(planes, (std::vector<Floats>{oracle.values, oracle.state[0], oracle.state[1]}));
  }
}

TEST_F(ShardedCheckpointTest, RestoresACheckpointOfOneProcess) {
  Oracle oracle(kModel);
  oracle.run(4);
  auto directory = CheckpointDirectory::open(root(), 3);
  ASSERT_TRUE(directory.ok());
  CheckpointInfo info = info_of(5);
  info.optimizer = "adam";
  info.optimizer_step = 4;
  info.slot_names = {"exp_avg", "exp_avg_sq"};
  const auto planes = [&](std::size_t plane, std::uint64_t offset, std::span<float> into) {
    const Floats& from = plane == 0 ? oracle.values : oracle.state[plane - 1];
    std::copy_n(from.begin() + offset, into.size(), into.begin());
    return Status();
  };
  ASSERT_TRUE(directory->write(info, kModel, planes).ok());
  Job job(Carrier::kInProcess, 3);
  job.run([&](Group& group) {
    auto back = opened(group)->restore(shapes_of(kModel), options_of("full", 3));
    ASSERT_TRUE(back.ok()) << refusal(back);
    expect_same(*back->parameters, oracle);
  });
}

// 16 MiB of parameters with two slots.
TEST_F(ShardedCheckpointTest, MemoryIsForAShardAndForAPieceOfTheExport) {
  const Manifest model = {{"w", DType::kF32, {1024, 2048}}, {"v", DType::kF32, {2048, 1024}}};
  constexpr std::size_t kParameters = std::size_t{16} << 20, kSmall = std::size_t{4} << 20;
  Job job(Carrier::kInProcess, 4);
  std::atomic<std::size_t> before = 0;
  job.run([&](Group& group) {
    const auto checkpoints = opened(group, model);
    auto parameters = made(group, options_of("full", 4), model);
    ASSERT_TRUE(succeeds(collective::barrier(group)));
    if (group.rank() == 0) before = allocated_bytes();
    ASSERT_TRUE(succeeds(collective::barrier(group)));
    ASSERT_TRUE(succeeds(checkpoints->write(*parameters, info_of(1))));
    ASSERT_TRUE(succeeds(collective::barrier(group)));
    if (group.rank() == 0) {
      EXPECT_LT(allocated_bytes() - before, kSmall);
      before = allocated_bytes();
    }
    ASSERT_TRUE(succeeds(collective::barrier(group)));
    const auto back = checkpoints->restore(shapes_of(model), options_of("full", 4));
    ASSERT_TRUE(back.ok()) << refusal(back);
    ASSERT_TRUE(succeeds(collective::barrier(group)));
    if (group.rank() == 0) {
      EXPECT_LT(allocated_bytes() - before, 3 * kParameters + kSmall);  // of 4 ranks
    }
  });
  const auto entries = view().list(false);
  ASSERT_EQ(entries.size(), 1u);
  before = allocated_bytes();
  ASSERT_TRUE(succeeds(export_checkpoint(view(), entries[0], root() / "model.safetensors", {})));
  EXPECT_LT(allocated_bytes() - before, kSmall);
}

TEST_F(ShardedCheckpointTest, DamageIsNamedAndTheOlderOneTaken) {
  const auto damage = [&](const std::function<void(const fs::path&)>& how) {
    fs::remove_all(root());
    write(3, "full", {2, 3});
    how(folder(4));
    EXPECT_EQ(restored(2, std::nullopt), "not refused");  // version 3
    return restored(2, Version(4));
  };
  const std::string part = "model-00002-of-00003.safetensors";
  EXPECT_THAT(damage([&](const fs::path& at) { fs::remove(at / part); }),
              AllOf(HasSubstr("data_loss"), HasSubstr(part)));
  EXPECT_THAT(damage([&](const fs::path& at) { fs::resize_file(at / part, 100); }),
              AllOf(HasSubstr("data_loss"), HasSubstr(part), HasSubstr("100 bytes")));
  EXPECT_THAT(damage([&](const fs::path& at) {
                fs::copy_file(folder(3) / part, at / part, fs::copy_options::overwrite_existing);
              }),
              AllOf(HasSubstr(part), HasSubstr("\"version\" is 3, manifest.json expects 4")));
  EXPECT_THAT(damage([&](const fs::path& at) {
                fs::copy_file(at / "model-00001-of-00003.safetensors", at / part,
                              fs::copy_options::overwrite_existing);
              }),
              HasSubstr("data_loss"));
  EXPECT_THAT(damage([&](const fs::path& at) {
                std::fstream file(at / part, std::ios::in | std::ios::out);
                file.seekp(-1, std::ios::end).put('~');
              }),
              AllOf(HasSubstr(part), HasSubstr("altered")));
  EXPECT_THAT(damage([](const fs::path& at) { fs::remove(at / "manifest.json"); }),
              AllOf(HasSubstr("data_loss"), HasSubstr("manifest.json")));
}

TEST_F(ShardedCheckpointTest, OneOfALaterFormatIsNamedAndNoOlderOneTaken) {
  write(2, "full", {1, 2});
  const fs::path file = folder(3) / "manifest.json";
  std::stringstream content;
  content << std::ifstream(file).rdbuf();
  std::string text = content.str();
  const std::string field = "\"format_version\": ";
  text[text.find(field) + field.size()] = '9';
  std::ofstream(file) << text;
  EXPECT_THAT(restored(2, std::nullopt),
              AllOf(HasSubstr(folder(3).string()), HasSubstr("this program reads up to 2")));
}

TEST_F(ShardedCheckpointTest, AnotherModelOptimizerOrNoneIsRefusedByAll) {
  fs::create_directories(root());
  EXPECT_THAT(restored(3, std::nullopt), HasSubstr("not_found: there is no checkpoint in"));
  write(3, "full", {2});
  EXPECT_THAT(restored(2, Version(9)), HasSubstr("there is no checkpoint of version 9"));
  Manifest other = kModel;
  other[2].shape = {11, 3};
  EXPECT_THAT(restored(2, std::nullopt, other),
              AllOf(HasSubstr("failed_precondition"), HasSubstr("b.weight"), HasSubstr("[11, 3]"),
                    HasSubstr("[3, 11]")));
  EXPECT_THAT(restored(2, std::nullopt, kModel, "sgd"),
              HasSubstr("was made with optimizer 'adam', this job has 'sgd'"));
}

TEST_F(ShardedCheckpointTest, WrongUseIsRefusedBeforeAnythingIsWritten) {
  Job job(Carrier::kInProcess, 2);
  job.run([&](Group& group) {
    ShardedCheckpointOptions options;
    options.folder = root();
    Manifest model = kModel;
    model[1].name = "a.weight[3:4]";
    EXPECT_THAT(refusal(ShardedCheckpoints::open(group, model, options)),
                HasSubstr("a.weight[3:4] has the name of a piece of a.weight"));
    model = kModel;
    model[0].dtype = DType::kBF16;
    EXPECT_THAT(refusal(ShardedCheckpoints::open(group, model, options)),
                HasSubstr("parameter a.weight is bf16; shards are f32"));
    const auto checkpoints = opened(group);
    const auto parameters = made(group, options_of("full", 2));
    EXPECT_THAT(refusal(checkpoints->write(*parameters, info_of(0))),
                HasSubstr("versions count from 1"));
    model.assign(kModel.begin(), kModel.end());
    model[4].shape = {41};
    const auto larger = made(group, options_of("full", 2), model);
    EXPECT_THAT(refusal(checkpoints->write(*larger, info_of(1))),
                HasSubstr("parameter 4 is c.weight with 41 elements, not c.weight [4, 2, 5]"));
    EXPECT_TRUE(view().list(false).empty());
    EXPECT_TRUE(succeeds(checkpoints->write(*parameters, info_of(1))));
  });
}

}  // namespace
}  // namespace centroid::parallel::testing
