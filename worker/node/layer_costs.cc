#include "worker/node/layer_costs.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "common/base/random.h"
#include "transport/collective/collectives.h"
#include "worker/model/backend.h"
#include "worker/node/sharded_replica.h"

namespace centroid::worker {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongPass = 0.05;  ///< seconds of a pass that tells the time of more samples
constexpr double kLongEnough = 0.02, kTooLong = 1;  ///< seconds of repeated passes
constexpr int kLeastRuns = 5, kMostRuns = 20;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Samples for the time only.
class AnySamples {
 public:
  AnySamples(const Model& model, std::uint64_t samples) : ids_(samples) {
    std::iota(ids_.begin(), ids_.end(), 0);
    if (model.vocabulary() == 0)
      x_.assign(samples * model.features(), 0.5F);
    else
      tokens_.resize(samples * model.features());
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<std::uint32_t>(i * 7 % model.vocabulary());
    y_.resize(samples * model.targets());
    for (std::size_t i = 0; i < y_.size(); ++i)
      y_[i] = static_cast<std::uint32_t>(i % model.classes());
  }
  Batch batch() const {
    Batch out;
    out.samples = ids_.size();
    out.x = x_;
    out.tokens = tokens_;
    out.y = y_;
    out.ids = ids_;
    return out;
  }

 private:
  std::vector<float> x_;
  std::vector<std::uint32_t> tokens_, y_;
  std::vector<std::uint64_t> ids_;
};

/// One layer, as a stage of a pipeline computes it.
class LoneLayer {
 public:
  LoneLayer(const Model& model, std::uint32_t layer)
      : model_(model.clone()),
        layered_(*model_->layered()),
        layer_(layer),
        passes_(static_cast<std::uint32_t>(layered_.passes(true).size())),
        is_last_(layer == layered_.layers().back()) {
    layered_.set_stage(layer, layer + 1);
  }

  std::uint64_t bytes(std::uint64_t samples) const {
    return sizeof(float) * (3 * elements() + others()) + model_->work_bytes(samples, true);
  }

  LayerCost measure(std::uint64_t samples) {
    allocate();
    // Beginning with few samples also warms up.
    for (std::uint64_t count = 1;; count = std::min(4 * count, samples)) {
      const AnySamples some(*model_, count);
      std::vector<LayerCost> runs = {run(some.batch())};
      double time = runs.back().sum();
      if (count < samples && time < kLongPass) continue;
      for (int n = 1; n < kMostRuns && time < kTooLong && (n < kLeastRuns || time < kLongEnough);
           ++n) {
        runs.push_back(run(some.batch()));
        time += runs.back().sum();
      }
      const double factor = static_cast<double>(samples) / static_cast<double>(count);
      return {factor * median(runs, &LayerCost::forward),
              factor * median(runs, &LayerCost::backward), median(runs, &LayerCost::accumulate)};
    }
  }

 private:
  std::uint64_t elements() const {
    std::uint64_t sum = 0;
    const auto layers = layered_.layers();
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (layers[i] == layer_) sum += model_->manifest()[i].elements();
    return sum;
  }

  /// Of the other layers, as many as fill the caches.
  std::uint64_t others() const {
    std::uint64_t sum = 0;
    for (const TensorInfo& tensor : model_->manifest()) sum += tensor.elements();
    return std::min(sum - elements(), kCacheBytes / sizeof(float));
  }

