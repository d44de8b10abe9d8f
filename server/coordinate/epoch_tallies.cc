#include "server/coordinate/epoch_tallies.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace centroid::server {

namespace {

/// So much of a whole number; all of it where `part` is 1.
std::uint64_t part_of(std::uint64_t whole, double part) {
  if (part >= 1) return whole;
  return std::min(whole, static_cast<std::uint64_t>(
                             std::llround(static_cast<double>(whole) * std::max(part, 0.0))));
}

}  // namespace

void EpochTallies::add(const ReportedShare& told, std::uint64_t epoch_samples,
                       double start_unix_seconds) {
  if (epoch_samples == 0) return;
  const DataPart& part = told.part;
  // An empty share, with what a worker still had to tell, lies where the one before it ended.
  const std::uint64_t begin = part.samples() > 0 || part.begin == 0 ? part.begin : part.begin - 1;
  Tally rest = told.tally;
  double rest_seconds = told.compute_seconds;
  std::uint64_t left = part.samples(), at = begin;
  bool is_first = true;
  do {
    const std::uint64_t epoch = part.epoch + at / epoch_samples,
                        here = std::min(left, epoch_samples - at % epoch_samples);
    const double ratio =
        here == left ? 1 : static_cast<double>(here) / static_cast<double>(left);  // of the rest
    Tally tally{.loss_sum = rest.loss_sum * ratio,
                .samples = part_of(rest.samples, ratio),
                .correct = part_of(rest.correct, ratio),
                .steps = part_of(rest.steps, ratio)};
    tally.correct = std::min(tally.correct, tally.samples);
    if (is_first) tally.scalars = told.tally.scalars;
    const double seconds = rest_seconds * ratio;
    rest.loss_sum -= tally.loss_sum;
    rest.samples -= tally.samples;
    rest.correct -= tally.correct;
    rest.steps -= tally.steps;
    rest_seconds -= seconds;

    EpochTally& sums = open_[epoch];
    if (sums.members.empty()) sums.start_unix_seconds = start_unix_seconds;
    sums.epoch = epoch;
    sums.trained += here;
    sums.all.add(tally);
    EpochTally::Member& member = sums.members[told.worker];
    member.tally.add(tally);
    member.devices = told.devices;
    member.contributions += is_first ? 1 : 0;
    member.compute_seconds += seconds;
    left -= here;
    at += here;
    is_first = false;
  } while (left > 0);
}

const EpochTally* EpochTallies::end(std::uint64_t oldest, double unix_seconds) {
  if (open_.empty() || open_.begin()->first >= oldest) return nullptr;
  EpochTally over = std::move(open_.begin()->second);
  open_.erase(open_.begin());
  over.ended_unix_seconds = unix_seconds;
  // After the job has gone back they come again.
  while (!ended_.empty() && ended_.front().epoch >= over.epoch) ended_.pop_front();
  ended_.push_front(std::move(over));
  const std::size_t names = std::max<std::size_t>(1, ended_.front().members.size());
  const std::size_t most = std::clamp(kNames / names, kLeast, kMost);
  if (ended_.size() > most) ended_.resize(most);
  return &ended_.front();
}

}  // namespace centroid::server
