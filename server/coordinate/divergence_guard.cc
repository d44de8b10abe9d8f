#include "server/coordinate/divergence_guard.h"

#include <algorithm>
#include <limits>

namespace centroid::server {

DivergenceGuard::Verdict DivergenceGuard::observe(std::span<const double> divergences) {
  if (divergences.empty()) return Verdict::kStable;
  double largest = 0;
  for (const double one : divergences)  // NaN, too, is as far as can be
    largest = one <= largest ? largest : one > 0 ? one : std::numeric_limits<double>::infinity();
  recent_.push_back(largest);
  if (recent_.size() > kRing) recent_.pop_front();
  if (threshold_ <= 0 || largest <= threshold_) return Verdict::kStable;
  const auto is_rising = [](double before, double now) { return !(now > before); };
  // How many of the last stand in rising order.
  const auto first =
      std::adjacent_find(recent_.rbegin(), recent_.rend(),
                         [&](double now, double before) { return is_rising(before, now); });
  const auto rising = first == recent_.rend()
                          ? recent_.size()
                          : static_cast<std::size_t>(first - recent_.rbegin()) + 1;
  if (rising < 3) return Verdict::kStable;
  if (rising == 3) return Verdict::kSuppressGrowth;
  recent_.clear();
  recent_.push_back(largest);
  return Verdict::kNudgeDown;
}

}  // namespace centroid::server
