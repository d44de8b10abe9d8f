#include "server/coordinate/coordinator.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "common/tensor/text.h"

namespace centroid::server {

namespace {

Cadence::Options cadence_options(const Coordinator::Options& options) {
  Cadence::Options out = options.cadence;
  out.tunes = options.mode == Coordinator::Mode::kTuned;
  return out;
}

constexpr double kNudge = 0.5;
/// A share of fewer of the planned steps is a short one. Rounding takes less from a share.
constexpr double kWhole = 0.9;

}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)), cadence_(cadence_options(options_)) {}

Coordinator::Watch& Coordinator::watch(std::uint32_t fragment) {
  const double guards = options_.mode == Mode::kTuned ? options_.divergence : 0,
               predicts = options_.predicts ? guards : 0;
  return watches_
      .try_emplace(fragment, Watch{.series = {},
                                   .guard = DivergenceGuard(guards),
                                   .predictor = GrowthPredictor(predicts),
                                   .limit = {}})
      .first->second;
}

void Coordinator::contributed(MemberId member, const Work& work) {
  // Of a short share (at an epoch's end, or a probe) parameters diverge less: that their divergence
  // is larger after the next one is no growth.
  const double anchor = static_cast<double>(cadence_.anchor());
  const bool is_complete =
      work.part >= kWhole && (cadence_.is_known(member) || work.steps >= kWhole * anchor);
  const auto [past, is_new] = was_whole_.try_emplace(member, true);
  Watch& told = watch(work.fragment);
  if (std::exchange(past->second, is_complete) && !(work.divergence < 0))
    told.series.told(member, work.divergence);
  for (auto& [fragment, one] : watches_) one.series.worked(member, work.steps);
  cadence_.worked(member, work.steps, work.compute_seconds);
  told_[member] = work;
}

void Coordinator::gone(MemberId member) {
  cadence_.gone(member);
  told_.erase(member);
  was_whole_.erase(member);
  for (auto& [fragment, one] : watches_) one.series.gone(member);
}

/// What is known anew of the divergences. True: they go on rising, the anchor is to go down.
bool Coordinator::judge() {
  bool goes_down = false;
  for (auto& [fragment, one] : watches_) {
    const auto seen = one.series.take();
    if (!seen) continue;
    if (seen->before) {
      one.guard.rebase(*seen->before);
      one.predictor.rebase(*seen->before);
    } else {
      one.guard.restart();
      one.predictor.restart();
    }
    const auto verdict = one.guard.observe(seen->divergences);
    one.pauses_growth = verdict != DivergenceGuard::Verdict::kStable;
    one.limit = one.predictor.observe(seen->divergences, seen->steps, seen->since);
    if (verdict != DivergenceGuard::Verdict::kNudgeDown) continue;
    goes_down = true;
    for (auto& [number, other] : watches_) {
      if (number == fragment) continue;
      other.guard.restart();  // what it has seen was of longer rounds
      other.pauses_growth = false;
    }
  }
  return goes_down;
}

/// As the fragments' growth bounds the steps of a round: of as many rounds as there are fragments
/// each has one average.
std::optional<std::uint64_t> Coordinator::growth_limit() const {
  std::optional<std::uint64_t> least;
  for (const auto& [fragment, one] : watches_)
    if (one.limit) least = std::min(*one.limit, least.value_or(*one.limit));
  if (least) *least = std::max<std::uint64_t>(*least / watches_.size(), 1);
  return least;
}

double Coordinator::divergence() const {
  double largest = 0;
  for (const auto& [fragment, one] : watches_) largest = std::max(largest, one.guard.last());
  return largest;
}

