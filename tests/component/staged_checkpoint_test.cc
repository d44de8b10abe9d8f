#include <atomic>
#include <numeric>

#include "common/checkpoint/export.h"
#include "common/checkpoint/safetensors.h"
#include "tests/component/staged_fixture.h"
#include "tests/support/allocation_count.h"

namespace centroid::parallel::testing {
namespace {

using ::testing::HasSubstr;

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
