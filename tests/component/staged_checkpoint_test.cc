#include <atomic>
#include <numeric>

#include "common/checkpoint/export.h"
#include "common/checkpoint/safetensors.h"
#include "tests/component/sharded_checkpoint_fixture.h"
#include "tests/support/allocation_count.h"
#include "worker/parallel/stages.h"

namespace centroid::parallel::testing {
namespace {

using ::testing::HasSubstr;

/// A rank of a job with stages, each of whose layers is a tensor.
struct Staged {
  Staged(const Group& group, const char* mesh_text, const Manifest& of,
         std::vector<double> costs = {})
      : mesh(std::move(Mesh::parse(mesh_text, group.world())).value()), model(of) {
    const std::uint32_t index = mesh.place_of(group.rank()).pipeline,
                        stages = mesh.size(Axis::kPipeline);
    costs.resize(model.size(), 1);
    const Range own = std::move(split_into_stages(costs, stages)).value()[index];
    for (std::size_t i = 0; i < own.begin; ++i) first += model[i].elements();
    const auto begin = model.begin() + static_cast<std::ptrdiff_t>(own.begin);
    tensors.assign(begin, begin + static_cast<std::ptrdiff_t>(own.count));
    auto ranks = group.subgroup(mesh.ranks_along(Axis::kData, group.rank()));
    if (stages > 1) stage = CheckpointStage{std::move(*ranks), own, index, stages};
  }

  const Group& data(const Group& group) const { return stage ? stage->ranks : group; }
  ShardedOptions options(const char* sharding, const char* rule = "adam") const {
    return options_of(sharding, mesh.size(Axis::kData), rule);
  }
  std::unique_ptr<ShardedCheckpoints> open(const Group& group, const fs::path& root) const {
    ShardedCheckpointOptions options;
    options.folder = root;
    options.timeout = 30s;
    options.stage = stage;
    auto opened = ShardedCheckpoints::open(group, model, options);
    EXPECT_TRUE(opened.ok()) << refusal(opened);
    return std::move(*opened);
  }
  std::unique_ptr<ShardedParameters> make(const Group& group, const char* sharding) const {
    const auto initial = [&](std::size_t index, std::span<float> out) {
      std::uint64_t element = first;
      for (std::size_t i = 0; i < index; ++i) element += tensors[i].elements();
      for (float& value : out) value = initial_of(element++);
      return Status();
    };
    auto made =
        ShardedParameters::make(data(group), shapes_of(tensors), options(sharding), initial);
    EXPECT_TRUE(made.ok()) << refusal(made);
    return std::move(*made);
  }

