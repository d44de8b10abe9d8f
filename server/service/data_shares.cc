#include "server/service/data_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "common/base/log.h"
#include "common/base/trace_events.h"
#include "server/coordinate/partition.h"

namespace centroid::server {

bool DataShares::goal_reached() const {
  return (config_.goal.epochs > 0 && job_.epoch >= config_.goal.epochs) ||
         (config_.goal.rounds > 0 && job_.round.value > config_.goal.rounds);
}

/// The open round reaches the goal when it is committed.
bool DataShares::is_last_round() const {
  return (config_.goal.rounds > 0 && job_.round.value >= config_.goal.rounds) ||
         (config_.goal.epochs > 0 && job_.epoch + 1 >= config_.goal.epochs &&
          job_.offset + open_.samples >= job_.agreed->train_samples && job_.returned.is_empty());
}

DataPosition DataShares::next_position() const {
  const std::uint64_t end = job_.offset + open_.samples, samples = job_.agreed->train_samples;
  // An epoch is over when the shares of lost workers are trained, too.
  const bool is_over = end > samples || (end == samples && job_.returned.will_be_empty());
  if (!is_over) return {.epoch = job_.epoch, .offset = end};
  return {.epoch = job_.epoch + 1, .offset = end - samples};
}

/// Who of the members of a round evaluates first, if that is to be done; none: nobody can.
std::optional<std::size_t> DataShares::evaluator(std::span<const MemberId> members) const {
  if (!job_.evaluate_next) return std::nullopt;
  const auto first = std::ranges::find_if(
      members, [this](MemberId id) { return !members_.find(id)->pace.behind; });
  if (first == members.end()) return std::nullopt;
  return static_cast<std::size_t>(first - members.begin());
}

/// Samples that each of the members is to have in a round, where there are so many. Who begins at
/// another time, with a policy that lets them, shares the data with these all the same.
std::vector<std::uint64_t> DataShares::wanted_samples(std::span<const MemberId> members) {
  const std::vector<MemberId> all = policy_.is_elastic()
                                        ? members_.roster.ranked()
                                        : std::vector<MemberId>(members.begin(), members.end());
  std::unordered_map<MemberId, std::size_t> ranks;
  for (const MemberId id : all) ranks.emplace(id, ranks.size());
  const auto rank_of = [&](MemberId id) { return ranks.at(id); };
  std::vector<std::uint64_t> batches;
  for (const MemberId id : all) batches.push_back(members_.find(id)->join.batch);
  const bool is_one_gradient = coordinator_.is_on() && config_.local.count == 1;
  std::vector<double> planned;  // of all
  if (is_one_gradient) {        // its size stays
    const std::uint64_t total = std::accumulate(batches.begin(), batches.end(), std::uint64_t{0});
    for (const auto part : partition(total - all.size(), coordinator_.speeds(all, batches)))
      planned.push_back(static_cast<double>(part + 1));
  } else {
    std::vector<double> busy(all.size(), 0);
    if (const auto first = evaluator(members); first && all.size() > 1 && config_.local.count > 1)
      busy[rank_of(members[*first])] =
          members_.find(members[*first])->evaluations.duration.seconds();
    // A round passes one end of an epoch at most: on average rounds have no more than an epoch.
    const RoundData data{.batches = batches, .samples = job_.agreed->train_samples};
    const auto steps = coordinator_.plan(all, busy, data, members);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      planned.push_back(static_cast<double>(batches[rank]) * static_cast<double>(steps[rank]));
  }
  // Nobody gets more than an epoch; the others then get less, too, so that all come at once.
  const double limit = static_cast<double>(job_.agreed->train_samples),
               largest = *std::ranges::max_element(planned),
               scale = largest > limit ? limit / largest : 1,
               sum = scale * std::accumulate(planned.begin(), planned.end(), 0.0),
               part = std::min(1.0, limit / sum);  // all rounds are so short
  std::vector<std::uint64_t> samples;
  for (const MemberId id : members) {
    const double mine = std::max(std::round(planned[rank_of(id)] * scale), 1.0);
    samples.push_back(static_cast<std::uint64_t>(mine));
    if (!is_one_gradient)
      members_.find(id)->share.wanted = mine * part / static_cast<double>(batches[rank_of(id)]);
  }
  return samples;
}

/// Samples that a round of these members may have: what is left of the epoch, and some of the next.
std::uint64_t DataShares::round_room(std::span<const MemberId> members) {
  const std::uint64_t samples = job_.agreed->train_samples, left = samples - job_.offset;
  const bool is_last = config_.goal.epochs > 0 && job_.epoch + 1 >= config_.goal.epochs;
  if (!coordinator_.is_on() || config_.local.count == 1 || is_last || left == 0) return left;
  if (!overshoot_)
    overshoot_ = config_.cadence.overshoot > 0
                     ? Overshoot::fixed(config_.cadence.overshoot)
                     : Overshoot(samples / std::max<std::uint64_t>(job_.agreed->batch, 1));
  std::uint64_t sum = 0;
  for (const MemberId id : members) {
    const std::uint64_t batch = members_.find(id)->join.batch, steps = overshoot_->steps();
    sum += std::min(batch > samples / steps ? samples : batch * steps, samples - sum);
  }
  // Not all of it: a round that ended with the next epoch would step over that one's end.
  return left + std::min(sum, samples - 1);
}

std::vector<proto::RoundOpen> DataShares::make_shares(const std::vector<MemberId>& members) {
  job_.returned.give_up();  // of a round that came to nothing
  open_.samples = 0;
  std::vector<proto::RoundOpen> shares(members.size());
  if (members.empty()) return shares;
  auto wanted = wanted_samples(members);
  if (!aggregate_.is_mean()) fit_to_epoch(wanted);
  std::vector<double> weights;
  std::vector<std::size_t> ranks;  // that get new data
  std::uint64_t sum = 0;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (!job_.returned.is_empty()) {
      take_part(shares[rank], wanted[rank]);
      continue;
    }
    ranks.push_back(rank);
    sum += wanted[rank];
    weights.push_back(coordinator_.is_on() ? static_cast<double>(wanted[rank]) : 1);
  }
  const std::uint64_t left = job_.agreed->train_samples - job_.offset;
  // The last round of an epoch is smaller, and a share may be empty; it may run into the next one.
  const std::uint64_t room = sum <= left ? left : std::min(sum, round_room(members));
  const auto sizes = partition(room, weights);
  for (std::size_t i = 0; i < ranks.size(); ++i)
    take_part(shares[ranks[i]], sum <= room ? wanted[ranks[i]] : sizes[i]);
  return shares;
}

