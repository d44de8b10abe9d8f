#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "server/coordinate/cadence.h"
#include "server/coordinate/divergence_guard.h"
#include "server/coordinate/divergence_series.h"

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
    double divergence = 0.05;  ///< threshold of the guard; 0: none
    bool predicts = false;     ///< GrowthPredictor decides, instead of DivergenceGuard
    /// By rank: given speeds. With `speed` they are kept, with `tuned` they are what is counted
    /// with until speeds are measured.
    std::vector<double> ratios;
  };
  explicit Coordinator(Options options);

  /// What a member says at the end of its contribution.
  struct Work {
    double steps = 0, compute_seconds = 0;  ///< of this round
    double part = 1;              ///< of the share that it would have had with data enough
    double exchange_seconds = 0;  ///< of the round before, without computing; 0: none
    double divergence = -1;       ///< at the average before; below 0: not measured
    std::uint32_t fragment = 0;   ///< of which that average was
  };
  void contributed(MemberId member, const Work& work);
  void gone(MemberId member);
  /// The round is over: judge what its members have said.
  void round_over();
  /// Steps of each member in the next round; `members` in rank order.
  /// busy  seconds that each of them is kept from its steps in that round (it evaluates, say): with
  ///       measured speeds it makes so many fewer, at least one; none: nobody is
  /// data  what there is for a round of them; none: there is no end of it
  /// begin who of them begins now; none: all do
  std::vector<std::uint64_t> plan(std::span<const MemberId> members,
                                  std::span<const double> busy = {}, const RoundData& data = {},
                                  std::span<const MemberId> begin = {});

  /// Samples a second of each, members having batches of these sizes; all 0 while one is not known.
  std::vector<double> speeds(std::span<const MemberId> members,
                             std::span<const std::uint64_t> batches) const;

  bool is_on() const { return options_.mode != Mode::kOff; }
  const Cadence& cadence() const { return cadence_; }
  double divergence() const;  ///< the largest of the newest that were judged
  /// Steps of the slowest in a round that keep the divergence below its bound; none: as many as may
  /// be.
  std::optional<std::uint64_t> growth_limit() const;
  bool pauses_growth() const { return pauses_growth_; }
  std::uint64_t nudges() const { return nudges_; }

 private:
  /// Of one fragment: another one's parameters are of another size, and so are their divergences.
  struct Watch {
    DivergenceSeries series;
    DivergenceGuard guard;
    GrowthPredictor predictor;
    std::optional<std::uint64_t> limit;
    bool pauses_growth = false;
  };
  Watch& watch(std::uint32_t fragment);
  bool keeps_ratios() const { return options_.mode == Mode::kSpeed && !options_.ratios.empty(); }
  bool judge();

  Options options_;
  Cadence cadence_;
  std::map<std::uint32_t, Watch> watches_;
  std::map<MemberId, bool> was_whole_;  // whether a member's last share was as long as others
  bool pauses_growth_ = false;
  std::uint64_t nudges_ = 0;
  std::map<MemberId, Work> told_;  // since the last round that was over
};

/// "3,2,1": a number above 0 (or all 0: equal) for each rank.
/// fails  invalid_argument
Result<std::vector<double>> parse_ratios(const std::string& text);

}  // namespace centroid::server
