#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "server/coordinate/cadence.h"
#include "server/coordinate/divergence_guard.h"

namespace centroid::server {

/// Decides, from what the members report, how many local steps each of them makes before the next
/// average. Pure: it sees no clock, only measured times.
///
/// off     every member makes `cadence.initial` steps
/// speed   as many as its speed allows in the time that the slowest needs for `cadence.initial`
/// tuned   so too, and that number follows the cost of the exchange and the divergence
/// thread  one
class Coordinator {
 public:
  enum class Mode : std::uint8_t { kOff, kSpeed, kTuned };
  struct Options {
    Mode mode = Mode::kOff;
    Cadence::Options cadence;
    double divergence = 0.05;    ///< threshold of the guard; 0: none
    bool predicts = false;       ///< GrowthPredictor decides, instead of DivergenceGuard
    std::vector<double> ratios;  ///< by rank: given speeds, instead of measured ones
  };
  explicit Coordinator(Options options);

  /// What a member says at the end of its contribution.
  struct Work {
    double steps = 0, compute_seconds = 0;  ///< of this round
    double exchange_seconds = 0;            ///< of the round before, without computing; 0: none
    double divergence = -1;                 ///< at the average before; below 0: not measured
  };
  void contributed(MemberId member, const Work& work);
  void gone(MemberId member);
  /// The round is over: judge what its members have said.
  void round_over();
  /// Steps of each member in the next round; `members` in rank order.
  /// busy  seconds that each of them is kept from its steps in that round (it evaluates, say): with
  ///       measured speeds it makes so many fewer, at least one; none: nobody is
  std::vector<std::uint64_t> plan(std::span<const MemberId> members,
                                  std::span<const double> busy = {});

  /// Samples a second of each, members having batches of these sizes; all 0 while one is not known.
  std::vector<double> speeds(std::span<const MemberId> members,
                             std::span<const std::uint64_t> batches) const;

  bool is_on() const { return options_.mode != Mode::kOff; }
  const Cadence& cadence() const { return cadence_; }
  double divergence() const { return guard_.last(); }
  bool holds_growth() const { return holds_growth_; }
  std::uint64_t nudges() const { return nudges_; }

 private:
  Options options_;
  Cadence cadence_;
  DivergenceGuard guard_;
  GrowthPredictor predictor_;
  std::uint64_t steps_ = 0;  // of the slowest in the round whose divergences come next
  bool holds_growth_ = false;
  std::uint64_t nudges_ = 0;
  std::map<MemberId, Work> told_;  // since the last round that was over
};

/// "3,2,1": a number above 0 (or all 0: equal) for each rank. fails invalid_argument
Result<std::vector<double>> parse_ratios(const std::string& text);

}  // namespace centroid::server