/// A round needs so many contributions that those of false workers do no harm: what is left of an
/// epoch is divided among all, and a rest that would be too few for a round goes into this one.
void DataShares::fit_to_epoch(std::vector<std::uint64_t>& wanted) const {
  const std::uint64_t left = samples_left();
  const std::uint64_t sum = std::accumulate(wanted.begin(), wanted.end(), std::uint64_t{0});
  if (left < sum)
    wanted = partition(left, std::vector<double>(wanted.size(), 1.0));
  else if (left - sum < aggregate_.least())
    wanted.front() += left - sum;
}

/// Of the epoch, with the shares of lost workers.
std::uint64_t DataShares::samples_left() const {
  return job_.agreed->train_samples - std::min(job_.offset, job_.agreed->train_samples) +
         job_.returned.samples();
}

/// The next part of the data: what lost workers had first, then what nobody has had.
void DataShares::take_part(proto::RoundOpen& open, std::uint64_t samples) {
  DataPart part = job_.returned.take(samples);
  if (part.samples() == 0) {
    part = {.epoch = job_.epoch, .begin = job_.offset + open_.samples, .end = 0};
    part.end = part.begin + samples;
    open_.samples += samples;
  }
  open.epoch = part.epoch;
  open.begin = part.begin;
  open.end = part.end;
}