void Coordinator::round_over() {
  // Who came last waited for nobody: its time is what the exchange itself takes.
  double exchange = 0;
  for (const auto& [member, work] : told_)
    if (work.exchange_seconds > 0 && (exchange == 0 || work.exchange_seconds < exchange))
      exchange = work.exchange_seconds;
  told_.clear();
  const bool goes_down = judge();
  if (options_.predicts) {
    const auto most = growth_limit();
    pauses_growth_ = most && *most <= cadence_.anchor();
    if (most && *most < cadence_.anchor()) ++nudges_;
    cadence_.limit(most.value_or(Cadence::kNoLimit));
  } else {
    pauses_growth_ =
        std::ranges::any_of(watches_, [](const auto& one) { return one.second.pauses_growth; });
    cadence_.pause_growth(pauses_growth_);
    if (goes_down) {
      cadence_.nudge_down(kNudge);
      ++nudges_;
    }
  }
  if (exchange > 0) cadence_.exchanged(exchange);
}

std::vector<std::uint64_t> Coordinator::plan(std::span<const MemberId> members,
                                             std::span<const double> busy, const RoundData& data,
                                             std::span<const MemberId> begin) {
  if (!is_on()) return std::vector<std::uint64_t>(members.size(), options_.cadence.initial);
  if (!keeps_ratios()) {
    // A rank beyond the list is as the slowest of it.
    for (std::size_t rank = 0; rank < members.size() && !options_.ratios.empty(); ++rank)
      cadence_.hint(members[rank],
                    1 / (rank < options_.ratios.size() ? options_.ratios[rank]
                                                       : std::ranges::min(options_.ratios)));
    auto steps = cadence_.plan(members, data, begin);
    for (std::size_t rank = 0; rank < busy.size(); ++rank) {
      const double pace = cadence_.seconds_per_step(members[rank]);
      if (!(pace > 0) || !(busy[rank] > 0)) continue;
      const double left = static_cast<double>(steps[rank]) - std::round(busy[rank] / pace);
      steps[rank] = left > 1 ? static_cast<std::uint64_t>(left) : 1;
    }
    return steps;
  }
  // Given speeds: the least of them above 0 makes as many steps as the anchor says.
  std::vector<double> speeds;
  for (std::size_t rank = 0; rank < members.size(); ++rank)
    speeds.push_back(rank < options_.ratios.size() ? options_.ratios[rank] : 0);
  double least = 0;
  for (const double speed : speeds)
    if (speed > 0 && (least == 0 || speed < least)) least = speed;
  std::vector<std::uint64_t> steps;
  for (const double speed : speeds) {  // a rank beyond the list is as the least
    const double times = speed > 0 ? speed / least : 1;
    const double wanted = std::round(static_cast<double>(cadence_.anchor()) * times);
    steps.push_back(static_cast<std::uint64_t>(std::clamp(wanted, 1.0, 1e9)));
  }
  return cadence_.plan_given(members, std::move(steps), begin);
}

std::vector<double> Coordinator::speeds(std::span<const MemberId> members,
                                        std::span<const std::uint64_t> batches) const {
  std::vector<double> out;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const double pace = cadence_.seconds_per_step(members[rank]);
    if (keeps_ratios())
      out.push_back(rank < options_.ratios.size() ? options_.ratios[rank] : 1);
    else if (pace > 0)
      out.push_back(static_cast<double>(batches[rank]) / pace);
    else
      return std::vector<double>(members.size(), 0);
  }
  return out;
}

Result<std::vector<double>> parse_ratios(const std::string& text) {
  std::vector<double> ratios;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    double value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    const bool is_number =
        error == std::errc{} && (stop == end || (*stop == ',' && stop + 1 < end));
    if (!is_number || !(value >= 1e-3 && value <= 1e6)) {
      std::string why =
          "speeds by rank are wanted, such as 3,2,1, each from 0.001 to 1000000, not ";
      why += printable(text, 80);
      return Error(ErrorCode::kInvalidArgument, std::move(why));
    }
    ratios.push_back(value);
    at = stop == end ? end : stop + 1;
  }
  return ratios;
}

}  // namespace centroid::server
