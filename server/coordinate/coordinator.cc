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

}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      cadence_(cadence_options(options_)),
      guard_(options_.mode == Mode::kTuned ? options_.divergence : 0),
      predictor_(options_.mode == Mode::kTuned && options_.predicts ? options_.divergence : 0) {}

void Coordinator::contributed(MemberId member, const Work& work) {
  cadence_.worked(member, work.steps, work.compute_seconds);
  told_[member] = work;
}

void Coordinator::gone(MemberId member) {
  cadence_.gone(member);
  told_.erase(member);
}

void Coordinator::round_over() {
  // Who came last waited for nobody: its time is what the exchange itself takes.
  double exchange = 0;
  std::vector<double> divergences;
  for (const auto& [member, work] : told_) {
    if (work.exchange_seconds > 0 && (exchange == 0 || work.exchange_seconds < exchange))
      exchange = work.exchange_seconds;
    if (!(work.divergence < 0)) divergences.push_back(work.divergence);
  }
  told_.clear();
  const auto verdict = guard_.observe(divergences);
  const std::uint64_t steps = std::exchange(steps_, cadence_.anchor());
  if (options_.predicts) {
    const auto limit = predictor_.observe(divergences, steps, steps_);
    holds_growth_ = limit && *limit <= cadence_.anchor();
    if (limit && *limit < cadence_.anchor()) ++nudges_;
    cadence_.limit(limit.value_or(Cadence::kNoLimit));
    if (exchange > 0) cadence_.exchanged(exchange);
    return;
  }
  if (!divergences.empty()) holds_growth_ = verdict != DivergenceGuard::Verdict::kStable;
  cadence_.hold_growth(holds_growth_);
  if (verdict == DivergenceGuard::Verdict::kNudgeDown) {
    cadence_.nudge_down(kNudge);
    ++nudges_;
  }
  if (exchange > 0) cadence_.exchanged(exchange);
}

std::vector<std::uint64_t> Coordinator::plan(std::span<const MemberId> members,
                                             std::span<const double> busy) {
  if (!is_on()) return std::vector<std::uint64_t>(members.size(), options_.cadence.initial);
  if (options_.ratios.empty()) {
    auto steps = cadence_.plan(members);
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
  return steps;
}

std::vector<double> Coordinator::speeds(std::span<const MemberId> members,
                                        std::span<const std::uint64_t> batches) const {
  std::vector<double> out;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const double pace = cadence_.seconds_per_step(members[rank]);
    if (!options_.ratios.empty())
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
