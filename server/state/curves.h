#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/view.h"

namespace centroid::server {

/// The course of a whole job, from its first round, in bounded memory: first a point for each
/// committed round. When there are kMost points, neighbours are merged pairwise, and a point has
/// twice as many rounds from then on. Pure: the same rounds give the same points.
///
/// cost    of a round: constant, on average
class Curves {
 public:
  static constexpr std::size_t kMost = 1024;  ///< points
  static constexpr std::size_t kSaved = 256;  ///< at most so many in `to_text`

  /// Add one committed round, with `first`, `unix_seconds` and its values. Points of this round and
  /// of later ones are removed: the job has returned to an older state.
  void add(CurvePointView round);
  /// A test result of the newest parameters.
  void evaluated(double loss, double accuracy);
  /// These curves are those of a checkpoint. Take the points of `before`, the curves until now, if
  /// they reach further: a replay may restore those rounds without `add`.
  void go_on(Curves before);
  /// Remove the points with this round or a later one: the job does not replay them.
  void forget_from(std::uint64_t round);

  const std::vector<CurvePointView>& points() const { return points_; }
  /// Those that have a round behind `round`.
  std::span<const CurvePointView> after(std::uint64_t round) const;
  /// Changes with every change of a point that is not the last one.
  std::uint64_t revision() const { return revision_; }

  /// For a checkpoint: at most kSaved points, with ten digits.
  std::string to_text() const;
  /// Empty curves where the text is none of `to_text`.
  static Curves of_text(std::string_view text);

 private:
  void halve();
  std::uint64_t last_round() const { return points_.empty() ? 0 : points_.back().last; }

  std::vector<CurvePointView> points_;
  std::uint64_t rounds_per_point_ = 1;
  std::uint64_t revision_ = 0;
};

}  // namespace centroid::server
