#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/base/random.h"
#include "worker/data/data_source.h"
#include "worker/model/model.h"

/// Random batches and data for tests of models and replica groups.
namespace centroid::worker::test {

inline std::size_t elements_of(const Manifest& manifest) {
  std::size_t n = 0;
  for (const auto& tensor : manifest) n += tensor.elements();
  return n;
}

inline std::vector<float> random_floats(std::size_t n, std::uint64_t seed, double spread) {
  CounterRng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(spread * rng.normal());
  return out;
}

/// Owns the memory of a Batch.
struct Example {
  std::vector<float> x;
  std::vector<std::uint32_t> tokens, y, lengths;
  std::vector<std::uint64_t> ids;
  Batch batch() const {
    Batch batch;
    batch.x = x;
    batch.y = y;
    batch.tokens = tokens;
    batch.lengths = lengths;
    batch.ids = ids;
    batch.samples = ids.size();
    batch.noise = 5;
    return batch;
  }
};

inline Example random_example(const Model& model, std::size_t samples, std::uint64_t seed) {
  CounterRng rng(seed);
  Example e;
  if (model.vocabulary() == 0) e.x = random_floats(samples * model.features(), seed, 1);
  for (std::size_t i = 0; i < samples * model.features() && model.vocabulary() > 0; ++i)
    e.tokens.push_back(static_cast<std::uint32_t>(rng.below(model.vocabulary())));
  for (std::size_t i = 0; i < samples * model.targets(); ++i)
    e.y.push_back(static_cast<std::uint32_t>(rng.below(model.classes())));
  if (model.targets() > 1 && samples > 0) e.y.back() = kNoTarget;  // the last sample is short
  for (std::size_t i = 0; i < samples; ++i) {
    e.ids.push_back(100 + 7 * i);
    if (model.vocabulary() > 0 && model.targets() == 1)
      e.lengths.push_back(static_cast<std::uint32_t>(1 + rng.below(model.features())));
  }
  return e;
}

/// For models of mlp:12-...-5.
inline Dataset random_data(std::uint64_t samples, std::uint64_t seed) {
  CounterRng rng(seed);
  Dataset data;
  data.name = "random";
  data.samples = samples;
  data.features = 12;
  data.classes = 5;
  for (std::uint64_t i = 0; i < samples * data.features; ++i)
    data.x.push_back(static_cast<float>(rng.normal()));
  for (std::uint64_t i = 0; i < samples; ++i)
    data.y.push_back(static_cast<std::uint32_t>(rng.below(data.classes)));
  return data;
}

inline std::vector<std::uint64_t> first(std::uint64_t n) {
  std::vector<std::uint64_t> index(n);
  std::iota(index.begin(), index.end(), 0);
  return index;
}

/// Largest difference relative to the largest element.
inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 1e-30, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a[i]}));
    worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
  }
  return worst / largest;
}

}  // namespace centroid::worker::test
