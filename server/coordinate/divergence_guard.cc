#include "server/coordinate/divergence_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace centroid::server {

DivergenceGuard::Verdict DivergenceGuard::observe(std::span<const double> divergences) {
  if (divergences.empty()) return Verdict::kStable;
  const double largest = largest_of(divergences);
  const bool is_rising = last_ && largest > *last_;
  last_ = largest;
  rises_ = is_rising ? rises_ + 1 : 0;
  if (threshold_ <= 0 || largest <= threshold_ || rises_ < 2) return Verdict::kStable;
  if (rises_ == 2) return Verdict::kSuppressGrowth;
  rises_ = 0;
  return Verdict::kNudgeDown;
}

double largest_of(std::span<const double> divergences) {
  double largest = 0;
  for (const double one : divergences)
    largest = one <= largest ? largest : one > 0 ? one : std::numeric_limits<double>::infinity();
  return largest;
}

std::optional<std::uint64_t> GrowthPredictor::observe(std::span<const double> divergences,
                                                      std::uint64_t steps, std::uint64_t since) {
  if (bound_ <= 0 || divergences.empty() || steps == 0) return limit_;
  const double now = largest_of(divergences), before = std::exchange(last_, now);
  limit_.reset();
  if (!(now < bound_)) limit_ = 1;  // there already
  if (before <= 0 || now <= 0 || !std::isfinite(now) || !std::isfinite(before)) return limit_;
  rate_ = std::log(now / before) / static_cast<double>(steps);
  if (rate_ <= 0) {
    limit_.reset();  // on its way back
    return limit_;
  }
  constexpr double kMost = 1e9;
  const double left =
      std::floor(std::log(bound_ / now) / rate_ + 1e-9) - static_cast<double>(since);
  limit_ = static_cast<std::uint64_t>(std::clamp(left, 1.0, kMost));
  return limit_;
}

}  // namespace centroid::server
