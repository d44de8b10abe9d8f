#include <algorithm>

#include "common/base/log.h"
#include "server/service/cluster.h"

/// What was told of an epoch's samples, and when that is all; who may not run ahead of it.
namespace centroid::server {

/// The oldest epoch of which samples are not handed out, are being trained, have come and do not
/// count yet, or are to be given to others. `whose`: of the member that trains them, where one
/// does.
std::uint64_t Cluster::oldest_epoch(MemberId* whose) const {
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
  for (const auto& [id, link] : links_) look(link->part, id);
  for (const Part& late : open_.late_staged) look(late.share, late.counts.key.member);
  for (const Part& late : open_.parts) look(late.share, late.counts.key.member);
  if (const auto returned = job_.returned.oldest_epoch(); returned && *returned < oldest) {
    oldest = *returned;
    if (whose != nullptr) *whose = {};
  }
  return oldest;
}

/// Tell of the epochs of which nothing is outstanding, one after the other; with `are_all` of all
/// whose samples are handed out.
void Cluster::end_epochs(bool are_all) {
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
          {"seconds", over->ended_unix_seconds - over->begun_unix_seconds},
          {"workers", over->members.size()}});
  }
}

/// Of the open round.
void Cluster::count_told(ToldShare told) {
  open_.tally.add(told.tally);
  open_.shares.push_back(std::move(told));
}

/// With asp and ssp, who begins now is at most one epoch ahead of the oldest that is not done.
bool Cluster::is_epoch_ahead() const {
  if (!policy_.applies_each() || !job_.agreed) return false;
  const bool is_open = open_.attempt && !open_.attempt->closed;
  const std::uint64_t at = job_.offset + (is_open ? open_.samples : 0);
  const std::uint64_t begins = job_.epoch + (at >= job_.agreed->train_samples ? 1 : 0);
  return begins >= oldest_epoch() + 2;
}

/// Who may not begin an epoch, for an older one is not done.
void Cluster::epoch_waits(std::vector<WaitView>& views) const {
  const bool waits = std::ranges::any_of(
      links_, [](const auto& one) { return one.second->held_since.has_value(); });
  if (!waits) return;
  MemberId whose;
  const std::uint64_t oldest = oldest_epoch(&whose);
  const Member* const member = roster_.find(whose);
  for (const auto& [id, link] : links_)
    if (link->held_since && id != whose)
      views.push_back(
          {.who = "worker " + link->join.name,
           .for_whom = member == nullptr ? "other workers" : name_of(whose),
           .what = "samples of epoch " + std::to_string(oldest) +
                   " are not trained yet; until they are, nobody begins epoch " +
                   std::to_string(oldest + 2),
           .seconds = std::chrono::duration<double>(clock_.now() - *link->held_since).count()});
}

}  // namespace centroid::server
