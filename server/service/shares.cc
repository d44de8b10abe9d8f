#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/log.h"
#include "common/base/trace_events.h"
#include "server/coordinate/partition.h"
#include "server/service/cluster.h"

/// Who trains what: the data of a round, in the order of the epoch, divided among its members, and
/// what the coordinator makes of their speed.
namespace centroid::server {

/// Who of the members of a round evaluates first, if that is to be done; none: nobody can.
std::optional<std::size_t> Cluster::evaluator(std::span<const MemberId> members) const {
  if (!job_.evaluate_next) return std::nullopt;
  const auto first =
      std::ranges::find_if(members, [this](MemberId id) { return !find(id)->behind; });
  if (first == members.end()) return std::nullopt;
  return static_cast<std::size_t>(first - members.begin());
}

/// Samples that each of the members is to have in a round, where there are so many. Who begins at
/// another time, with a policy that lets them, shares the data with these all the same.
std::vector<std::uint64_t> Cluster::wanted_samples(std::span<const MemberId> members) {
  const std::vector<MemberId> all = policy_.is_elastic()
                                        ? roster_.ranked()
                                        : std::vector<MemberId>(members.begin(), members.end());
  const auto rank_of = [&](MemberId id) {
    return static_cast<std::size_t>(std::ranges::find(all, id) - all.begin());
  };
  std::vector<std::uint64_t> batches;
  for (const MemberId id : all) batches.push_back(find(id)->join.batch);
  const bool is_one_gradient = coordinator_.is_on() && config_.local_steps == 1;
  std::vector<double> planned;  // of all
  if (is_one_gradient) {        // its size stays
    const std::uint64_t total = std::accumulate(batches.begin(), batches.end(), std::uint64_t{0});
    for (const auto part : partition(total - all.size(), coordinator_.speeds(all, batches)))
      planned.push_back(static_cast<double>(part + 1));
  } else {
    std::vector<double> busy(all.size(), 0);
    if (const auto first = evaluator(members); first && all.size() > 1 && config_.local_steps > 1)
      busy[rank_of(members[*first])] = find(members[*first])->evaluation.seconds();
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
      find(id)->wanted = mine * part / static_cast<double>(batches[rank_of(id)]);
  }
  return samples;
}

/// Samples that a round of these members may have: what is left of the epoch, and some of the next.
std::uint64_t Cluster::round_room(std::span<const MemberId> members) {
  const std::uint64_t samples = job_.agreed->train_samples, left = samples - job_.offset;
  const bool is_last = config_.epochs > 0 && job_.epoch + 1 >= config_.epochs;
  if (!coordinator_.is_on() || config_.local_steps == 1 || is_last || left == 0) return left;
  if (!overshoot_)
    overshoot_ = config_.cadence_overshoot > 0
                     ? Overshoot::fixed(config_.cadence_overshoot)
                     : Overshoot(samples / std::max<std::uint64_t>(job_.agreed->batch, 1));
  std::uint64_t sum = 0;
  for (const MemberId id : members) {
    const std::uint64_t batch = find(id)->join.batch, steps = overshoot_->steps();
    sum += std::min(batch > samples / steps ? samples : batch * steps, samples - sum);
  }
  // Not all of it: a round that ended with the next epoch would step over that one's end.
  return left + std::min(sum, samples - 1);
}

/// The next part of the data: what lost workers had first, then what nobody has had.
void Cluster::take_part(proto::RoundOpen& open, std::uint64_t samples) {
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

/// A round needs so many contributions that those of false workers do no harm: what is left of an
/// epoch is divided among all, and a rest that would be too few for a round goes into this one.
void Cluster::fit_to_epoch(std::vector<std::uint64_t>& wanted) const {
  const std::uint64_t left = samples_left();
  const std::uint64_t sum = std::accumulate(wanted.begin(), wanted.end(), std::uint64_t{0});
  if (left < sum)
    wanted = partition(left, std::vector<double>(wanted.size(), 1.0));
  else if (left - sum < aggregate_.least())
    wanted.front() += left - sum;
}

/// Of the epoch, with the shares of lost workers.
std::uint64_t Cluster::samples_left() const {
  return job_.agreed->train_samples - std::min(job_.offset, job_.agreed->train_samples) +
         job_.returned.samples();
}

std::vector<proto::RoundOpen> Cluster::make_shares(const std::vector<MemberId>& members) {
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

/// A member has its share now.
void Cluster::hand_out(Link& link, const proto::RoundOpen& open) const {
  const std::uint64_t batch = std::max<std::uint64_t>(link.join.batch, 1);
  link.part = {open.epoch, open.begin, open.end};
  link.part_of = job_.round;
  link.held_since.reset();
  link.overlap = open.overlap;
  link.local_steps = link.part.samples() / batch + (link.part.samples() % batch > 0 ? 1 : 0);
}

/// What a member of round `of` has not trained is for others.
void Cluster::return_part(const DataPart& part, Round of) {
  if (part.samples() == 0) return;
  probe_.share_returned(part.samples());
  if (of == job_.round)
    job_.returned.lost(part);
  else
    job_.returned.give_back(part);
}

/// A member is gone: what it had not contributed is for others.
void Cluster::part_lost(Link& link) {
  coordinator_.gone(link.id);
  if (link.part.samples() == 0) return;
  return_part(link.part, link.part_of);
  log::info("share.returned", {{"worker", link.join.name},
                               {"epoch", link.part.epoch},
                               {"begin", link.part.begin},
                               {"end", link.part.end},
                               {"action", "other workers train it"}});
  link.part = {};
}

/// Shares behind the position of the state that nobody may be training when a server takes it up:
/// those of lost workers, and those whose contributions have not counted yet. `is_over`: of the
/// state with the open round, else of the one before.
std::string Cluster::untrained(bool is_over) const {
  ReturnedShares shares = job_.returned;
  if (is_over)
    shares.commit();
  else
    shares.give_up();
  for (const auto& [id, link] : links_)
    if (policy_.is_elastic() && (is_over || link->part_of != job_.round))
      shares.give_back(link->part);
  for (const Part& late : open_.late_staged) shares.give_back(late.share);
  if (!is_over)
    for (const Part& late : open_.parts) shares.give_back(late.share);
  return shares.to_text();
}

/// The round is over: what its members said decides on the next ones.
void Cluster::coordinate() {
  const std::uint64_t before = coordinator_.cadence().anchor(), nudges = coordinator_.nudges();
  coordinator_.round_over();
  if (overshoot_ && !coordinator_.holds_growth()) overshoot_->stable();
  const Cadence& cadence = coordinator_.cadence();
  probe_.coordinated(coordinator_, coordinator_.nudges() - nudges);
  if (cadence.anchor() == before) return;
  const log::Fields fields{{"round", job_.round.value},
                           {"steps", cadence.anchor()},
                           {"before", before},
                           {"exchange_seconds", cadence.exchange_seconds()},
                           {"divergence", coordinator_.divergence()}};
  static const trace::EventLane kLane("events");
  kLane.mark(coordinator_.nudges() > nudges ? "cadence.nudged_down" : "cadence.changed",
             "steps=" + std::to_string(cadence.anchor()) + " before=" + std::to_string(before));
  if (coordinator_.nudges() > nudges)
    log::warn("cadence.nudged_down", fields);
  else
    log::debug("cadence.changed", fields);
}

/// A restart may find the end of an epoch of which only the shares of lost workers were left. With
/// an aggregate that needs several contributions a rest that is too few for them is left out.
void Cluster::skip_empty_epoch_end() {
  const std::uint64_t left = samples_left();
  if (left >= aggregate_.least()) return;
  if (left > 0) log::warn("samples.left_out", {{"epoch", job_.epoch}, {"samples", left}});
  while (!job_.returned.is_empty()) (void)job_.returned.take(left);
  job_.returned.commit();
  ++job_.epoch;
  job_.offset = 0;
  job_.evaluate_next = true;
  end_epochs();
}

}  // namespace centroid::server
