#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/optim/norm.h"
#include "common/tensor/fingerprint.h"
#include "tests/unit/store_fixture.h"

namespace centroid::server {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const std::vector<std::string> kOptimizers{"sgd", "momentum", "nesterov", "adam", "adamw"};

TEST(ParameterStore, BeginsWithZerosEvenInUsedMemory) {
  for (const std::uint64_t size : {100ull, 3'000'001ull}) {
    {
      Buffer used(size * sizeof(float));
      std::fill_n(used.data(), used.size(), std::byte{0x5A});
    }
    ParameterStore store(plan_of({size}, 1 << 20), optimizer_of("adam"));
    for (const auto& plane : planes_of(store))
      EXPECT_THAT(fingerprint(plane), fingerprint(std::vector<float>(size)));
    for (const Chunk& chunk : store.plan().chunks())
      ASSERT_EQ(fingerprint(std::as_const(store).spare(chunk)),
                fingerprint(std::vector<float>(chunk.elements)));
  }
}

TEST(ParameterStore, HoldsTwoPlanesAndTheSlotsAndNothingElse) {
  CounterRng rng(1);
  const std::uint64_t plane = small_plan().total_elements() * sizeof(float);
  const std::vector<std::uint64_t> planes{2, 3, 3, 4, 4};
  for (std::size_t i = 0; i < kOptimizers.size(); ++i) {
    const auto store = initialized_store(small_plan(), kOptimizers[i], rng);
    EXPECT_EQ(store->memory_bytes(), planes[i] * plane) << kOptimizers[i];
    run_round(*store, Mode::kSwap, rng);
    run_round(*store, Mode::kInPlace, rng);
    EXPECT_EQ(store->memory_bytes(), planes[i] * plane) << kOptimizers[i];
  }
}

TEST(ParameterStore, CountsVersionsAndOptimizerSteps) {
  CounterRng rng(2);
  ParameterStore fresh(small_plan(), optimizer_of("sgd"));
  EXPECT_EQ(fresh.version(), Version(0));
  const auto store = initialized_store(small_plan(), "sgd", rng);
  EXPECT_EQ(store->version(), Version(1));
  EXPECT_EQ(store->optimizer_step(), 0u);
  run_round(*store, Mode::kSwap, rng);
  EXPECT_EQ(store->version(), Version(2));
  EXPECT_EQ(store->optimizer_step(), 1u);
  run_round(*store, Mode::kInPlace, rng);
  EXPECT_EQ(store->version(), Version(3));
  EXPECT_EQ(store->optimizer_step(), 2u);
  const Planes before = planes_of(*store);
  store->commit_unchanged();
  EXPECT_EQ(store->version(), Version(4));
  EXPECT_EQ(store->optimizer_step(), 2u);
  EXPECT_EQ(planes_of(*store), before);
}

TEST(ParameterStore, WhatResultsLeaveOutGrowsInSpareAndIsTheResidualWithTheCommit) {
  CounterRng rng(21);
  ParameterStore store(small_plan(), optimizer_of("momentum"), true);
  for (const Chunk& chunk : store.plan().chunks()) fill(store.initial(chunk), rng);
  store.initialize();
  EXPECT_EQ(store.memory_bytes(), 4 * small_plan().total_elements() * sizeof(float));
  EXPECT_THAT(store.residual(), Each(0.0f));
  const auto leave = [&](float left) {
    for (const Chunk& chunk : store.plan().chunks()) std::ranges::fill(store.spare(chunk), left);
  };
  leave(3);  // an attempt that fails
  EXPECT_THAT(store.residual(), Each(0.0f));
  leave(4);
  const std::vector<float> mean(store.plan().max_chunk_elements(), 0.5f);
  for (const Chunk& chunk : store.plan().chunks())
    store.shadow_apply(chunk, std::span(mean).first(chunk.elements));
  store.commit_in_place();
  EXPECT_THAT(store.residual(), Each(4.0f));
  EXPECT_THAT(store.values(1, store.plan().chunks()[0]), Each(testing::Ne(4.0f)));
  store.clear_residual();
  EXPECT_THAT(store.residual(), Each(0.0f));
}

TEST(ParameterStore, SnapshotAndLoadIncludeTheResidual) {
  CounterRng rng(22);
  ParameterStore store(small_plan(), optimizer_of("momentum"), true);
  store.initialize();
  const std::uint64_t total = store.plan().total_elements();
  const auto round = [&](float left) {
    const std::vector<float> mean(store.plan().max_chunk_elements(), 0.5f);
    for (const Chunk& chunk : store.plan().chunks()) {
      std::ranges::fill(store.spare(chunk), left);
      store.shadow_apply(chunk, std::span(mean).first(chunk.elements));
    }
    store.commit_in_place();
  };
  round(5);
  const auto snapshot = store.begin_snapshot(1 << 20);
  round(6);
  round(7);  // writes where the snapshot's residual lies
  std::vector<float> read(total);
  ASSERT_TRUE(snapshot->read(2, 0, read).ok());
  EXPECT_THAT(read, Each(5.0f));
  ASSERT_TRUE(store.load(2, 0, read).ok());
  EXPECT_THAT(store.residual(), Each(5.0f));
  EXPECT_FALSE(store.load(3, 0, read).ok());
  ParameterStore without(small_plan(), optimizer_of("momentum"));
  EXPECT_FALSE(without.load(2, 0, read).ok());
}

class EveryOptimizer : public ::testing::TestWithParam<std::string> {};

// The worker runs its optimizer over its own memory, uncut: all three must hold the same bits.
TEST_P(EveryOptimizer, GivesTheBitsOfOneFlatStepByServerAndByWorker) {
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  CounterRng swap_rng(kSeed), place_rng(kSeed), flat_rng(kSeed);
  const auto by_server = initialized_store(small_plan(), GetParam(), swap_rng);
  const auto by_worker = initialized_store(small_plan(), GetParam(), place_rng);

  const auto optimizer = optimizer_of(GetParam());
  const auto total = static_cast<std::size_t>(small_plan().total_elements());
  Planes flat(1 + optimizer->slots(), std::vector<float>(total));
  fill(flat[0], flat_rng);
  const std::vector<std::span<float>> slots(flat.begin() + 1, flat.end());

  for (std::uint64_t round = 1; round <= 5; ++round) {
    run_round(*by_server, Mode::kSwap, swap_rng);
    run_round(*by_worker, Mode::kInPlace, place_rng);
    std::vector<float> gradient(total);
    fill(gradient, flat_rng);
    for (float& x : gradient) x *= static_cast<float>(1.0 / 3.0);
    optimizer->step(round, flat[0], gradient, slots, flat[0]);
    for (std::size_t k = 0; k < flat.size(); ++k) {
      ASSERT_EQ(fingerprint(planes_of(*by_server)[k]), fingerprint(flat[k])) << "plane " << k;
      ASSERT_EQ(fingerprint(planes_of(*by_worker)[k]), fingerprint(flat[k])) << "plane " << k;
    }
    ASSERT_EQ(by_server->fingerprint(), fingerprint(flat[0]));
    ASSERT_EQ(by_worker->fingerprint(), fingerprint(flat[0]));
  }
}

/// Whoever steps: a buffer loses the mean of its changes, without rate, decay, clipping and slots.
TEST_P(EveryOptimizer, StepsBuffersByTheirChangeAlone) {
  const Manifest manifest{{"n.running_mean", DType::kF32, {37}},
                          {"w", DType::kF32, {20}},
                          {"n.running_var", DType::kF32, {17}}};
  for (const Mode mode : {Mode::kSwap, Mode::kInPlace}) {
    CounterRng rng(5);
    const auto store = initialized_store(ChunkPlan::make(manifest, 64).value(), GetParam(), rng);
    store->set_rate_factor(3);
    std::vector<float> right = planes_of(*store)[0];
    for (int round = 0; round < 3; ++round) {
      store->set_gradient_factor(0.25F);
      for (const Chunk& chunk : store->plan().chunks()) {
        fill(store->spare(chunk), rng);
        store->scale(chunk, 3.0);
        const auto mean = std::as_const(*store).spare(chunk);
        for (std::size_t i = 0; i < chunk.elements; ++i) right[chunk.position + i] -= mean[i];
        if (mode == Mode::kSwap)
          store->apply(chunk);
        else
          store->shadow_apply(chunk);
      }
      commit(*store, mode);
    }
    const Planes planes = planes_of(*store);
    for (const Chunk& chunk : store->plan().chunks())
      for (std::size_t i = chunk.position; i < chunk.position + chunk.elements; ++i) {
        EXPECT_EQ(planes[0][i] == right[i], store->plan().is_buffer(chunk)) << i;
        for (std::size_t k = 1; k < planes.size(); ++k)
          EXPECT_EQ(planes[k][i] == 0, store->plan().is_buffer(chunk)) << i;
      }
  }
}

TEST_P(EveryOptimizer, LeavesTheMeanInSpareWhenTheWorkersApply) {
  CounterRng rng(5);
  const auto store = initialized_store(small_plan(), GetParam(), rng);
  const Chunk& chunk = store->plan().chunks()[1];
  std::fill_n(store->spare(chunk).begin(), chunk.elements, 6.0f);
  store->scale(chunk, 4.0);
  store->shadow_apply(chunk);
  EXPECT_THAT(std::as_const(*store).spare(chunk), Each(1.5f));
}

TEST_P(EveryOptimizer, KeepsTheCommittedParametersUntilTheSwap) {
  CounterRng rng(6);
  const auto store = initialized_store(small_plan(), GetParam(), rng);
  const auto before = planes_of(*store)[0];
  for (const Chunk& chunk : store->plan().chunks()) advance(*store, chunk, Mode::kSwap, rng);
  EXPECT_EQ(planes_of(*store)[0], before);
  store->commit_swap();
  EXPECT_NE(planes_of(*store)[0], before);
}

INSTANTIATE_TEST_SUITE_P(, EveryOptimizer, ::testing::ValuesIn(kOptimizers));

TEST(ParameterStore, HoldsFollowTheMemoryThroughSwaps) {
  CounterRng rng(7);
  const auto store = initialized_store(small_plan(), "sgd", rng);
  const ChunkId chunk(3), other(4);
  const auto reply = store->hold_spare(chunk);
  const auto second = store->hold_spare(chunk);
  EXPECT_TRUE(store->spare_is_read(chunk));
  EXPECT_FALSE(store->spare_is_read(other));
  EXPECT_FALSE(store->params_are_read(chunk));

  store->commit_swap();
  EXPECT_FALSE(store->spare_is_read(chunk));
  EXPECT_TRUE(store->params_are_read(chunk));
  store->release(reply);
  store->commit_swap();
  EXPECT_TRUE(store->spare_is_read(chunk));
  store->release(second);
  EXPECT_FALSE(store->spare_is_read(chunk));
}

TEST(ParameterStoreDeathTest, RefusesToWriteWhatIsBeingSent) {
  CounterRng rng(8);
  const auto store = initialized_store(small_plan(), "sgd", rng);
  const Chunk& chunk = store->plan().chunks()[0];
  const auto reply = store->hold_spare(chunk.id);
  EXPECT_DEATH(store->scale(chunk, 1.0), "is_held");
  EXPECT_DEATH(store->apply(chunk), "is_held");
  store->shadow_apply(chunk);
  store->commit_swap();
  EXPECT_DEATH(store->shadow_apply(chunk), "is_held");
  store->release(reply);
  EXPECT_DEATH(store->release(reply), "holds_");
}

TEST(ParameterStoreDeathTest, RefusesWrongOrder) {
  CounterRng rng(9);
  const auto store = initialized_store(small_plan(), "momentum", rng);
  const Chunk& chunk = store->plan().chunks()[0];
  EXPECT_DEATH(store->initial(chunk), "version_");
  EXPECT_DEATH(store->initialize(), "version_");
  EXPECT_DEATH(store->scale(chunk, 0.0), "total_weight");
  advance(*store, chunk, Mode::kSwap, rng);
  EXPECT_DEATH(store->commit_unchanged(), "is_ahead_");
}

TEST(ParameterStore, ContinuesFromLoadedPlanesWithTheSameBits) {
  CounterRng rng(10);
  const auto source = initialized_store(small_plan(), "adam", rng);
  for (int i = 0; i < 3; ++i) run_round(*source, Mode::kSwap, rng);

  ParameterStore copy(small_plan(), optimizer_of("adam"));
  const Planes planes = planes_of(*source);
  for (std::size_t k = 0; k < planes.size(); ++k) {
    const std::span<const float> values(planes[k]);
    for (std::size_t at = 0; at < values.size();) {
      const auto count = std::min<std::size_t>(1 + rng.below(40), values.size() - at);
      ASSERT_TRUE(copy.load(k, at, values.subspan(at, count)).ok());
      at += count;
    }
  }
  copy.restore(source->version(), source->optimizer_step());
  EXPECT_EQ(copy.version(), source->version());
  EXPECT_EQ(copy.optimizer_step(), 3u);
  EXPECT_EQ(planes_of(copy), planes);
  CounterRng left(11), right(11);
  run_round(*source, Mode::kSwap, left);
  run_round(copy, Mode::kInPlace, right);
  EXPECT_EQ(planes_of(copy), planes_of(*source));
}

TEST(ParameterStore, ValuesStayOldUntilTheWorkersStateIsLoaded) {
  CounterRng rng(5);
  const auto store = initialized_store(small_plan(), "adam", rng);
  const Planes before = planes_of(*store);
  store->commit_elsewhere();
  store->commit_elsewhere();
  EXPECT_EQ(store->version(), Version(3));
  EXPECT_EQ(store->optimizer_step(), 2u);
  EXPECT_EQ(store->held(), Version(1));
  EXPECT_FALSE(store->is_current());
  EXPECT_EQ(planes_of(*store), before);
  EXPECT_EQ(store->begin_snapshot(1 << 20), nullptr)
      << "a checkpoint of old values, newly numbered";

  std::vector<float> values(store->plan().total_elements());
  store->begin_replacing();
  EXPECT_EQ(store->held(), Version());
  for (std::size_t plane = 0; plane < before.size(); ++plane) {
    fill(values, rng);
    ASSERT_TRUE(store->load(plane, 0, values).ok());
  }
  EXPECT_EQ(store->begin_snapshot(1 << 20), nullptr) << "half of the planes may be old";
  store->end_replacing();
  EXPECT_TRUE(store->is_current());
  EXPECT_EQ(planes_of(*store).back(), values);
  EXPECT_NE(store->begin_snapshot(1 << 20), nullptr);
}

TEST(ParameterStore, RefusesToLoadOutsideItsPlanes) {
  ParameterStore store(small_plan(), optimizer_of("momentum"));
  const std::uint64_t total = store.plan().total_elements();
  const std::vector<float> values(3, 1.0f);
  EXPECT_TRUE(store.load(1, total - 3, values).ok());
  EXPECT_TRUE(store.load(0, total, {}).ok());
  for (const auto& [plane, offset] : {std::pair<std::size_t, std::uint64_t>{2, 0},
                                      {0, total - 2},
                                      {1, total},
                                      {0, std::numeric_limits<std::uint64_t>::max()}}) {
    const Status status = store.load(plane, offset, values);
    ASSERT_FALSE(status.ok()) << plane << " " << offset;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_THAT(planes_of(store)[0], Each(0.0f));
}

TEST(ParameterStore, RefusesToLoadOverWhatIsBeingSent) {
  CounterRng rng(12);
  const auto store = initialized_store(small_plan(), "sgd", rng);
  const Chunk& chunk = store->plan().chunks()[2];
  const auto reply = store->hold_spare(chunk.id);
  store->commit_swap();
  const float one = 1.0f;
  const Status status = store->load(0, chunk.position, {&one, 1});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.error().message(), HasSubstr("chunk 2"));
  EXPECT_TRUE(store->load(0, chunk.position - 1, {&one, 1}).ok());
  EXPECT_TRUE(store->load(0, chunk.position + chunk.elements, {&one, 1}).ok());
  store->release(reply);
  EXPECT_TRUE(store->load(0, chunk.position, {&one, 1}).ok());
}

/// Adam over gradients whose norm is bounded, in double. The norm is one of all tensors.
TEST(ParameterStore, ClippedStepsFollowTheFormulasInDoubleOverAThousandSteps) {
  constexpr double kBound = 30;  // of norms of about sqrt(997), 31.6: now clipped and now not
  CounterRng rng(5);
  const auto store = initialized_store(plan_of({500, 1, 496}, 256), "adam", rng);
  const OptimizerConfig config = store->optimizer().config();
  std::vector<double> p, m(997), v(997);
  for (const Chunk& chunk : store->plan().chunks())
    for (const float x : store->params(chunk)) p.push_back(x);
  std::size_t clipped = 0;
  for (int t = 1; t <= 1000; ++t) {
    std::vector<double> g;
    PlaneNorm norm;
    for (const Chunk& chunk : store->plan().chunks()) {
      fill(store->spare(chunk), rng);
      for (const float x : store->spare(chunk)) g.push_back(x);
      norm.add(chunk.position, std::as_const(*store).spare(chunk));
      norm.end_chunk();
    }
    store->set_gradient_factor(clip_factor(norm.value(), kBound));
    for (const Chunk& chunk : store->plan().chunks()) store->apply(chunk);
    store->commit_swap(store->plan().chunks());
    double squares = 0;
    for (const double x : g) squares += x * x;
    const double factor = std::min(1.0, kBound / std::sqrt(squares));
    clipped += factor < 1;
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double x = g[i] * factor + config.weight_decay * p[i];
      m[i] = config.beta1 * m[i] + (1 - config.beta1) * x;
      v[i] = config.beta2 * v[i] + (1 - config.beta2) * x * x;
      p[i] -= config.learning_rate * (m[i] / (1 - std::pow(config.beta1, t))) /
              (std::sqrt(v[i] / (1 - std::pow(config.beta2, t))) + config.epsilon);
    }
  }
  double error = 0, length = 0;
  std::size_t i = 0;
  for (const Chunk& chunk : store->plan().chunks())
    for (const float x : store->params(chunk)) {
      error += (x - p[i]) * (x - p[i]);
      length += p[i] * p[i];
      ++i;
    }
  std::printf("clipped %zu of 1000 steps: ||p - p64|| / ||p64|| = %.2e\n", clipped,
              std::sqrt(error / length));
  EXPECT_LE(std::sqrt(error / length), 1e-6);
  EXPECT_GT(clipped, 500u);
  EXPECT_LT(clipped, 1000u);
}

}  // namespace
}  // namespace centroid::server
