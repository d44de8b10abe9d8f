#include "worker/parallel/regroup.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>

#include "tests/component/staged_fixture.h"

namespace centroid::parallel::testing {
namespace {

using collective::testing::with_faults;
using ::testing::HasSubstr;

ShardedOptions safe_options(const char* sharding, std::uint32_t world, double clip = 0) {
  ShardedOptions options = options_of(sharding, world);
  options.replicas = world > 1 ? 1 : 0;
  options.optimizer.clip_norm = clip;
  return options;
}

ShardedOptions safe_with_copies(const char* sharding, std::uint32_t world) {
  return safe_options(sharding, world);
}
ShardedOptions bf16_options(const char* sharding, std::uint32_t world) {
  ShardedOptions options = safe_options(sharding, world);
  options.codec = options.codec_down = bf16();
  return options;
}

using Parameters = std::unique_ptr<ShardedParameters>;

/// Without stages.
Result<Parameters> regrouped(const Group& group, const std::vector<ParameterShape>& shapes,
                             const ShardedOptions& options, ShardedParameters* old) {
  const Portion all{0, {0, shapes.size()}};
  CENTROID_ASSIGN(Regrouped made,
                  regroup(group, {shapes}, options, Earlier{old, all}, Later{group, all, options}));
  EXPECT_EQ(made.step, made.parameters->steps());
  return std::move(made.parameters);
}

/// Parameters, state, and copies of both are those of one process.
void expect_same_with_copies(const ShardedParameters& parameters, const Oracle& oracle) {
  expect_same(parameters, oracle);
  const ShardLayout& layout = parameters.layout();
  for (std::size_t unit = 0; parameters.has_copy() && unit < layout.units().size(); ++unit) {
    const Range shard = layout.shard(unit, parameters.copied_rank());
    const std::uint64_t begin = layout.units()[unit].elements.begin + shard.begin;
    const auto expect = [&](std::span<const float> is, const Floats& all) {
      ASSERT_EQ(is.size(), shard.count);
      EXPECT_EQ(std::memcmp(is.data(), all.data() + begin, is.size_bytes()), 0);
    };
    expect(parameters.copy(unit), oracle.values);
    for (std::size_t slot = 0; slot < oracle.state.size(); ++slot)
      expect(parameters.copy_state(unit, slot), oracle.state[slot]);
  }
}

/// Steps of a job of `world` ranks; what they have then.
std::vector<Parameters> trained(Job& job, const char* sharding, std::uint64_t steps) {
  std::vector<Parameters> out(job.world());
  job.run([&](Group& group) {
    out[group.rank()] = made(group, safe_options(sharding, job.world()));
    ASSERT_TRUE(succeeds(run(*out[group.rank()], steps)));
  });
  return out;
}

/// A later generation of these goes on from `step` on, as one process does.
void go_on(const std::vector<ShardedParameters*>& old, const char* sharding, std::uint64_t step) {
  const auto world = static_cast<std::uint32_t>(old.size());
  Job job(Carrier::kInProcess, world);
  job.run([&](Group& group) {
    auto next =
        regrouped(group, shapes_of(kModel), safe_options(sharding, world), old[group.rank()]);
    ASSERT_TRUE(next.ok()) << refusal(next);
    ASSERT_EQ((*next)->steps(), step);
    Oracle oracle(kModel);
    oracle.run(step);
    expect_same_with_copies(**next, oracle);
    ASSERT_TRUE(succeeds(run(**next, step + 3)));
    oracle.run(step + 3);
    expect_same_with_copies(**next, oracle);
  });
}

TEST(Replicas, HaveTheBitsOfTheShardsThatTheyCopy) {
  for (std::uint32_t world = 2; world <= 5; ++world) {
    for (const char* sharding : shardings_of(world)) {
      SCOPED_TRACE(std::to_string(world) + " ranks, " + sharding);
      Job job(Carrier::kInProcess, world);
      const std::vector<Parameters> all = trained(job, sharding, 5);
      Oracle oracle(kModel);
      oracle.run(5);
      const bool needs_copy = std::string(sharding) == "full" || std::string(sharding) == "grad" ||
                              std::string(sharding) == "hybrid:4";
      for (const Parameters& one : all) {
        EXPECT_EQ(one->has_copy(), needs_copy);
        expect_same_with_copies(*one, oracle);
      }
    }
  }
}

TEST(Replicas, AreClippedByTheNormOfTheWholeGradient) {
  Job job(Carrier::kInProcess, 3);
  std::vector<Parameters> all(3);
  job.run([&](Group& group) {
    all[group.rank()] = made(group, safe_options("full", 3, 0.25));
    ASSERT_TRUE(succeeds(run(*all[group.rank()], 5)));
  });
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const Parameters& owner = all[(rank + 2) % 3];
    for (std::size_t unit = 0; unit < owner->layout().units().size(); ++unit) {
      const auto copy = all[rank]->copy(unit), shard = owner->shard(unit);
      EXPECT_TRUE(std::ranges::equal(copy, shard));
    }
  }
}

TEST(Replicas, AnyNumberOfRanksGoesOnFromMemory) {
  for (const auto& [from, from_sharding] :
       {std::pair{2u, "full"}, {3u, "full"}, {4u, "hybrid:2"}, {5u, "grad"}, {3u, "none"}}) {
    Job job(Carrier::kInProcess, from);
    const std::vector<Parameters> all = trained(job, from_sharding, 4);
    for (std::uint32_t to = from - 1; to <= 5; ++to) {
      const std::uint32_t lost = to < from ? 1 : 0;
      for (const char* sharding : shardings_of(to)) {
        SCOPED_TRACE(std::to_string(from) + " ranks with " + from_sharding + ", then " +
                     std::to_string(to) + " with " + sharding);
        std::vector<ShardedParameters*> old;
        for (std::uint32_t rank = lost; rank < from; ++rank) old.push_back(all[rank].get());
        old.resize(to, nullptr);  // newcomers
        go_on(old, sharding, 4);
      }
    }
  }
}

TEST(Replicas, LeaveNoSpareMemoryBesideTheNewShards) {
  Job job(Carrier::kInProcess, 3);
  const std::vector<Parameters> all = trained(job, "full", 2);
  std::vector<ShardedParameters*> old;
  for (const Parameters& one : all) old.push_back(one.get());
  for (ShardedParameters* const one : old) ASSERT_GT(one->buffers().spare(), 0u);
  go_on(old, "full", 2);
  for (ShardedParameters* const one : old) EXPECT_EQ(one->buffers().spare(), 0u);
}

// A rank fails at its n-th network operation of a step, for every n.
TEST(Replicas, ALossAtAnyMomentLosesNoStepThatAnyRankMade) {
  for (const auto& [world, sharding, then, is_bf16] : {std::tuple{2u, "full", "full", false},
                                                       {3u, "full", "full", false},
                                                       {3u, "grad", "grad", false},
                                                       {4u, "hybrid:2", "full", false},
                                                       {3u, "none", "none", false},
                                                       {3u, "full", "full", true},
                                                       {3u, "grad", "grad", true},
                                                       {4u, "hybrid:2", "full", true},
                                                       {3u, "none", "none", true}}) {
    const auto options = is_bf16 ? &bf16_options : &safe_with_copies;
    const bool has_values = is_bf16 && std::string(sharding) != "none";
    for (const std::uint32_t bad : {0u, world - 1}) {
      bool has_old = false, has_new = false;
      for (std::uint64_t at = 0, is_over = 0; is_over == 0; ++at) {
        ASSERT_LT(at, 2000u);
        SCOPED_TRACE(std::to_string(world) + " ranks, " + sharding + ", rank " +
                     std::to_string(bad) + ", operation " + std::to_string(at) +
                     (is_bf16 ? ", bf16" : ""));
        transport::FaultPlan plan;
        plan.action = transport::FaultPlan::Action::kFail;
        plan.at_operation = at;
        Job job(Carrier::kInProcess, world, with_faults(bad, plan));
        std::vector<Parameters> all(world);
        std::latch ready(world), set(world);
        job.run([&](Group& group) {
          Parameters& own = all[group.rank()];
          own = made(group, options(sharding, world));
          ASSERT_TRUE(succeeds(run(*own, 2)));
          ready.arrive_and_wait();
          if (group.rank() == bad) *plan.operations = 0;
          set.arrive_and_wait();
          (void)run(*own, 3);
        });
        std::uint64_t most = 0;
        std::vector<ShardedParameters*> old;
        for (const Parameters& one : all) {
          most = std::max(most, one->steps());
          if (one != all[bad]) old.push_back(one.get());
        }
        ASSERT_TRUE(most == 2 || most == 3);
        is_over = *plan.operations <= at ? 1 : 0;
        std::atomic<std::uint64_t> step = 0;
        {
          Job later(Carrier::kInProcess, world - 1);
          later.run([&](Group& group) {
            auto next =
                regrouped(group, shapes_of(kModel), options(then, world - 1), old[group.rank()]);
            ASSERT_TRUE(next.ok()) << refusal(next);
            step = (*next)->steps();
            Oracle oracle(kModel);
            oracle.has_bf16_gradients = is_bf16;
            oracle.has_bf16_values = has_values;
            oracle.run(step);
            expect_same_with_copies(**next, oracle);
            ASSERT_TRUE(succeeds(run(**next, 5)));
            oracle.run(5);
            expect_same_with_copies(**next, oracle);
          });
        }
        ASSERT_GE(step, most);
        ASSERT_LE(step, 3u);
        (step == 2 ? has_old : has_new) = true;
      }
      EXPECT_TRUE(has_old);
      EXPECT_TRUE(has_new);
    }
  }
}

std::vector<std::string> refusals(const std::vector<ShardedParameters*>& old,
                                  const Manifest& model = kModel) {
  Job job(Carrier::kInProcess, static_cast<std::uint32_t>(old.size()));
  std::vector<std::string> out(old.size());
  job.run([&](Group& group) {
    out[group.rank()] = refusal(
        regrouped(group, shapes_of(model),
                  options_of("full", static_cast<std::uint32_t>(old.size())), old[group.rank()]));
  });
  for (const std::string& one : out) EXPECT_EQ(one, out[0]);
  return out;
}

TEST(Replicas, TwoPartnersLostAtOnceAreAnErrorOfAll) {
  Job job(Carrier::kInProcess, 4);
  const std::vector<Parameters> all = trained(job, "full", 3);
  EXPECT_THAT(refusals({all[0].get(), all[3].get()})[0],
              HasSubstr("no rank has shard 1 of 4 of step 3; restore a checkpoint"));
  go_on({all[0].get(), all[2].get()}, "full", 3);  // of two others nothing is lost
}

TEST(Replicas, WrongUseIsAnErrorOfAll) {
  EXPECT_THAT(refusals({nullptr, nullptr})[0], HasSubstr("no rank has a shard"));
  Job job(Carrier::kInProcess, 3);
  const std::vector<Parameters> all = trained(job, "full", 1);
  Manifest other = kModel;
  other[1].shape = {8};
  EXPECT_THAT(refusals({all[0].get(), nullptr}, other)[0],
              HasSubstr("the parameters or the least elements of a unit are others than before"));
  Job one(Carrier::kInProcess, 1);
  one.run([](Group& group) {
    ShardedOptions options = options_of("full", 1);
    options.replicas = 1;
    EXPECT_THAT(refusal(ShardedParameters::make(group, shapes_of(kModel), options, nullptr)),
                HasSubstr("fewer than the 1 ranks; asked for 1"));
  });
}

// One more gradient of a shard from each rank in each step, and its memory once more.
TEST(Replicas, CostAShardOfTrafficAndMemory) {
  const Manifest model = {{"w", DType::kF32, {256, 256}}};
  const double bytes = 4.0 * 256 * 256;
  const auto sent = [&](std::uint32_t replicas, std::uint64_t steps) {
    Job job(Carrier::kTcp, 4);
    std::atomic<std::uint64_t> total = 0;
    job.run([&](Group& group) {
      ShardedOptions options = options_of("full", 4);
      options.replicas = replicas;
      const Parameters own = made(group, options, model);
      ASSERT_TRUE(succeeds(run(*own, steps)));
      ASSERT_TRUE(succeeds(collective::barrier(group)));
      total += group.traffic().bytes_out;
      EXPECT_EQ(own->memory().parameters, (1 + replicas) * bytes / 4);
      EXPECT_EQ(own->memory().state, 2 * (1 + replicas) * bytes / 4);
    });
    return static_cast<double>(total);
  };
  const double with = sent(1, 5) - sent(1, 1), without = sent(0, 5) - sent(0, 1);
  EXPECT_NEAR((with - without) / (4 * 4), bytes / 4, 0.05 * bytes / 4);
}

/// What a rank of a job with stages has.
struct StagedRank {
  Parameters parameters{};
  Range range{};
  Earlier earlier(std::uint32_t model = 0) const { return {parameters.get(), {model, range}}; }
};

ShardedOptions options_of_stage(const Staged& staged, const Group& group, const char* sharding) {
  ShardedOptions options = staged.options(sharding);
  auto line = group.subgroup(staged.mesh.ranks_along(Axis::kPipeline, group.rank()));
  options.parts = std::move(*line);
  options.replicas = staged.mesh.size(Axis::kData) > 1 ? 1 : 0;
  return options;
}

StagedRank made_stage(const Group& group, const MeshCase& of) {
  const Staged staged(group, of.mesh, kModel, of.costs);
  const auto initial = [&](std::size_t index, std::span<float> out) {
    std::uint64_t element = staged.first;
    for (std::size_t i = 0; i < index; ++i) element += staged.tensors[i].elements();
    for (float& value : out) value = initial_of(element++);
    return Status();
  };
  auto made = ShardedParameters::make(staged.data(group), cut(shapes_of(kModel), staged.parameters),
                                      options_of_stage(staged, group, of.sharding), initial);
  EXPECT_TRUE(made.ok()) << refusal(made);
  return {std::move(*made), staged.parameters};
}

std::vector<StagedRank> trained_stages(Job& job, const MeshCase& of, std::uint64_t steps) {
  std::vector<StagedRank> out(job.world());
  job.run([&](Group& group) {
    out[group.rank()] = made_stage(group, of);
    const Staged staged(group, of.mesh, kModel, of.costs);
    ASSERT_TRUE(succeeds(run(*out[group.rank()].parameters, steps, staged.first)));
  });
  return out;
}

/// A later generation of these ranks, of which the first ones have that mesh and the others wait.
/// Returns the step from which it goes on, as one process does.
std::uint64_t go_on_in_stages(const std::vector<Earlier>& old, const MeshCase& to) {
  Job job(Carrier::kInProcess, static_cast<std::uint32_t>(old.size()));
  std::atomic<std::uint64_t> step = 0;
  job.run([&](Group& group) {
    const std::vector<std::vector<ParameterShape>> models = {shapes_of(kModel)};
    const ShardedOptions common = options_of("none", 1);
    std::vector<std::uint32_t> first(to.world);
    for (std::uint32_t i = 0; i < to.world; ++i) first[i] = i;
    if (group.rank() >= to.world) {
      const auto none = regroup(group, models, common, old[group.rank()], std::nullopt);
      ASSERT_TRUE(none.ok()) << refusal(none);
      EXPECT_EQ(none->parameters, nullptr);
      return;
    }
    const auto ranks = group.subgroup(first);
    const Staged staged(*ranks, to.mesh, kModel, to.costs);
    const Later later{
        staged.data(*ranks), {0, staged.parameters}, options_of_stage(staged, *ranks, to.sharding)};
    const auto next = regroup(group, models, common, old[group.rank()], later);
    ASSERT_TRUE(next.ok()) << refusal(next);
    step = next->step;
    Oracle oracle(kModel);
    oracle.run(step);
    expect_same(*next->parameters, oracle, staged.first);
    ASSERT_TRUE(succeeds(run(*next->parameters, step + 3, staged.first)));
    oracle.run(step + 3);
    expect_same(*next->parameters, oracle, staged.first);
  });
  return step;
}

TEST(Stages, AnyMeshGoesOnInAnyOtherFromMemory) {
  for (const MeshCase& from : kMeshes) {
    Job job(Carrier::kInProcess, from.world);
    const std::vector<StagedRank> all = trained_stages(job, from, 4);
    for (const MeshCase& to : kMeshes) {
      SCOPED_TRACE(std::string(from.mesh) + " " + from.sharding + ", then " + to.mesh + " " +
                   to.sharding + ", first layer costs " +
                   std::to_string(to.costs.empty() ? 1 : to.costs[0]));
      std::vector<Earlier> old;
      for (const StagedRank& one : all) old.push_back(one.earlier());
      old.resize(std::max(from.world, to.world) + 1);  // newcomers, of whom one waits
      std::ranges::rotate(old, old.end() - 1);         // none of them is the first rank
      EXPECT_EQ(go_on_in_stages(old, to), 4u);
    }
  }
}

TEST(Stages, TheLossOfAnyRankOfWhichThereIsACopyLosesNothing) {
  for (const char* sharding : {"none", "grad", "full"}) {
    for (std::uint32_t lost = 0; lost < 4; ++lost) {
      SCOPED_TRACE(std::string(sharding) + ", rank " + std::to_string(lost));
      Job job(Carrier::kInProcess, 4);
      const std::vector<StagedRank> all = trained_stages(job, {"dp=2,pp=2", 4, sharding}, 4);
      std::vector<Earlier> old;
      for (std::uint32_t rank = 0; rank < 4; ++rank)
        if (rank != lost) old.push_back(all[rank].earlier());
      EXPECT_EQ(go_on_in_stages(old, {"pp=2", 2, "none"}), 4u);
      EXPECT_EQ(go_on_in_stages(old, {"dp=1", 1, "none"}), 4u);
    }
  }
}

// A rank fails at its n-th network operation of a step, for every n.
TEST(Stages, AllStagesMakeAStepOrNone) {
  for (const auto& [bad, sharding] : {std::pair{0u, "none"}, {3u, "none"}, {1u, "full"}}) {
    const MeshCase mesh{"dp=2,pp=2", 4, sharding};
    bool has_old = false, has_new = false;
    for (std::uint64_t at = 0, is_over = 0; is_over == 0; ++at) {
      ASSERT_LT(at, 2000u);
      SCOPED_TRACE("rank " + std::to_string(bad) + ", operation " + std::to_string(at));
      transport::FaultPlan plan;
      plan.action = transport::FaultPlan::Action::kFail;
      plan.at_operation = at;
      Job job(Carrier::kInProcess, 4, with_faults(bad, plan));
      std::vector<StagedRank> all(4);
      std::latch ready(4), set(4);
      job.run([&](Group& group) {
        StagedRank& own = all[group.rank()];
        own = made_stage(group, mesh);
        const Staged staged(group, mesh.mesh, kModel);
        ASSERT_TRUE(succeeds(run(*own.parameters, 2, staged.first)));
        ready.arrive_and_wait();
        if (group.rank() == bad) *plan.operations = 0;
        set.arrive_and_wait();
        (void)run(*own.parameters, 3, staged.first);
      });
      std::uint64_t most = 0;
      std::vector<Earlier> old;
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        most = std::max(most, all[rank].parameters->steps());
        if (rank != bad) old.push_back(all[rank].earlier());
      }
      is_over = *plan.operations <= at ? 1 : 0;
      const std::uint64_t step = go_on_in_stages(old, {"pp=2", 2, "none"});
      ASSERT_GE(step, most);
      ASSERT_LE(step, 3u);
      (step == 2 ? has_old : has_new) = true;
    }
    EXPECT_TRUE(has_old);
    EXPECT_TRUE(has_new);
  }
}