/// A member has its share now.
void DataShares::hand_out(WorkerSession& worker, const proto::RoundOpen& open) const {
  const std::uint64_t batch = std::max<std::uint64_t>(worker.join.batch, 1);
  worker.share.part = {open.epoch, open.begin, open.end};
  worker.share.round = job_.round;
  worker.pace.held_since.reset();
  worker.share.overlap = open.overlap;
  worker.share.steps =
      worker.share.part.samples() / batch + (worker.share.part.samples() % batch > 0 ? 1 : 0);
}

/// A member is gone: what it had not contributed is for others.
void DataShares::part_lost(WorkerSession& worker) {
  coordinator_.gone(worker.id);
  if (worker.share.part.samples() == 0) return;
  return_part(worker.share.part, worker.share.round);
  if (const auto action = context_.strangers.arrival_line("other workers train it"))
    log::info("share.requeued", {{"worker", worker.join.name},
                                 {"epoch", worker.share.part.epoch},
                                 {"begin", worker.share.part.begin},
                                 {"end", worker.share.part.end},
                                 {"action", *action}});
  worker.share.part = {};
}

/// What a member of round `of` has not trained is for others.
void DataShares::return_part(const DataPart& part, Round of) {
  if (part.samples() == 0) return;
  probe_.share_returned(part.samples());
  if (of == job_.round)
    job_.returned.lost(part);
  else
    job_.returned.give_back(part);
}

/// Shares behind the position of the state that nobody may be training when a server takes it up:
/// those of lost workers, and those whose contributions have not counted yet. `is_over`: of the
/// state with the open round, else of the one before.
std::string DataShares::untrained(bool is_over) const {
  ReturnedShares shares = job_.returned;
  if (is_over)
    shares.commit();
  else
    shares.give_up();
  for (const auto& [id, worker] : members_.present)
    if (policy_.is_elastic() && (is_over || worker->share.round != job_.round))
      shares.give_back(worker->share.part);
  for (const StagedPart& late : open_.late_staged) shares.give_back(late.share);
  if (!is_over)
    for (const StagedPart& late : open_.parts) shares.give_back(late.share);
  return shares.to_text();
}

/// The round is over: what its members said decides on the next ones.
void DataShares::coordinate() {
  const std::uint64_t before = coordinator_.cadence().anchor(), nudges = coordinator_.nudges();
  coordinator_.round_over();
  if (overshoot_ && !coordinator_.pauses_growth()) overshoot_->stable();
  const Cadence& cadence = coordinator_.cadence();
  probe_.coordinated(coordinator_, coordinator_.nudges() - nudges);
  if (cadence.anchor() == before) return;
  const log::Fields fields{{"round", job_.round.value},
                           {"steps", cadence.anchor()},
                           {"before", before},
                           {"exchange_seconds", cadence.exchange_seconds()},
                           {"divergence", coordinator_.divergence()}};
  static const trace::EventLane kLane("events");
  kLane.mark(coordinator_.nudges() > nudges ? "cadence.reduced" : "cadence.changed",
             "steps=" + std::to_string(cadence.anchor()) + " before=" + std::to_string(before));
  if (coordinator_.nudges() > nudges)
    log::warn("cadence.reduced", fields);
  else
    log::debug("cadence.changed", fields);
}

/// A restart may find the end of an epoch of which only the shares of lost workers were left. With
/// an aggregate that needs several contributions a rest that is too few for them is left out.
void DataShares::skip_empty_epoch_end() {
  const std::uint64_t left = samples_left();
  if (left >= aggregate_.least()) return;
  if (left > 0) log::warn("samples.excluded", {{"epoch", job_.epoch}, {"samples", left}});
  while (!job_.returned.is_empty()) (void)job_.returned.take(left);
  job_.returned.commit();
  ++job_.epoch;
  job_.offset = 0;
  job_.evaluate_next = true;
  end_epochs();
}

