#include "server/service/round_attempts.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/aggregate/round_timeout.h"

namespace centroid::server {

namespace {

/// Rounds that are kept for GET /v1/rounds: so many, or fewer where they name many workers, down to
/// kLeastHistory. 262,144 names are about 10 MB.
constexpr std::size_t kHistory = 4096, kLeastHistory = 256, kHistoryNames = 262144;

}  // namespace

void RoundAttempts::announce_generation() {
  if (std::exchange(generation_sent_, open_.attempt->generation) == generation_sent_) return;
  events_.publish("generation.formed", {{"generation", generation_sent_.value},
                                        {"world", open_.attempt->members.size()},
                                        {"round", job_.round.value}});
}

/// Of the round that is being opened: settings may change before it ends.
proto::RoundRates RoundAttempts::round_rates() const {
  proto::RoundRates rates;
  const std::uint64_t steps = job_.shard->fragments().steps_before(job_.store().optimizer_step());
  if (config_.applies_on_worker())
    rates.learning_rate = job_.store().optimizer().scheduled_rate(steps + 1);
  if (config_.local.inner_rate > 0) rates.inner = config_.local.inner_rate;
  return rates;
}

/// Workers that will contribute to the attempt: among peers all that have samples, or the attempt
/// fails. 0: the learning rate does not depend on them.
std::uint64_t RoundAttempts::contributors() const {
  if (!open_.among_peers || config_.optimizer_scale_ratio == 0) return 0;
  const auto has_samples = [](const proto::RoundOpen& open) { return open.begin < open.end; };
  return static_cast<std::uint64_t>(std::ranges::count_if(open_.attempt->opens, has_samples));
}

/// The members of the attempt, for each other.
void RoundAttempts::tell_peers() {
  open_.attempt->peers.generation = open_.attempt->generation;
  for (const MemberId member : open_.attempt->members) {
    const proto::Join& join = members_.find(member)->join;
    open_.attempt->peers.ranks.push_back({.endpoint = join.peer_endpoint, .node = join.node});
  }
}

void RoundAttempts::open_attempt(std::vector<MemberId> members,
                                 std::vector<proto::RoundOpen> shares, bool resend) {
  open_.looked_at = clock_.now();
  job_.aggregator->begin({});  // gives credit back by the ranks of the attempt before
  open_.attempt = std::make_shared<Attempt>();
  open_.attempt->generation = members_.roster.generation();
  open_.attempt->round = job_.round;
  open_.attempt->number = job_.attempts++;
  open_.attempt->resend = resend;
  open_.attempt->among_peers = open_.among_peers;
  open_.attempt->version = job_.store().version();
  open_.attempt->optimizer_step = job_.store().optimizer_step();
  open_.attempt->optimizer = job_.store().optimizer().config();
  journal_.begin(job_.round, open_.attempt->number);
  open_.attempt->seat(std::move(members));
  open_.attempt->release = [this](const std::vector<ParameterStore::Hold>& holds) {
    for (const ParameterStore::Hold hold : holds) job_.store().release(hold);
    changed_.notify_all();  // the round loop tries what waited for this memory
  };
  open_.attempt->opens = std::move(shares);
  tell_peers();
  // Who begins at another time, with a policy that lets them, is one of the workers all the same.
  const std::size_t seats = open_.attempt->members.size(),
                    world = policy_.is_elastic() ? std::max(members_.roster.ranked().size(), seats)
                                                 : seats;
  const proto::RoundRates rates = round_rates();
  const std::uint64_t contributing = contributors();
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (std::size_t rank = 0; rank < seats; ++rank) {
    proto::RoundOpen& open = open_.attempt->opens[rank];
    open.generation = open_.attempt->generation;
    open.round = job_.round;
    open.attempt = open_.attempt->number;
    open.rank = Rank(static_cast<std::uint32_t>(rank));
    open.world = static_cast<std::uint32_t>(world);
    open.version = open_.attempt->version;
    open.optimizer_step = open_.attempt->optimizer_step;
    open.resend = resend;
    open.count = config_.local.count > 1 ? job_.steps_before : contributing;
    open.rates = rates;
    // What is made after a contribution goes into the next one: there is none behind the last.
    open.overlap = data_.is_last_round() ? 0 : static_cast<std::uint32_t>(config_.local.overlap);
    open.evaluate = data_.evaluator(open_.attempt->members) == rank;
    if (open.evaluate) job_.evaluate_next = false;
    data_.hand_out(*members_.find(open_.attempt->members[rank]), open);
    if (!policy_.is_elastic())
      members_.find(open_.attempt->members[rank])->contribution.pending_end.reset();
    codecs.push_back(members_.find(open_.attempt->members[rank])->codec);
  }
  announce_generation();
  if (!resend) begin_round();
  if (job_.shard->encodes()) local_.begin_results(open_.attempt->generation);
  open_.complete_chunks = 0;
  open_.overflow.reset();
  open_.has_large_sum = false;
  open_.is_clipped = false;
  open_.excluded = 0;
  open_.failed.clear();
  open_.tally = {};
  open_.shares.clear();
  open_.replicas.clear();
  open_.decision.reset();
  open_.staged.clear();
  spread_.summed.clear();
  std::erase_if(spread_.whole, [this](const auto& one) {
    return one.first.first.round.value + policy_.max_late + 1 < job_.round.value;
  });
  if (policy_.is_elastic())
    for (const auto& codec : codecs)
      open_.staged.push_back(std::make_unique<StagedContribution>(
          job_.store().plan(), codec, job_.shard->round_chunks().size()));
  job_.aggregator->begin(std::move(codecs));
  open_.machine.open(job_.round, open_.attempt->number, open_.attempt->members,
                     policy_.is_elastic() ? wait_report_.unseated() : std::vector<MemberId>(),
                     clock_.now());
  round_servers_.tell_opened();
  first_elsewhere_ = first_elsewhere();
  members_.wake(open_.attempt->members);
}

/// Those that are away have a seat in no attempt.
void RoundAttempts::begin_round() {
  open_.absent.clear();
  for (const auto& [id, worker] : members_.present)
    if (worker->pace.is_away && !policy_.is_elastic()) open_.absent.insert(id);
  open_.members = open_.attempt->members.size() + open_.absent.size();
}

/// Contributions that a robust aggregate does without, as some of the F that may be false.
std::size_t RoundAttempts::missing_tolerated() const {
  const std::size_t missing = open_.missing();
  return missing <= aggregate_.tolerated(open_.members) ? missing : 0;
}

void RoundAttempts::decide(RoundDecision decision) {
  if (decision.action == RoundAction::kWait) {
    if (open_.machine.deadline()) changed_.notify_all();  // the round loop is to wait no longer
    return;
  }
  const std::size_t contributors = decision.contributors.size() + decision.late.size();
  const bool is_short = contributors + missing_tolerated() < aggregate_.least();
  // Of one that closes without some, or whose members are here but had no samples, that is not
  // said.
  const bool has_lost = !policy_.is_elastic() && contributors < config_.workers.min_continue &&
                        members_.roster.staying() < config_.workers.min_continue;
  if (decision.action == RoundAction::kMerge && (is_short || has_lost)) {
    decision.action = RoundAction::kDeserted;
    decision.text = std::to_string(contributors) + " contributions, ";
    if (is_short)
      decision.text +=
          "aggregate " + aggregate_.to_string() + " needs " + std::to_string(aggregate_.least());
    else
      decision.text += "keep_min_workers is " + std::to_string(config_.workers.min_continue);
    ++totals_.aborted;
    probe_.round_aborted();
    if (const auto why = context_.strangers.member_line(decision.text))
      tell(events_, log::Level::kWarn, "round.aborted",
           {{"round", job_.round.value}, {"attempt", open_.attempt->number}, {"why", *why}});
  }
  if (policy_.is_elastic()) elastic_.leave_out(decision);
  open_.decision = std::move(decision);
  changed_.notify_all();
}

/// Open the next attempt for those of the members that are left. False when nobody is, or too few.
bool RoundAttempts::retry(const RoundDecision& decision) {
  ++totals_.aborted;
  probe_.round_aborted();
  if (const auto why = context_.strangers.member_line(decision.text)) {
    const std::uint64_t round = job_.round.value, attempt = open_.attempt->number;
    log::warn("round.attempt_aborted", {{"round", round}, {"attempt", attempt}, {"why", *why}});
    events_.publish("round.aborted", {{"round", round}, {"attempt", attempt}, {"why", *why}});
  }
  const auto old = open_.attempt;
  close_attempt(proto::Outcome::kAborted, 0, 0, decision.text);
  if (open_.among_peers) members_.roster.renew();
  members_.roster.form(false);
  std::vector<MemberId> members;
  std::vector<proto::RoundOpen> shares;
  for (std::size_t rank = 0; rank < old->members.size(); ++rank) {
    const auto worker = members_.find(old->members[rank]);
    if (!worker || worker->pace.is_away) {  // away: silent
      open_.absent.insert(old->members[rank]);
      continue;
    }
    members.push_back(old->members[rank]);
    shares.push_back(old->opens[rank]);
  }
  const bool is_short = std::max<std::uint64_t>(members.size(), members_.roster.staying()) <
                        config_.workers.min_continue;
  if (members.empty() || is_short) return false;
  // The sum begins anew. A member that has gone cannot send its whole contribution again, so others
  // get its samples. Members with an incomplete contribution returned theirs when they left.
  for (const MemberId member : open_.machine.contributed())
    if (!members_.find(member)) {
      const proto::RoundOpen& open = old->opens[*old->rank_of(member)];
      data_.return_part({open.epoch, open.begin, open.end}, job_.round);
    }
  open_attempt(std::move(members), std::move(shares), true);
  return true;
}

void RoundAttempts::close_attempt(proto::Outcome outcome, double weight, std::uint32_t contributors,
                                  std::string reason) {
  proto::RoundClosed closed;
  closed.round = open_.attempt->round;
  closed.attempt = open_.attempt->number;
  closed.outcome = outcome;
  const bool pending = outcome == proto::Outcome::kCommitted &&
                       config_.applies_on_worker();  // committed right after
  closed.version = pending ? job_.store().version().next() : job_.store().version();
  closed.optimizer_step = job_.store().optimizer_step() + (pending ? 1 : 0);
  closed.weight = weight;
  closed.contributors = contributors;
  closed.reason = reason;
  open_.attempt->closed = closed;
  for (const MemberId member : open_.attempt->members)
    if (const auto worker = members_.find(member))
      if (worker->late && worker->late->key == open_.attempt->key()) worker->late->closed = closed;

  RoundView view;
  view.round = closed.round.value;
  view.attempt = closed.attempt;
  view.generation = open_.attempt->generation.value;
  view.version = closed.version.value;
  view.samples = open_.tally.samples;
  view.state = "closed";
  view.outcome = outcome == proto::Outcome::kCommitted ? "committed"
                 : outcome == proto::Outcome::kSkipped ? "skipped"
                                                       : "aborted";
  view.seconds = seconds(clock_.now() - open_.opened);
  view.opened_unix_seconds = clock_.unix_seconds() - view.seconds;
  view.loss = open_.tally.loss();
  for (const MemberId member : open_.attempt->members) {
    const bool is_in = open_.machine.has_contributed(member);
    (is_in ? view.contributors : view.missing).push_back(members_.name_of(member));
  }
  view.late = open_.attempt->late;
  view.scalars = open_.tally.scalars;
  const std::size_t names = view.contributors.size() + view.missing.size() + view.late.size();
  const std::size_t most =
      std::clamp(kHistoryNames / std::max<std::size_t>(1, names), kLeastHistory, kHistory);
  job_.history.push_front(std::move(view));
  while (job_.history.size() > most) job_.history.pop_back();
  round_servers_.forget_departed();
  members_.wake(open_.attempt->members);
  changed_.notify_all();  // copies of the state that it began with may be of no use any more
}

/// When those that are missing have had their time.
TimePoint RoundAttempts::round_limit() const {
  const bool is_bounded =
      config_.timeouts.round.count() > 0 && open_.attempt && !open_.attempt->closed;
  return is_bounded ? open_.looked_at + config_.timeouts.round : TimePoint::max();
}

/// The first missing member whose contribution other servers add up; none: there is no such.
MemberId RoundAttempts::first_elsewhere() const {
  if (!spread_.has_others()) return {};
  for (const MemberId member : open_.machine.missing())
    if (round_servers_.may_have_part(member)) return member;
  return {};
}

/// Exclude a live member that has sent nothing for `round_timeout` and that blocks the round. The
/// attempt is repeated without it, or goes on without it where others have contributed and gone.
void RoundAttempts::exclude_silent() {
  const TimePoint now = clock_.now();
  if (now < round_limit()) return;
  open_.looked_at = now;  // from where the next look is counted, where nobody can be left out
  std::vector<MemberId> silent;
  const MemberId first = first_elsewhere();
  const bool is_first_now = std::exchange(first_elsewhere_, first) != first;
  for (const MemberId member : open_.machine.missing()) {
    const auto worker = members_.find(member);
    const bool was_told = worker && worker->pace.opened == open_.attempt->key();
    // A median takes chunks when all are there, and holds nobody up meanwhile.
    bool awaits_others = aggregate_.is_mean() && was_told &&
                         job_.aggregator->is_waiting(*open_.attempt->rank_of(member));
    // Other servers add in the order of ranks. A member behind the first may wait for it there,
    // or may have waited until now.
    if (aggregate_.is_mean() && round_servers_.may_have_part(member))
      awaits_others = awaits_others || member != first || is_first_now;
    if (!was_told || worker->contribution.pending_end || awaits_others) continue;
    const TimePoint until =
        worker->pace.opened_at + allowed_silence(config_.timeouts.round, worker->pace.came_late);
    if (now >= until)
      silent.push_back(member);
    else
      open_.looked_at = std::min(open_.looked_at, until - config_.timeouts.round);
  }
  const bool has_part = std::ranges::any_of(silent, [this](MemberId member) {
    return job_.aggregator->has_part_of(*open_.attempt->rank_of(member)) ||
           round_servers_.may_have_part(member);
  });
  const Progress progress = has_part ? Progress::kPart : Progress::kNothing;
  RoundDecision decision = open_.machine.timed_out(silent, progress, now);
  std::erase_if(silent, [this](MemberId member) { return open_.machine.is_missing(member); });
  if (silent.empty()) return;
  std::string names;
  for (const MemberId member : silent)
    names.append(names.empty() ? "" : ", ").append(members_.name_of(member));
  if (decision.action == RoundAction::kRetry)
    decision.text = names + ": no contribution within round_timeout, " +
                    std::to_string(config_.timeouts.round.count()) + " ms (at most " +
                    std::to_string(kMostRoundTimeouts) + " times that of who came late)";
  else
    for (const MemberId member : silent) job_.aggregator->absent(*open_.attempt->rank_of(member));
  for (const MemberId member : silent) set_silent(*members_.find(member));
  decide(std::move(decision));
}

/// It is told that the round closed without it, says Ready when it is done with it, and gets a part
/// of a later round then (Outbox).
void RoundAttempts::set_silent(WorkerSession& worker) {
  probe_.member_silent();
  events_.publish(
      "member.excluded",
      {{"worker", worker.join.name}, {"member", worker.id.value}, {"round", job_.round.value}});
  data_.part_lost(worker);
  worker.pace.is_away = true;
  worker.late.emplace();
  worker.late->key = open_.attempt->key();
  worker.late->outcome = proto::Outcome::kLate;
}

/// A member has its results, or is gone: contributions that waited for their memory go in now.
void RoundAttempts::results_taken() {
  if (open_.attempt && !open_.attempt->closed) job_.aggregator->retry_blocked();
}

void RoundAttempts::lose_server() {
  if (spread_.lost_since) return;
  spread_.lost_since = clock_.now();
  const Error why(ErrorCode::kUnavailable, "server '" + spread_.lost +
                                               "' is gone with its chunks: the job goes back to "
                                               "its newest checkpoint");
  log::error("servers.chunks_lost", {{"server", spread_.lost}, {"action", "workers join again"}});
  probe_.state_lost();
  if (open_.attempt && !open_.attempt->closed)
    close_attempt(proto::Outcome::kAborted, 0, 0, why.message());
  for (const auto& [id, worker] : members_.present)
    worker->tasks->spawn(worker->session->goodbye(why));
  changed_.notify_all();
}

/// A server was lost before the round could be committed: on none of the others it is.
void RoundAttempts::give_up_merge(const Error& why) {
  log::error("round.merge_failed", {{"round", job_.round.value}, {"why", why}});
  for (const auto& worker : spread_.others())
    if (worker->is_gone()) spread_.lost = worker->name;
  lose_server();
}

}  // namespace centroid::server
