#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace centroid::server {

/// A measured time, smoothed: the first as it is, then m += a (x - m) with a = |x - m| / m between
/// 0.1 and 0.8, so that a jump is believed at once and noise is not. Values that are not above 0
/// are no measurements.
class SmoothedTime {
 public:
  void observe(double seconds);
  bool is_known() const { return seconds_ > 0; }
  double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
};

/// What there is for one round of all members.
///
/// batches  samples of a step, of each of them; empty: there is no end of the data
/// samples  for all of them together
struct RoundData {
  std::span<const std::uint64_t> batches;
  std::uint64_t samples = 0;
};

/// How many local steps each member makes between two averages, so that all come at the same time
/// and the exchange takes a small part of it. Pure.
///
/// anchor   steps of the slowest member. With `tunes` it follows overhead = exchange / work of the
///          slowest: above the target it grows to anchor * overhead / target (rounded up, at most
///          `most`); below half of it it goes down by one, never below `initial`. While there is
///          less data for a round it is so much less, and no longer: what it was stays
/// others   round(anchor * pace of the slowest / own pace), at least 1
/// probe    a member without a pace makes few, at most `kProbe`
/// dead     relative speeds, measured or given, that changed by less than `dead_zone` stay as they
///          were
/// source   docs/explanation/unequal-machines.md#how-often-to-average-tuned
class Cadence {
 public:
  static constexpr std::uint64_t kProbe = 4;
  static constexpr std::uint64_t kNoLimit = 1'000'000;
  struct Options {
    std::uint64_t initial = 10, most = 200;
    double overhead = 0.05;  ///< target; from 0.01 to 0.5
    double dead_zone = 0.05;
    /// A member makes at most so many steps more than the one that makes fewest (probes aside), and
    /// (when above 0) its number changes by at most so many from one time that it begins to the
    /// next, up or down, whatever the reason.
    std::uint64_t max_lead = kNoLimit;
    bool tunes = true;
  };
  explicit Cadence(Options options);

  /// `member` took so long for `steps` steps (a part of one counts as such).
  void worked(MemberId member, double steps, double compute_seconds);
  /// What the pace is until it is measured, beside those of others with a hint: in any unit that is
  /// the same for all of them.
  void hint(MemberId member, double pace);
  void gone(MemberId member);
  /// An exchange took so long beyond the work of the slowest: tune the anchor.
  void exchanged(double seconds);
  /// Steps of each of `members` until the next average.
  /// data   the anchor goes no further than there is data for a round of them all
  /// begin  who of them makes these steps; the others begin at another time; none: all do
  std::vector<std::uint64_t> plan(std::span<const MemberId> members, const RoundData& data = {},
                                  std::span<const MemberId> begin = {});
  /// As `plan`, of steps that are given: as much of them as the lead lets.
  std::vector<std::uint64_t> plan_given(std::span<const MemberId> members,
                                        std::vector<std::uint64_t> steps,
                                        std::span<const MemberId> begin = {});

  /// No growth of the anchor while it is held.
  void pause_growth(bool is_held);
  /// anchor = what the slowest makes * factor, rounded up; a factor is from 0.1 to 1. No further
  /// down than by the lead, when that is above 0. From here on this is also where the anchor may
  /// come down to.
  void nudge_down(double factor);

  /// The anchor is at most so much (at least 1) until another limit is set; where it is above it,
  /// it goes there as by `nudge_down`, the next time on from where it has come.
  void limit(std::uint64_t most);

  std::uint64_t anchor() const;
  bool is_known(MemberId member) const;
  double seconds_per_step(MemberId member) const;  ///< 0: not known
  double exchange_seconds() const { return exchange_.seconds(); }
  double overhead() const;  ///< of an exchange, with the present anchor; 0: not known

 private:
  struct Pace {
    SmoothedTime step;
    double hint = 0;          ///< 0: none
    double used = 0;          ///< seconds a step that the plan counts with
    bool is_hinted = false;   ///< that is the hint
    std::uint64_t steps = 0;  ///< in the last plan by which it began; 0: none
  };
  double slowest() const;
  double use_paces();
  std::uint64_t made() const;
  std::uint64_t least_after(std::uint64_t made) const;
  std::uint64_t room_for(std::span<const MemberId> members, const RoundData& data,
                         double slow) const;

  Options options_;
  std::uint64_t anchor_, least_, limit_ = kNoLimit;
  std::uint64_t room_ = kNoLimit;  ///< that the data of the last plan left to the anchor
  std::optional<std::uint64_t> held_at_;
  SmoothedTime exchange_;
  std::map<MemberId, Pace> paces_;
};

}  // namespace centroid::server