  const Mesh mesh;
  const Manifest model;
  Manifest tensors;  ///< of this rank's stage
  std::uint64_t first = 0;
  std::optional<CheckpointStage> stage;
};

struct MeshCase {
  const char* mesh;
  std::uint32_t world;
  const char* sharding;
  std::vector<double> costs{};  ///< of layers
};
const MeshCase kMeshes[] = {
    {"pp=2", 2, "none"},
    {"pp=5", 5, "none"},
    {"dp=2,pp=2", 4, "full"},
    {"dp=2,pp=2", 4, "none"},
    {"dp=4,pp=2", 8, "hybrid:2"},
    {"dp=3,pp=2", 6, "grad"},
    {"dp=3", 3, "full"},
    {"dp=2", 2, "none"},
    {"dp=1", 1, "full"},
    {"pp=2", 2, "none", {9}},
    {"dp=2,pp=2", 4, "full", {1, 1, 1, 1, 9}},
};

class StagedCheckpointTest : public ShardedCheckpointTest {
 protected:
  void write_staged(const MeshCase& from, std::uint64_t step) {
    Job job(Carrier::kInProcess, from.world);
    job.run([&](Group& group) {
      const Staged staged(group, from.mesh, kModel, from.costs);
      const auto checkpoints = staged.open(group, root());
      const auto parameters = staged.make(group, from.sharding);
      ASSERT_TRUE(succeeds(run(*parameters, step, staged.first)));
      ASSERT_TRUE(succeeds(checkpoints->begin(*parameters, info_of(step + 1))));
      ASSERT_TRUE(succeeds(checkpoints->wait()));
    });
  }
};

TEST_F(StagedCheckpointTest, IsRestoredOntoAnyStagesAndRanksWithTheSameBits) {
  constexpr std::uint64_t kWritten = 4, kEnd = 9;
  for (const MeshCase& from : kMeshes) {
    fs::remove_all(root());
    write_staged(from, kWritten);
    for (const MeshCase& to : kMeshes) {
      SCOPED_TRACE(std::string(from.mesh) + " " + from.sharding + ", then " + to.mesh + " " +
                   to.sharding + ", first layer costs " +
                   std::to_string(to.costs.empty() ? 1 : to.costs[0]));
      Job job(Carrier::kInProcess, to.world);
      job.run([&](Group& group) {
        Oracle oracle(kModel);
        oracle.run(kWritten);
        const Staged staged(group, to.mesh, kModel, to.costs);
        auto back = staged.open(group, root())
                        ->restore(shapes_of(staged.tensors), staged.options(to.sharding));
        ASSERT_TRUE(back.ok()) << refusal(back);
        EXPECT_EQ(back->info.version, Version(kWritten + 1));
        expect_same(*back->parameters, oracle, staged.first);
        ASSERT_TRUE(succeeds(run(*back->parameters, kEnd, staged.first)));
        oracle.run(kEnd);
        expect_same(*back->parameters, oracle, staged.first);
      });
    }
  }
}

TEST_F(StagedCheckpointTest, ExportHasTheWholeModelAndVerifyFindsItSound) {
  write_staged({"dp=2,pp=2", 4, "full"}, 3);
  Oracle oracle(kModel);
  oracle.run(3);
  const auto entries = view().list(true);
  ASSERT_EQ(entries.size(), 1u);
  ASSERT_EQ(entries[0].problem, "");
  EXPECT_TRUE(fs::exists(folder(4) / "model-00004-of-00004.safetensors"));
  const fs::path file = root() / "model.safetensors";
  ASSERT_TRUE(succeeds(export_checkpoint(view(), entries[0], file, {})));
  const auto reader = SafetensorsReader::open(file);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->manifest(), kModel);
  Floats all;
  for (const TensorInfo& tensor : kModel) {
    Floats values(tensor.elements());
    ASSERT_TRUE(succeeds(reader->read_f32(tensor.name, values)));
    all.insert(all.end(), values.begin(), values.end());
  }
  EXPECT_EQ(all, oracle.values);
}

TEST_F(StagedCheckpointTest, AMissingPartOfOneStageIsRefusedOnAll) {
  write_staged({"dp=2,pp=2", 4, "full"}, 3);
  fs::remove(folder(4) / "model-00003-of-00004.safetensors");
  Job job(Carrier::kInProcess, 2);
  job.run([&](Group& group) {
    const Staged staged(group, "pp=2", kModel);
    EXPECT_THAT(
        refusal(
            staged.open(group, root())->restore(shapes_of(staged.tensors), staged.options("none"))),
        HasSubstr("model-00003"));
  });
}

TEST_F(StagedCheckpointTest, AStageThatCannotBeReadIsTheFailureOfAll) {
  write_staged({"pp=2", 2, "none"}, 3);
  Job job(Carrier::kInProcess, 4);
  job.run([&](Group& group) {
    const Staged staged(group, "dp=2,pp=2", kModel);
    const auto checkpoints = staged.open(group, root());
    ShardedOptions options = staged.options("full");
    if (staged.stage->index == 1) options.replicas = 2;  // refused while the others read
    EXPECT_THAT(refusal(checkpoints->restore(shapes_of(staged.tensors), options)),
                HasSubstr("rank 2"));
  });
}

// 16 MiB of parameters with two slots.
TEST_F(StagedCheckpointTest, MemoryIsForAStage) {
  const Manifest model = {{"a", DType::kF32, {1024, 1024}},
                          {"b", DType::kF32, {1024, 1024}},
                          {"c", DType::kF32, {1024, 1024}},
                          {"d", DType::kF32, {1024, 1024}}};
  constexpr std::size_t kParameters = std::size_t{16} << 20, kSmall = std::size_t{4} << 20;
  Job job(Carrier::kInProcess, 4);
  std::atomic<std::size_t> before = 0;
  job.run([&](Group& group) {
    const Staged staged(group, "pp=4", model);
    const auto checkpoints = staged.open(group, root());
    const auto parameters = staged.make(group, "none");
    const auto in_turn = [&](const std::function<void()>& call) {
      ASSERT_TRUE(succeeds(collective::barrier(group)));
      if (group.rank() == 0) call();
      ASSERT_TRUE(succeeds(collective::barrier(group)));
    };
    in_turn([&] { before = allocated_bytes(); });
    ASSERT_TRUE(succeeds(checkpoints->write(*parameters, info_of(1))));
    in_turn([&] {
      EXPECT_LT(allocated_bytes() - before, kSmall);
      before = allocated_bytes();
    });
    const auto back = checkpoints->restore(shapes_of(staged.tensors), staged.options("none"));
    ASSERT_TRUE(back.ok()) << refusal(back);
    in_turn([&] { EXPECT_LT(allocated_bytes() - before, 3 * kParameters + kSmall); });
  });
}

}  // namespace
}  // namespace centroid::parallel::testing
