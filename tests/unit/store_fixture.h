#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/optim/optimizer.h"
#include "server/store/parameter_store.h"

namespace centroid::server {

inline ChunkPlan plan_of(std::initializer_list<std::uint64_t> sizes, std::uint64_t chunk_bytes) {
  Manifest manifest;
  for (const std::uint64_t size : sizes)
    manifest.push_back({std::string(manifest.size() + 1, 't'), DType::kF32, {size}});
  auto plan = ChunkPlan::make(std::move(manifest), chunk_bytes);
  CENTROID_CHECK(plan.ok());
  return std::move(plan).value();
}

/// Odd sizes, an empty tensor, tensors of one and of many chunks.
inline ChunkPlan small_plan() { return plan_of({37, 1, 0, 130, 16, 77}, 64); }

inline std::unique_ptr<Optimizer> optimizer_of(const std::string& name) {
  OptimizerConfig config;
  config.name = name;
  if (name != "mean") config.weight_decay = 0.01;
  auto optimizer = make_optimizer(config);
  CENTROID_CHECK(optimizer.ok());
  return std::move(optimizer).value();
}

inline void fill(std::span<float> values, CounterRng& rng) {
  for (float& x : values) x = static_cast<float>(rng.normal());
}

inline std::unique_ptr<ParameterStore> initialized_store(ChunkPlan plan, const std::string& name,
                                                         CounterRng& rng) {
  auto store = std::make_unique<ParameterStore>(std::move(plan), optimizer_of(name));
  for (const Chunk& chunk : store->plan().chunks()) fill(store->initial(chunk), rng);
  store->initialize();
  return store;
}

/// Parameters, then slots, copied end to end.
using Planes = std::vector<std::vector<float>>;

inline Planes planes_of(const ParameterStore& store) {
  Planes planes(1 + store.optimizer().slots());
  for (std::size_t k = 0; k < planes.size(); ++k) {
    for (const Chunk& chunk : store.plan().chunks()) {
      const auto values = store.values(k, chunk);
      planes[k].insert(planes[k].end(), values.begin(), values.end());
    }
  }
  return planes;
}

/// How a round's result is applied.
enum class Mode { kSwap, kInPlace };

/// One chunk of a round: a random sum, its mean, the optimizer's step.
inline void advance(ParameterStore& store, const Chunk& chunk, Mode mode, CounterRng& rng) {
  fill(store.spare(chunk), rng);
  store.scale(chunk, 3.0);
  if (mode == Mode::kSwap)
    store.apply(chunk);
  else
    store.shadow_apply(chunk);
}

inline void commit(ParameterStore& store, Mode mode) {
  if (mode == Mode::kSwap)
    store.commit_swap();
  else
    store.commit_in_place();
}

inline void run_round(ParameterStore& store, Mode mode, CounterRng& rng) {
  for (const Chunk& chunk : store.plan().chunks()) advance(store, chunk, mode, rng);
  commit(store, mode);
}

}  // namespace centroid::server