/// The refusal of ranks of a job of one data rank with stages, when one of them waits.
std::vector<std::string> refusals_of_stages(const std::vector<Earlier>& old) {
  Job job(Carrier::kInProcess, static_cast<std::uint32_t>(old.size()));
  std::vector<std::string> out(old.size());
  job.run([&](Group& group) {
    const std::vector<std::vector<ParameterShape>> models = {shapes_of(kModel)};
    out[group.rank()] =
        refusal(regroup(group, models, options_of("none", 1), old[group.rank()], std::nullopt));
  });
  for (const std::string& one : out) EXPECT_EQ(one, out[0]);
  return out;
}

TEST(Stages, ALostStageIsAnErrorOfAll) {
  Job job(Carrier::kInProcess, 3), other(Carrier::kInProcess, 2);
  const std::vector<StagedRank> all = trained_stages(job, {"pp=3", 3, "none"}, 4);
  EXPECT_THAT(refusals_of_stages({all[0].earlier(), Earlier(), all[2].earlier()})[0],
              HasSubstr("no rank has parameter b.weight; restore a checkpoint"));
  EXPECT_THAT(refusals_of_stages({all[0].earlier(), all[1].earlier()})[0],
              HasSubstr("no rank has parameter c.weight; restore a checkpoint"));
  const std::vector<StagedRank> half = trained_stages(other, {"pp=2", 2, "none"}, 4);
  EXPECT_THAT(refusals_of_stages({all[0].earlier(), half[0].earlier(), half[1].earlier()})[0],
              HasSubstr("different generations"));
}

