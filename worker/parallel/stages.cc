#include "worker/parallel/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace centroid::parallel {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

Status check_stages(std::uint64_t layers, std::uint32_t stages) {
  if (stages > 0 && stages <= layers) return {};
  return Error(ErrorCode::kInvalidArgument,
               "pipeline: " + std::to_string(stages) + " stages for " + std::to_string(layers) +
                   " layers; a stage has at least one layer, and there is at least one stage");
}

/// Cuts of layers into stages, the last stage first.
class Splitter {
 public:
  Splitter(std::span<const double> costs, std::uint32_t stages)
      : layers_(costs.size()), stages_(stages), before_(layers_ + 1, 0) {
    for (std::size_t i = 0; i < layers_; ++i) before_[i + 1] = before_[i] + costs[i];
  }

  /// The cost of the costliest stage at best.
  double least_most() {
    return solve(kImpossible, [](double stage, double rest) { return std::max(stage, rest); });
  }
  /// No stage costs more than `bound`.
  std::vector<Range> split(double bound) {
    solve(bound, [](double stage, double rest) { return stage * stage + rest; });
    std::vector<Range> out;
    for (std::size_t begin = 0, left = stages_; left > 0; --left) {
      const std::size_t end = ends_[at(left, begin)];
      out.push_back({begin, end - begin});
      begin = end;
    }
    return out;
  }

 private:
  std::size_t at(std::size_t stages_left, std::size_t begin) const {
    return stages_left * (layers_ + 1) + begin;
  }

  /// Best value of the layers from each on in each number of stages; `ends_` has their first cut.
  template <class Combine>
  double solve(double bound, const Combine& combine) {
    std::vector<double> best((stages_ + 1) * (layers_ + 1), kImpossible);
    ends_.assign(best.size(), layers_);
    best[at(0, layers_)] = 0;
    for (std::size_t left = 1; left <= stages_; ++left) {
      for (std::size_t begin = 0; begin + left <= layers_; ++begin) {
        double& mine = best[at(left, begin)];
        for (std::size_t end = begin + 1; end + left - 1 <= layers_; ++end) {
          const double rest = best[at(left - 1, end)], stage = before_[end] - before_[begin];
          if (rest == kImpossible || stage > bound) continue;
          const double value = combine(stage, rest);
          if (value > mine) continue;
          mine = value;
          ends_[at(left, begin)] = end;
        }
      }
    }
    return best[at(stages_, 0)];
  }

  const std::size_t layers_, stages_;
  std::vector<double> before_;     ///< cost of the layers before each
  std::vector<std::size_t> ends_;  ///< by stages left and first layer
};

}  // namespace

Result<std::vector<Range>> split_into_stages(std::uint64_t layers, std::uint32_t stages) {
  CENTROID_TRY(check_stages(layers, stages));
  std::vector<Range> out;
  for (std::uint32_t stage = 0; stage < stages; ++stage)
    out.push_back(shard_of(layers, stages, stage));
  return out;
}

Result<std::vector<Range>> split_into_stages(std::span<const double> costs, std::uint32_t stages) {
  CENTROID_TRY(check_stages(costs.size(), stages));
  double most = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (!(costs[i] >= 0) || !std::isfinite(costs[i]))
      return Error(ErrorCode::kInvalidArgument, "pipeline: layer " + std::to_string(i) + " costs " +
                                                    std::to_string(costs[i]) +
                                                    "; a cost is a finite number from 0 on");
    most = std::max(most, costs[i]);
  }
  // Only the ratios count: neither sums nor squares overflow.
  std::vector<double> relative(costs.begin(), costs.end());
  for (double& cost : relative) cost = most > 0 ? cost / most : 0;
  Splitter splitter(relative, stages);
  return splitter.split(splitter.least_most());
}

double imbalance(std::span<const double> costs, std::span<const Range> stages) {
  double sum = 0, most = 0;
  for (const Range& stage : stages) {
    double cost = 0;
    for (std::uint64_t layer = stage.begin; layer < stage.end(); ++layer) cost += costs[layer];
    sum += cost;
    most = std::max(most, cost);
  }
  return sum > 0 ? most * static_cast<double>(stages.size()) / sum - 1 : 0;
}

}  // namespace centroid::parallel