/// The oldest epoch of which samples are not handed out, are being trained, have come and do not
/// count yet, or are to be given to others. `whose`: of the member that trains them, where one
/// does.
std::uint64_t DataShares::oldest_epoch(MemberId* whose) const {
  std::uint64_t oldest = job_.epoch;
  const auto first = [this](const DataPart& part) {
    return part.epoch +
           (job_.agreed ? part.begin / std::max<std::uint64_t>(job_.agreed->train_samples, 1) : 0);
  };
  const auto look = [&](const DataPart& part, MemberId member) {
    if (part.samples() == 0 || first(part) >= oldest) return;
    oldest = first(part);
    if (whose != nullptr) *whose = member;
  };
  for (const auto& [id, worker] : members_.present) look(worker->share.part, id);
  for (const StagedPart& late : open_.late_staged) look(late.share, late.counts.key.member);
  for (const StagedPart& late : open_.parts) look(late.share, late.counts.key.member);
  if (const auto returned = job_.returned.oldest_epoch(); returned && *returned < oldest) {
    oldest = *returned;
    if (whose != nullptr) *whose = {};
  }
  return oldest;
}

/// Tell of the epochs of which nothing is outstanding, one after the other; with `are_all` of all
/// whose samples are handed out.
void DataShares::end_epochs(bool are_all) {
  if (!job_.epochs.has_open() || job_.epochs.open().begin()->first >= job_.epoch) return;
  const std::uint64_t oldest = are_all ? job_.epoch : oldest_epoch();
  while (const EpochTally* const over = job_.epochs.end(oldest, clock_.unix_seconds())) {
    if (over->all.samples == 0) continue;
    totals_.train_accuracy = over->all.accuracy();
    tell(events_, log::Level::kInfo, "epoch.ended",
         {{"epoch", over->epoch + 1},
          {"loss", over->all.loss()},
          {"accuracy", totals_.train_accuracy},
          {"samples", over->all.samples},
          {"seconds", over->ended_unix_seconds - over->start_unix_seconds},
          {"workers", over->members.size()}});
  }
}

/// Of the open round.
void DataShares::count_reported(ReportedShare told) {
  open_.tally.add(told.tally);
  open_.shares.push_back(std::move(told));
}

/// With asp and ssp, who begins now is at most one epoch ahead of the oldest that is not done.
bool DataShares::is_epoch_ahead() const {
  if (!policy_.applies_each() || !job_.agreed) return false;
  const bool is_open = open_.attempt && !open_.attempt->closed;
  const std::uint64_t at = job_.offset + (is_open ? open_.samples : 0);
  const std::uint64_t begins = job_.epoch + (at >= job_.agreed->train_samples ? 1 : 0);
  return begins >= oldest_epoch() + 2;
}

/// Who may not begin an epoch, for an older one is not done.
void DataShares::epoch_waits(std::vector<WaitView>& views) const {
  const bool waits = std::ranges::any_of(
      members_.present, [](const auto& one) { return one.second->pace.held_since.has_value(); });
  if (!waits) return;
  MemberId whose;
  const std::uint64_t oldest = oldest_epoch(&whose);
  const Member* const member = members_.roster.find(whose);
  for (const auto& [id, worker] : members_.present)
    if (worker->pace.held_since && id != whose)
      views.push_back(
          {.waiter = "worker " + worker->join.name,
           .waits_for = member == nullptr ? "other workers" : members_.name_of(whose),
           .what = "samples of epoch " + std::to_string(oldest) +
                   " are not trained yet; until they are, nobody begins epoch " +
                   std::to_string(oldest + 2),
           .seconds =
               std::chrono::duration<double>(clock_.now() - *worker->pace.held_since).count()});
}

}  // namespace centroid::server
