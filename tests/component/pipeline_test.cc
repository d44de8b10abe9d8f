#include "worker/parallel/pipeline.h"

#include "tests/conformance/collective_fixture.h"

namespace centroid::parallel {
namespace {

using namespace std::chrono_literals;
using collective::Group;
using collective::testing::Carrier;
using collective::testing::Job;
using ::testing::HasSubstr;

/// Multiplies by its rank + 2, forward and backward, and records what it has at once.
class Multiply final : public Stage {
 public:
  Multiply(std::uint32_t rank, std::uint32_t stages) : rank_(rank), stages_(stages) {}
  std::size_t input_elements(std::uint32_t micro_batch) const override {
    return rank_ == 0 || micro_batch == empty_ ? 0 : least_ + micro_batch;
  }
  std::size_t output_elements(std::uint32_t micro_batch) const override {
    return rank_ + 1 == stages_ || micro_batch == empty_ ? 0 : least_ + micro_batch;
  }
  Status forward(std::uint32_t micro_batch, std::span<const float> input,
                 std::span<float> output) override {
    most_ = std::max(most_, ++held_);
    std::this_thread::sleep_for(takes_);  // lint-ok: what computing takes
    if (micro_batch == fails_at_) return Error(ErrorCode::kInternal, "this stage is broken");
    for (std::size_t i = 0; i < output.size(); ++i)
      output[i] = rank_ == 0 ? static_cast<float>(micro_batch + i) : input[i] * factor();
    for (const float value : input) inputs_ += value;
    return {};
  }
  Status backward(std::uint32_t, std::span<const float> output_gradient,
                  std::span<float> input_gradient) override {
    --held_;
    std::this_thread::sleep_for(takes_backward_);  // lint-ok: as above
    for (std::size_t i = 0; i < input_gradient.size(); ++i)
      input_gradient[i] = output_gradient.empty() ? 1 : output_gradient[i] * factor();
    for (const float value : output_gradient) gradients_ += value;
    return {};
  }
  float factor() const { return static_cast<float>(rank_ + 2); }

