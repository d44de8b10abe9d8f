#pragma once

#include <cstdint>
#include <deque>
#include <span>

namespace centroid::server {

/// Whether the members' parameters drift apart between two averages, and what to do about it. A
/// member's divergence is |own - mean| / |mean|, own and mean being its parameters before and after
/// an average. Pure.
///
/// rising   the largest of a round above that of the round before. Three rising in a row, the last
///          above the threshold: the number of local steps may not grow. Still rising at the next
///          round: it is to go down
/// over     growth is free again when a round is at or below the threshold, or not rising
class DivergenceGuard {
 public:
  enum class Verdict : std::uint8_t {
    kStable,
    kSuppressGrowth,
    kNudgeDown,  ///< halve the number of local steps; the guard begins anew
  };
  /// threshold 0: always stable
  explicit DivergenceGuard(double threshold) : threshold_(threshold) {}

  /// The members' divergences at one average; none: nothing was measured.
  Verdict observe(std::span<const double> divergences);
  double last() const { return recent_.empty() ? 0 : recent_.back(); }

 private:
  static constexpr std::size_t kRing = 5;
  double threshold_;
  std::deque<double> recent_;
};

}  // namespace centroid::server