  void allocate() {
    const auto layers = layered_.layers();
    values_.resize(elements());
    gradient_.resize(values_.size());
    sum_.resize(values_.size());
    others_.resize(others());
    places_.params.resize(layers.size());
    places_.gradients.resize(layers.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i] != layer_) continue;
      places_.params[i] = values_.data() + at;
      places_.gradients[i] = gradient_.data() + at;
      const std::size_t count = model_->manifest()[i].elements();
      layered_.initialize_tensor(1, TensorId(static_cast<std::uint32_t>(i)),
                                 std::span(values_).subspan(at, count));
      at += count;
    }
  }

  LayerCost run(const Batch& batch) {
    layered_.begin(batch, places_, true);
    CounterRng rng(1, layer_);
    const auto fill = [&](float* to, std::uint64_t of_sample, double scale) {
      for (std::uint64_t i = 0; i < batch.samples * of_sample; ++i)
        to[i] = static_cast<float>(scale * (rng.uniform() - 0.5));
    };
    if (layer_ > 0) fill(layered_.stage_input(), layered_.border(layer_), 1);
    LayerCost cost;
    use_others();
    auto begin = Clock::now();
    layered_.run(layer_);
    if (!is_last_) layered_.stage_output();
    cost.forward = seconds_since(begin);
    if (!is_last_) fill(layered_.stage_gradient(), layered_.border(layer_ + 1), 1e-3);
    const std::uint32_t back = passes_ - 1 - layer_;
    if (back != layer_) {  // else the forward did both
      use_others();
      begin = Clock::now();
      layered_.run(back);
      cost.backward = seconds_since(begin);
    }
    begin = Clock::now();
    for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += 0.5F * gradient_[i];
    cost.accumulate = seconds_since(begin);
    return cost;
  }

  void use_others() {
    for (float& value : others_) value += 1;
  }

  static double median(std::span<LayerCost> runs, double LayerCost::* of) {
    std::ranges::nth_element(runs, runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2), {},
                             of);
    return runs[runs.size() / 2].*of;
  }

  const std::unique_ptr<Model> model_;
  Layered& layered_;
  const std::uint32_t layer_, passes_;
  const bool is_last_;
  std::vector<float> values_, gradient_, sum_, others_;
  TensorPlaces places_;
};

/// For each layer the first one like it: of the same shapes, and as far from the model's ends.
Result<std::vector<std::uint32_t>> kinds_of(const Model& model) {
  CENTROID_ASSIGN(const auto shapes, parameter_shapes(model));
  std::vector<std::vector<Shape>> layers(shapes.back().layer + 1);
  for (std::size_t i = 0; i < shapes.size(); ++i)
    layers[shapes[i].layer].push_back(model.manifest()[i].shape);
  std::map<std::pair<int, std::vector<Shape>>, std::uint32_t> first;
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    const int end = i == 0 ? 0 : i + 1 == layers.size() ? 1 : 2;
    out.push_back(first.try_emplace({end, layers[i]}, i).first->second);
  }
  return out;
}

}  // namespace

std::vector<double> sums_of(std::span<const LayerCost> costs) {
  std::vector<double> out;
  for (const LayerCost& cost : costs) out.push_back(cost.sum());
  return out;
}

Result<std::uint64_t> measuring_bytes(const Model& model, std::uint64_t samples) {
  CENTROID_ASSIGN(const auto kinds, kinds_of(model));
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < kinds.size(); ++i)
    if (kinds[i] == i) most = std::max(most, LoneLayer(model, i).bytes(samples));
  return most;
}

Result<std::vector<LayerCost>> measure_layers(const Model& model, std::uint64_t samples) {
  CENTROID_ASSIGN(const auto kinds, kinds_of(model));
  std::vector<LayerCost> out;
  for (std::uint32_t i = 0; i < kinds.size(); ++i)
    out.push_back(kinds[i] == i ? LoneLayer(model, i).measure(samples) : out[kinds[i]]);
  return out;
}

Result<std::vector<double>> agree_on_costs(const collective::Group& group, std::size_t layers,
                                           std::vector<double> own, std::uint32_t from) {
  own.resize(layers);
  CENTROID_TRY(collective::broadcast(group, std::span<double>(own), from));
  if (std::ranges::all_of(own, [](double cost) { return cost == 0; })) own.clear();
  return own;
}

}  // namespace centroid::worker
