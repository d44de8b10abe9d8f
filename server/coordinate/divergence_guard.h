#pragma once

#include <cstdint>
#include <optional>
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
  /// What comes next is not to be compared with what was.
  void restart() { last_.reset(), rises_ = 0; }
  /// The members that come next had this for the largest, where those before had another.
  void rebase(double before) {
    if (last_) last_ = before;
  }
  double last() const { return last_.value_or(0); }

 private:
  double threshold_;
  std::optional<double> last_;
  unsigned rises_ = 0;  // in a row
};

/// How many local steps the members may make before their divergence is above a bound, if it goes
/// on growing as it does. Pure.
///
/// rate    lambda = ln(D_t / D_t-1) / k, D the largest of a round and k the steps of the slowest in
///         it
/// limit   floor(ln(bound / D_t) / lambda), less the steps made since, at least 1; none while it
///         does not grow
/// source  growth rates of finite perturbations: Boffetta et al. 2002, "Predictability: a way to
///         characterize complexity"
class GrowthPredictor {
 public:
  /// bound 0: never a limit
  explicit GrowthPredictor(double bound) : bound_(bound) {}
  /// The members' divergences at one average, after so many steps; none: nothing was measured, the
  /// limit stays. `since`: steps made after that average.
  std::optional<std::uint64_t> observe(std::span<const double> divergences, std::uint64_t steps,
                                       std::uint64_t since = 0);
  /// What comes next is not to be compared with what was.
  void restart() { last_ = 0; }
  /// As that of DivergenceGuard.
  void rebase(double before) {
    if (last_ > 0) last_ = before;
  }
  double rate() const { return rate_; }  ///< a step; 0: not known

 private:
  double bound_, last_ = 0, rate_ = 0;
  std::optional<std::uint64_t> limit_;
};

/// The largest; what is not a number is as far as can be. 0 without any.
double largest_of(std::span<const double> divergences);

}  // namespace centroid::server
