#include "server/service/elastic_round.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/aggregate/round_timeout.h"

namespace centroid::server {

/// Members that are free to begin a round, or about to be. The others get no part of the data until
/// they are.
std::vector<MemberId> ElasticRound::seated(std::vector<MemberId> members) {
  const bool is_elastic = policy_.is_elastic();
  std::erase_if(members, [&](MemberId id) {
    return members_.find(id)->pace.is_away || (is_elastic && !open_.machine.may_begin(id));
  });
  if (!data_.is_epoch_ahead()) return members;
  // What a lost worker had of the older epoch is for one of them, the others take what it leaves.
  const auto held = members.begin() + (job_.returned.will_be_empty() || members.empty() ? 0 : 1);
  for (auto at = held; at != members.end(); ++at) members_.find(*at)->pace.hold(clock_.now());
  members.erase(held, members.end());
  return members;
}

/// A member that was away is free: it takes a part in the round that is open, with the data behind
/// the parts there are, as far as a round of them all goes; none when that is at its end.
void ElasticRound::seat(WorkerSession& worker) {
  if (worker.pace.is_away) changed_.notify_all();
  worker.pace.is_away = false;
  if (!policy_.is_elastic() || !open_.attempt || open_.attempt->closed) return;
  // What was lost in this round is handed out when it closes, for which somebody has to contribute.
  const bool may_close = job_.returned.will_be_empty() || !open_.machine.missing().empty();
  if (job_.returned.is_empty() && may_close && data_.is_epoch_ahead()) {
    worker.pace.hold(clock_.now());
    return;
  }
  if (!open_.machine.admit(worker.id)) return;
  proto::RoundOpen open = open_.attempt->opens.front();
  const std::uint64_t wanted = data_.wanted_samples(std::span(&worker.id, 1)).front();
  std::vector<MemberId> members = open_.attempt->members;
  std::erase_if(members, [this](MemberId id) { return !members_.find(id); });
  members.push_back(worker.id);
  const std::uint64_t room = data_.round_room(members);
  data_.take_part(open, job_.returned.is_empty()
                            ? std::min(wanted, room - std::min(room, open_.samples))
                            : wanted);
  data_.hand_out(worker, open);
  open.rank = Rank(static_cast<std::uint32_t>(open_.attempt->members.size()));
  open.world =
      std::max(static_cast<std::uint32_t>(members_.roster.ranked().size()), open.rank.value + 1);
  open.evaluate = std::exchange(job_.evaluate_next, false);
  open_.attempt->seat(worker.id);
  worker.wake.notify_all();
  open_.attempt->opens.push_back(open);
  open_.staged.push_back(std::make_unique<StagedContribution>(job_.store().plan(), worker.codec,
                                                              job_.shard->round_chunks().size()));
}

/// Who had to wait for slower members, or for an older epoch, may begin, for one of those has come,
/// or is gone.
void ElasticRound::seat_waiting() {
  if (!policy_.applies_each() || !open_.attempt) return;
  for (const auto& [id, worker] : members_.present) {
    const bool waits = policy_.kind == PolicyKind::kSsp || worker->pace.held_since;
    if (waits && !worker->pace.is_away && !open_.attempt->rank_of(id)) seat(*worker);
  }
}

/// A decision has been made: who has not contributed is not waited for any more.
void ElasticRound::leave_out(const RoundDecision& decision) {
  if (decision.action != RoundAction::kMerge && decision.action != RoundAction::kSkip) return;
  for (std::size_t rank = 0; rank < open_.attempt->members.size(); ++rank) {
    const MemberId id = open_.attempt->members[rank];
    const auto worker = members_.find(id);
    if (!worker || open_.machine.has_contributed(id)) continue;
    open_.attempt->left_out.insert(id);
    if (!policy_.applies_each())  // there everybody but one is left out of every round
      events_.publish(
          "member.excluded",
          {{"worker", worker->join.name}, {"member", id.value}, {"round", job_.round.value}});
    worker->pace.is_away = true;
    if (worker->pace.opened != open_.attempt->key()) {  // it did not come to begin
      data_.return_part(worker->share.part, job_.round);
      worker->share.part = {};
      continue;
    }
    worker->late.emplace();
    worker->late->key = open_.attempt->key();
    if (open_.machine.may_count_late(job_.round))
      worker->late->staged = std::move(open_.staged[rank]);
    else
      resolve_late(*worker, proto::Outcome::kLate);
  }
  for (const auto& [id, worker] : members_.present)
    if (worker->late && worker->late->staged &&
        !open_.machine.may_count_late(worker->late->key.round))
      resolve_late(*worker, proto::Outcome::kLate);
  open_.parts.clear();
  for (const LateContribution& one : decision.late) {
    open_.attempt->late.push_back(members_.name_of(one.member));
    open_.parts.push_back(std::move(open_.late_staged.front()));
    open_.parts.back().counts.weight = one.weight;
    data_.count_reported(std::move(open_.parts.back().told));
    open_.late_staged.pop_front();
  }
  CENTROID_CHECK(open_.late_staged.size() == open_.machine.late_waiting());
}

/// It is known what becomes of a late contribution.
void ElasticRound::resolve_late(WorkerSession& worker, proto::Outcome outcome, bool has_samples) {
  const bool is_carried = outcome == proto::Outcome::kCarried;
  worker.late->outcome = outcome;
  const bool has_begun = !worker.pace.is_brought || worker.late->key != worker.pace.opened;
  if (!has_begun) data_.return_part(worker.share.part, worker.late->key.round);  // others train it
  worker.share.part = {};  // it counts, or is left out of this epoch
  if (!is_carried) worker.local.told = {};
  if (const auto& end = worker.contribution.pending_end;
      end && worker.late->key == Attempt::Key{end->generation, end->round, end->attempt})
    worker.contribution.pending_end.reset();
  worker.late->staged.reset();
  worker.wake.notify_all();
  changed_.notify_all();  // a copy of the state for it may be of no use any more
  if (!has_samples || !has_begun) return;
  ++(is_carried ? totals_.late_carried : totals_.late_dropped);
  probe_.contribution_late(is_carried);
  log::debug("contribution.late", {{"worker", worker.join.name},
                                   {"round", worker.late->key.round.value},
                                   {"open", job_.round.value},
                                   {"carried", is_carried}});
}

/// Where a chunk or the end with this key belongs; nullptr: nowhere any more.
StagedContribution* ElasticRound::stage_for(WorkerSession& worker, const Attempt::Key& key) {
  if (open_.attempt && open_.attempt->key() == key && open_.machine.expects(worker.id))
    return open_.staged[*open_.attempt->rank_of(worker.id)].get();
  if (worker.late && worker.late->key == key && !worker.late->outcome)
    return worker.late->staged.get();
  return nullptr;
}

/// What the decision counts, in the order of the sum: by rank, then the late ones as they came.
void ElasticRound::collect_parts(const RoundDecision& decision) {
  std::vector<StagedPart> parts;
  for (const MemberId member : decision.contributors) {
    StagedPart part;
    part.staged = std::move(open_.staged[*open_.attempt->rank_of(member)]);
    part.counts.key = {member, open_.attempt->generation, open_.attempt->round,
                       open_.attempt->number};
    part.counts.weight = part.staged->weight();
    if (part.counts.weight == 0)
      part.counts.weight = round_servers_.weight_elsewhere(part.counts.key);
    parts.push_back(std::move(part));
  }
  for (StagedPart& late : open_.parts) parts.push_back(std::move(late));
  open_.parts = std::move(parts);
}

/// A member that was left out is done with that round.
void ElasticRound::member_ready(WorkerSession& worker, const proto::Computed& done) {
  const Attempt::Key key{done.generation, done.round, done.attempt};
  if (worker.pace.behind != key) {
    probe_.stale_frame();
    return;
  }
  worker.pace.behind.reset();
  if (!policy_.is_elastic() && config_.timeouts.round.count() > 0) {
    const Duration took = clock_.now() - worker.pace.opened_at;
    worker.pace.came_late = took;
    const auto ms = [](Duration d) {
      return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
    };
    const auto allowed = allowed_silence(config_.timeouts.round, worker.pace.came_late);
    const bool is_allowed = allowed > config_.timeouts.round;
    log::warn("member.limit_exceeded",
              {{"worker", worker.join.name},
               {"took_ms", ms(took)},
               {"round_timeout_ms", config_.timeouts.round.count()},
               {"allowed_ms", ms(allowed)},
               {"action", is_allowed ? "it may take longer from now on; if it always does, set "
                                       "round_timeout above what it took"
                                     : "it is left out whenever it takes so long; to wait for it "
                                       "set round_timeout above what it took"}});
  }
  open_.machine.caught_up(worker.id, clock_.now());
  worker.wake.notify_all();
}

/// A round is committed: its late contributions count, whatever becomes of this server.
void ElasticRound::late_counted(const RoundDecision& decision) {
  for (const LateContribution& late : decision.late) {
    job_.counted.add(members_.name_of(late.member), late.round);
    probe_.staleness(job_.round.value - late.round.value);
    const auto worker = members_.find(late.member);
    if (worker && worker->late && worker->late->key.round == late.round && !worker->late->outcome)
      resolve_late(*worker, proto::Outcome::kCarried);
  }
  for (StagedPart& part : open_.parts) part.share = {};
}

}  // namespace centroid::server
