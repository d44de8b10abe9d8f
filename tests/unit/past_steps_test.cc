#include "server/store/past_steps.h"

#include <algorithm>
#include <tuple>

#include <gtest/gtest.h>

#include "common/optim/norm.h"
#include "common/tensor/fragments.h"
#include "tests/unit/store_fixture.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

using journal::Form;

constexpr std::size_t kRounds = 5;

/// Chunks of one block, of several and of a part of one; a buffer; tensors for two fragments.
ChunkPlan plan_with_blocks() {
  const Manifest manifest{{"a", DType::kF32, {70'337}},
                          {"n.running_mean", DType::kF32, {37}},
                          {"b", DType::kF32, {900}},
                          {"c", DType::kF32, {1}}};
  return ChunkPlan::make(manifest, 512 * 1024).value();
}

/// Rounds of a job, as training makes them and as a replay does.
class PastStepsTest : public ::testing::TestWithParam<std::tuple<std::string, Form, int>> {
 protected:
  static Form form() { return std::get<1>(GetParam()); }
  static std::uint64_t fragments() { return static_cast<std::uint64_t>(std::get<2>(GetParam())); }

  std::unique_ptr<ParameterStore> store() const {
    CounterRng rng(3);
    auto made = initialized_store(plan_with_blocks(), std::get<0>(GetParam()), rng);
    made->set_fragments(fragments());
    return made;
  }

  /// A round of `trained`, whose numbers go into the file as a journal has them: in any order.
  void train(ParameterStore& trained, std::size_t number, double clip) {
    PastRound round;
    round.form = form();
    round.segment = segment_;
    round.at.resize(trained.plan().chunks().size());
    round.commit.weight = 1 + static_cast<double>(number);
    round.commit.rate_factor = 1 + 0.25 * static_cast<double>(number % 3);
    std::vector<Chunk> part = fragments_plan_[fragments_plan_.turn(number)].chunks;
    for (std::size_t i = part.size(); i > 1; --i)
      std::swap(part[i - 1], part[static_cast<std::size_t>(rng_.below(i))]);
    trained.set_rate_factor(round.commit.rate_factor);
    for (const Chunk& chunk : part) {
      fill(trained.spare(chunk), rng_);
      if (form() != Form::kParameters) write(round, chunk, trained.spare(chunk));
      if (form() == Form::kSum) trained.scale(chunk, round.commit.weight);
    }
    std::ranges::sort(part, {}, &Chunk::position);
    PlaneNorm norm;
    for (const Chunk& chunk : part) {
      if (!plan_.is_buffer(chunk)) norm.add(chunk.position, trained.spare(chunk));
      norm.end_chunk();
    }
    trained.set_gradient_factor(clip_factor(norm.value(), clip));
    for (const Chunk& chunk : part) {
      if (form() == Form::kMean)
        trained.shadow_apply(chunk);
      else
        trained.apply(chunk);
      if (form() == Form::kParameters) write(round, chunk, trained.spare(chunk));
    }
    if (form() == Form::kMean)
      trained.commit_in_place(part);
    else
      trained.commit_swap(part);
    rounds_.push_back(std::move(round));
  }

  void write(PastRound& round, const Chunk& chunk, std::span<const float> values) {
    round.at[chunk.id.value] = end_;
    ASSERT_TRUE(file::write_at(out_, path_, end_, std::as_bytes(values)).ok());
    end_ += values.size_bytes() + 3;
  }

  std::vector<PastStep> steps(ParameterStore& store, std::size_t from, std::size_t count) const {
    std::vector<PastStep> made(count);
    for (std::size_t i = 0; i < count; ++i) {
      made[i].round = &rounds_[from + i];
      store.set_rate_factor(made[i].round->commit.rate_factor);
      const std::uint64_t before = fragments_plan_.steps_before(store.optimizer_step() + i);
      made[i].rule = store.optimizer().at(before + 1);
    }
    return made;
  }

  const TemporaryDirectory folder_;
  const std::filesystem::path path_ = folder_.path() / "numbers";
  const file::Descriptor out_ = file::create(path_).value();
  const std::shared_ptr<const journal::Segment> segment_ =
      std::make_shared<const journal::Segment>(path_, file::open_regular(path_).value());
  const ChunkPlan plan_ = plan_with_blocks();
  const FragmentPlan fragments_plan_ =
      FragmentPlan::make(plan_, static_cast<std::uint32_t>(fragments())).value();
  CounterRng rng_{17};
  std::uint64_t end_ = 5;
  std::vector<PastRound> rounds_;
};

TEST_P(PastStepsTest, GiveTheBitsOfRoundByRoundHoweverManyAreMadeTogether) {
  const auto trained = store();
  if (form() == Form::kParameters && trained->optimizer().slots() > 0) return;  // never so
  for (std::size_t i = 0; i < kRounds; ++i) train(*trained, i, 0);
  for (const std::size_t together : {std::size_t{1}, std::size_t{2}, kRounds}) {
    const auto replayed = store();
    bool has_run = false;
    for (std::size_t done = 0; done < kRounds; done += together) {
      const auto made = steps(*replayed, done, std::min(together, kRounds - done));
      ASSERT_TRUE(step_again(*replayed, made, [&] { has_run = true; }).ok());
      for (std::size_t i = 0; i < made.size(); ++i) replayed->commit_in_place();
    }
    EXPECT_TRUE(has_run);
    EXPECT_EQ(replayed->optimizer_step(), trained->optimizer_step());
    EXPECT_EQ(replayed->version(), trained->version());
    EXPECT_TRUE(planes_of(*replayed) == planes_of(*trained)) << together;
  }
}

TEST_P(PastStepsTest, ClipAsTheRoundsDid) {
  if (form() == Form::kParameters) return;  // rounds that clip have no such
  constexpr double kClip = 20;              // above some norms and below others
  const auto trained = store(), replayed = store();
  for (std::size_t i = 0; i < kRounds; ++i) train(*trained, i, kClip);
  auto made = steps(*replayed, 0, kRounds);
  const auto squares = squares_again(*replayed, made);
  ASSERT_TRUE(squares.ok());
  std::size_t clipped = 0;
  for (std::size_t i = 0; i < kRounds; ++i) {
    PlaneNorm norm;
    for (const double one : (*squares)[i]) norm.add_chunk(one);
    made[i].gradient_factor = clip_factor(norm.value(), kClip);
    if (made[i].gradient_factor != 1) ++clipped;
  }
  EXPECT_GT(clipped, 0U);
  ASSERT_TRUE(step_again(*replayed, made, [] {}).ok());
  EXPECT_TRUE(planes_of(*replayed) == planes_of(*trained));
}

TEST_P(PastStepsTest, SayThatTheFileEnds) {
  const auto trained = store();
  train(*trained, 0, 0);
  ASSERT_TRUE(file::truncate(out_, path_, 100).ok());
  const auto made = steps(*trained, 0, 1);
  EXPECT_EQ(step_again(*trained, made, [] {}).error().code(), ErrorCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(, PastStepsTest,
                         ::testing::Combine(::testing::ValuesIn(optimizer_names()),
                                            ::testing::Values(Form::kSum, Form::kMean,
                                                              Form::kParameters),
                                            ::testing::Values(1, 2)));

}  // namespace
}  // namespace centroid::server