  std::uint32_t rank_, stages_;
  std::uint32_t empty_ = ~0U, fails_at_ = ~0U;
  std::uint32_t held_ = 0, most_ = 0;
  std::size_t least_ = 3;  ///< elements of a message
  std::chrono::milliseconds takes_{0}, takes_backward_{0};
  double inputs_ = 0, gradients_ = 0;
};

std::vector<Actions> schedule_of(Schedule kind, std::uint32_t stages, std::uint32_t micro_batches) {
  return std::move(make_schedule(kind, stages, micro_batches)).value();
}

/// Sum of what stage 0 makes.
double made(std::uint32_t micro_batches, std::uint32_t without = ~0U) {
  double sum = 0;
  for (std::uint32_t m = 0; m < micro_batches; ++m)
    for (std::uint32_t i = 0; i < 3 + m && m != without; ++i) sum += m + i;
  return sum;
}

TEST(Pipeline, ActivationsAndGradientsReachTheNeighbours) {
  constexpr std::uint32_t kMicroBatches = 9;
  for (const Carrier carrier : {Carrier::kInProcess, Carrier::kTcp})
    for (const Schedule kind : {Schedule::kGPipe, Schedule::kOneForwardOneBack})
      for (const std::uint32_t stages : {1U, 2U, 3U, 4U}) {
        SCOPED_TRACE(std::string(to_string(kind)) + " of " + std::to_string(stages));
        const auto schedule = schedule_of(kind, stages, kMicroBatches);
        Job job(carrier, stages);
        job.run([&](Group& group) {
          const std::uint32_t rank = group.rank();
          Multiply stage(rank, stages);
          stage.empty_ = 4;
          const auto ran = run_pipeline(group, schedule, stage, 50s);
          ASSERT_TRUE(ran.ok()) << ran.error().to_string();
          EXPECT_LE(ran->computing, ran->all);
          EXPECT_EQ(stage.most_, most_activations(schedule[rank]));
          double forward = made(kMicroBatches, stage.empty_), backward = 0;
          for (std::uint32_t before = 1; before < rank; ++before) forward *= before + 2;
          for (std::uint32_t m = 0; m < kMicroBatches; ++m)
            backward += m == stage.empty_ ? 0 : 3 + m;
          for (std::uint32_t after = rank + 1; after + 1 < stages; ++after) backward *= after + 2;
          EXPECT_DOUBLE_EQ(stage.inputs_, rank == 0 ? 0 : forward);
          EXPECT_DOUBLE_EQ(stage.gradients_, rank + 1 == stages ? 0 : backward);
        });
      }
}

TEST(Pipeline, AnEvaluationHasOnlyForwards) {
  std::vector<Actions> schedule(3);
  for (Actions& actions : schedule)
    for (std::uint32_t m = 0; m < 5; ++m) actions.push_back({Action::Kind::kForward, m});
  Job job(Carrier::kInProcess, 3);
  job.run([&](Group& group) {
    Multiply stage(group.rank(), 3);
    const auto ran = run_pipeline(group, schedule, stage, 50s);
    ASSERT_TRUE(ran.ok()) << ran.error().to_string();
    const double should[] = {0, made(5), made(5) * 3};
    EXPECT_DOUBLE_EQ(stage.inputs_, should[group.rank()]);
  });
}

TEST(Pipeline, AStageThatFailsEndsAllWithItsError) {
  const auto schedule = schedule_of(Schedule::kOneForwardOneBack, 3, 6);
  Job job(Carrier::kInProcess, 3);
  job.run([&](Group& group) {
    Multiply stage(group.rank(), 3);
    if (group.rank() == 1) stage.fails_at_ = 2;
    const auto ran = run_pipeline(group, schedule, stage, 50s);
    ASSERT_FALSE(ran.ok());
    EXPECT_THAT(ran.error().to_string(), HasSubstr("this stage is broken"));
  });
}

TEST(Pipeline, ALostRankIsNamedWithTheMicroBatch) {
  const auto schedule = schedule_of(Schedule::kOneForwardOneBack, 3, 6);
  Job job(Carrier::kTcp, 3);
  job.run([](Group& group) { EXPECT_TRUE(collective::barrier(group).ok()); });  // all are connected
  job.leave(1);
  job.run([&](Group& group) {
    Multiply stage(group.rank(), 3);
    const auto ran = run_pipeline(group, schedule, stage, 50s);
    ASSERT_FALSE(ran.ok());
    EXPECT_THAT(ran.error().to_string(), HasSubstr("rank 1"));
    EXPECT_THAT(ran.error().to_string(), HasSubstr("micro-batch 0"));
  });
}

/// A message is expected from the beginning of the step, and comes behind what others compute.
TEST(Pipeline, AStepMayTakeLongerThanTheTimeoutOfAMessage) {
  const auto schedule = schedule_of(Schedule::kGPipe, 2, 8);
  Job job(Carrier::kInProcess, 2);
  job.run([&](Group& group) {
    Multiply stage(group.rank(), 2);
    stage.takes_ = 300ms;
    const auto ran = run_pipeline(group, schedule, stage, 1s);
    EXPECT_TRUE(ran.ok()) << ran.error().to_string();
  });
}

/// The stage before makes the backwards of all micro-batches until it has room for the last one's
/// gradient.
TEST(Pipeline, GradientsMayWaitLongerThanTheTimeoutOfAMessage) {
  const auto schedule = schedule_of(Schedule::kGPipe, 2, 8);
  Job job(Carrier::kTcp, 2);
  job.run([&](Group& group) {
    Multiply stage(group.rank(), 2);
    stage.least_ = 1 << 20;  // more than the network's buffers take
    if (group.rank() == 0) stage.takes_backward_ = 400ms;
    const auto ran = run_pipeline(group, schedule, stage, 1s);
    EXPECT_TRUE(ran.ok()) << ran.error().to_string();
  });
}

TEST(Pipeline, AScheduleOfAnotherNumberOfStagesIsRefused) {
  Job job(Carrier::kInProcess, 2);
  job.run([&](Group& group) {
    Multiply stage(group.rank(), 2);
    const auto ran = run_pipeline(group, schedule_of(Schedule::kGPipe, 3, 3), stage, 50s);
    ASSERT_FALSE(ran.ok());
    EXPECT_THAT(ran.error().to_string(), HasSubstr("3 stages for 2 ranks"));
  });
}

}  // namespace
}  // namespace centroid::parallel
