#include <atomic>
#include <cerrno>
#include <latch>

#include "tests/component/sharded_checkpoint_fixture.h"
#include "tests/support/faulty_storage.h"

namespace centroid::parallel::testing {
namespace {

using collective::testing::with_faults;
using ::testing::HasSubstr;

// A disk's error at the n-th operation of a rank, for every n: all ranks get it, the older
// checkpoint stays, and the next write succeeds.
TEST_F(ShardedCheckpointTest, AnErrorOfADiskIsThatOfAllAndHarmsNothing) {
  for (const std::uint32_t bad : {0u, 1u}) {
    for (int fail_at = 1, is_over = 0; is_over == 0; ++fail_at) {
      ASSERT_LT(fail_at, 300);
      SCOPED_TRACE("rank " + std::to_string(bad) + ", operation " + std::to_string(fail_at));
      fs::remove_all(root());
      Job job(Carrier::kInProcess, 3);
      std::atomic<int> written = 0, failed_operations = 0;
      job.run([&](Group& group) {
        const auto checkpoints = opened(group);
        const auto parameters = made(group, options_of("full", 3));
        ASSERT_TRUE(succeeds(checkpoints->write(*parameters, info_of(1))));
        ASSERT_TRUE(succeeds(run(*parameters, 2)));
        Status status;
        {
          int operations = 0;
          const test::ScopedFaults hook([&](std::string_view operation, const fs::path&) {
            if (group.rank() != bad || test::is_query(operation)) return 0;
            if (++operations != fail_at) return 0;
            ++failed_operations;
            return ENOSPC;
          });
          status = checkpoints->write(*parameters, info_of(2));
        }
        written += status.ok() ? 1 : 0;
        if (status.ok()) return;
        EXPECT_THAT(refusal(status), HasSubstr("No space left"));
        EXPECT_TRUE(succeeds(collective::barrier(group)));
        if (group.rank() == 0) {
          EXPECT_EQ(view().list(true).size(), 1u);
        }
        EXPECT_TRUE(succeeds(collective::barrier(group)));
        EXPECT_TRUE(succeeds(checkpoints->write(*parameters, info_of(2))));
      });
      ASSERT_TRUE(written == 0 || written == 3);
      for (const CheckpointEntry& entry : view().list(true)) EXPECT_EQ(entry.problem, "");
      EXPECT_EQ(view().list(true).size(), 2u);
      is_over = failed_operations == 0 ? 1 : 0;
    }
  }
}

// A rank is gone from its n-th file operation on, for every n: its connections too.
TEST_F(ShardedCheckpointTest, ADeathAtAnyOperationLeavesAWholeCheckpoint) {
  for (const std::uint32_t bad : {0u, 2u}) {
    bool has_new = false, has_old = false;
    for (int die_at = 1, is_over = 0; is_over == 0; ++die_at) {
      ASSERT_LT(die_at, 300);
      SCOPED_TRACE("rank " + std::to_string(bad) + ", operation " + std::to_string(die_at));
      fs::remove_all(root());
      write(3, "full", {2});
      transport::FaultPlan plan;
      plan.action = transport::FaultPlan::Action::kFail;
      plan.at_operation = 0;
      std::atomic<int> written = 0;
      std::atomic<bool> is_dead = false;
      {
        Job job(Carrier::kInProcess, 3, with_faults(bad, plan));
        std::latch trained(3);  // a dead rank ends operations that others have not ended
        job.run([&](Group& group) {
          const auto checkpoints = opened(group);
          auto back = checkpoints->restore(shapes_of(kModel), options_of("full", 3));
          ASSERT_TRUE(back.ok()) << refusal(back);
          ASSERT_TRUE(succeeds(run(*back->parameters, 5)));
          trained.arrive_and_wait();
          int operations = 0;
          const test::ScopedFaults hook([&](std::string_view, const fs::path&) {
            if (group.rank() != bad || ++operations < die_at) return 0;
            if (!is_dead.exchange(true)) *plan.operations = 0;
            return EIO;
          });
          written += checkpoints->write(*back->parameters, info_of(6)).ok() ? 1 : 0;
        });
      }
      Job job(Carrier::kInProcess, 2);
      job.run([&](Group& group) {
        const auto checkpoints = opened(group);
        auto back = checkpoints->restore(shapes_of(kModel), options_of("full", 2));
        ASSERT_TRUE(back.ok()) << refusal(back);
        const std::uint64_t step = back->parameters->steps();
        ASSERT_TRUE(step == 2 || step == 5);
        if (written > 0) {
          EXPECT_EQ(step, 5u);
        }
        Oracle oracle(kModel);
        oracle.run(step);
        expect_same(*back->parameters, oracle);
        if (group.rank() == 0) (step == 5 ? has_new : has_old) = true;
        EXPECT_TRUE(succeeds(checkpoints->write(*back->parameters, info_of(7))));
      });
      for (const auto& item : fs::directory_iterator(root()))
        EXPECT_FALSE(item.path().filename().string().starts_with(".")) << item.path();
      is_over = is_dead ? 0 : 1;
      if (!is_dead) {
        EXPECT_EQ(written, 3);
      }
    }
    EXPECT_TRUE(has_old);
    EXPECT_TRUE(has_new);
  }
}

}  // namespace
}  // namespace centroid::parallel::testing