// Tensor parallel ranks have models of their own, of which a rank gets that of its place.
TEST(Stages, PartsOfTensorsStayWithTheirPart) {
  Manifest other = kModel;
  other[0].shape = {5, 6};
  const Manifest* const models[] = {&kModel, &other};
  const std::vector<std::vector<ParameterShape>> shapes = {shapes_of(kModel), shapes_of(other)};
  const Portion all[] = {{0, {0, kModel.size()}}, {1, {0, kModel.size()}}};
  std::vector<Parameters> had(4);
  const auto of_part = [](const Group& group) {  // those with the same tensor rank
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = group.rank() % 2; rank < group.world(); rank += 2)
      ranks.push_back(rank);
    return std::move(group.subgroup(std::move(ranks))).value();
  };
  Job job(Carrier::kInProcess, 4);
  job.run([&](Group& group) {
    Parameters& own = had[group.rank()];
    own = made(of_part(group), options_of("none", 2), *models[group.rank() % 2]);
    ASSERT_TRUE(succeeds(run(*own, 3)));
  });
  Job later(Carrier::kInProcess, 3);  // rank 1 is lost; what rank 2 had is not needed
  later.run([&](Group& group) {
    const std::uint32_t before = group.rank() == 0 ? 0 : group.rank() + 1;
    const Earlier old{had[before].get(), all[before % 2]};
    const ShardedOptions options = options_of("none", 1);
    std::optional<Later> next;
    const std::uint32_t part = group.rank();
    if (part < 2) next = Later{*group.subgroup({part}), all[part], options};
    const auto made = regroup(group, shapes, options, old, next);
    ASSERT_TRUE(made.ok()) << refusal(made);
    EXPECT_EQ(made->step, 3u);
    if (part == 2) return;
    Oracle oracle(*models[part]);
    oracle.run(3);
    expect_same(*made->parameters, oracle);
  });
}

}  // namespace
}  // namespace centroid::parallel::testing
