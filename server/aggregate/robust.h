#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/codec/spec.h"
#include "server/aggregate/neighbours.h"

namespace centroid::server {

/// How the contributions of a round are combined.
///
/// mean            the mean weighted by samples: a single false one moves it without bound
/// median          of each coordinate; of an even number the middle of the two
/// trimmed_mean:F  of each coordinate, the mean without the F largest and the F smallest
/// nnm_trimmed_mean:F  the same of mixed contributions: each is the mean of the n - F that are
///                 nearest to it in the chunk
///
/// All but the mean count every contribution alike: its number of samples is not trusted. One that
/// says itself that it is not finite, or that is lost or late, is one of the F, and left out: of
/// the rest one fewer is false.
///
/// range   median, trimmed_mean: with at most F false ones of 2F + 1 and more (median: fewer than
///         half) each coordinate of the result is between the smallest and the largest of the
///         others
/// bound   for any S of n - F contributions with mean m, |result - m|^2 <= k * mean of |x - m|^2 in
///         S: k is F / (n - 2F) for trimmed_mean, which no rule undercuts, floor(n / 2) /
///         (ceil(n / 2) - F) for median, 8F / (n - 2F) for nnm_trimmed_mean
///         (tests/unit/robust_bound_test.cc). What is true of each chunk is true of the model
/// source  Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
///         Rates"; Allouah et al. 2023, "Fixing by Mixing: A Recipe for Optimal Byzantine ML under
///         Heterogeneity"
struct AggregateRule {
  enum class Kind : std::uint8_t { kMean, kMedian, kTrimmedMean, kNnmTrimmedMean };
  Kind kind = Kind::kMean;
  std::size_t trim = 0;  ///< F
  bool operator==(const AggregateRule&) const = default;

  /// fails invalid_argument: the fault and the possible values
  static Result<AggregateRule> parse(std::string_view text);
  std::string to_string() const;
  bool is_mean() const { return kind == Kind::kMean; }
  bool mixes() const { return kind == Kind::kNnmTrimmedMean; }
  /// Numbers of n that are dropped at each end; with fewer than 2F + 1 it is the median.
  std::size_t dropped(std::size_t n) const;
  /// Whether a worker with this codec and number of samples can contribute.
  /// fails invalid_argument: why it cannot
  Status takes(const CodecSpec& codec, std::uint64_t samples) const;
  /// F of a round of n members.
  std::size_t tolerated(std::size_t n) const {
    if (is_mean()) return 0;
    return kind == Kind::kMedian ? (n - (n > 0 ? 1 : 0)) / 2 : trim;
  }
  /// Fewest contributions with which one false one does no harm.
  std::size_t least() const { return is_mean() ? 1 : 2 * trim + 1; }
};

/// Coordinate by coordinate, the mean without the largest and the smallest numbers, of rows or of
/// means of their neighbours.
///
/// order   the result's bits do not depend on the order of the rows
/// bounds  between the smallest and the largest remaining number, also if sums would overflow
/// cost    a sorting network, limited to comparisons that affect the remaining numbers, on 64
///         coordinates at a time (centroid-bench-robust); memory for n chunks that are not float32;
///         mixing: that of Neighbours, and for each number a sum of those near its row but not
///         near all
/// thread  one at a time
/// source  Batcher 1968, "Sorting networks and their applications" (merge exchange, in the form of
///         Knuth, "The Art of Computer Programming" volume 3, algorithm 5.2.2M)
class RobustMean {
 public:
  static inline const std::atomic<bool> kGoesOn = false;
  explicit RobustMean(AggregateRule rule) : rule_(rule) {}

  /// out[i] of rows[r][i]; at least one row, each out.size() finite numbers. It ends soon, and out
  /// means nothing, when another thread sets `is_over`.
  void combine(std::span<const float* const> rows, std::span<float> out,
               const std::atomic<bool>& is_over = kGoesOn);

  /// One contribution's chunk, complete and checked.
  struct Encoded {
    const Codec* codec = nullptr;
    Bytes payload;
  };
  void combine(std::span<const Encoded> rows, std::span<float> out,
               const std::atomic<bool>& is_over = kGoesOn);

  /// Pairs of rows that are put in order, one after the other, until rows [first, last) have the
  /// numbers of these ranks.
  using Pair = std::pair<std::uint32_t, std::uint32_t>;
  static std::vector<Pair> network(std::size_t rows, std::size_t first, std::size_t last);

 private:
  AggregateRule rule_;
  std::size_t rows_ = 0;  ///< for which `pairs_` is made
  std::vector<Pair> pairs_;
  Neighbours neighbours_;
  std::vector<std::int32_t> tile_;
  std::vector<double> unmixed_;
  std::vector<float> decoded_;
  std::vector<const float*> addresses_;
};

}  // namespace centroid::server
