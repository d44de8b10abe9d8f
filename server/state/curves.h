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

  /// One committed round: a point with `first`, `unix_seconds` and what is known of the round.
  void add(CurvePointView round);
  /// A test result of the newest parameters.
  void evaluated(double loss, double accuracy);
  /// The job goes on with round `next`, and this is what its state knows of the rounds before.
  /// `before`: what was known until now, which counts where it reaches further.
  void go_on(Curves before, std::uint64_t next);

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
  void forget_from(std::uint64_t round);
  std::uint64_t last_round() const { return points_.empty() ? 0 : points_.back().last; }

  std::vector<CurvePointView> points_;
  std::uint64_t rounds_per_point_ = 1;
  std::uint64_t revision_ = 0;
};

}  // namespace centroid::server
