#include "server/service/round_loop.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/service/replay.h"

namespace centroid::server {

JobFacts RoundLoop::facts() const {
  JobFacts now;
  now.lacks_state = exchange_.state_is_wanted();
  now.has_new_settings = commands_.is_changed;
  now.needs_restore = restore_ && !restore_->outcome;
  now.needs_stop = stopping_.is_requested;
  now.is_goal_reached = data_.goal_reached();
  now.lost_server = spread_.lost_since || servers_.has_lost_server();
  now.awaits_server = spread_.lost_since.has_value();
  now.may_not_commit = gate_.held().has_value();
  now.needs_freeze = spread_.freezes > 0;
  now.replays = replay_ != nullptr;
  now.is_paused = commands_.pause.has_value();
  now.has_values = job_.shard && job_.store().version().value > 0;
  now.lacks_journal = config_.writes_journal() && !journal_.is_on();
  return now;
}

Task<Status> RoundLoop::run_rounds() {
  JobMachine machine;
  std::size_t away = 0;
  for (;;) {
    // On several servers a version is kept for statistics too, until their deadline.
    if (checkpointer_.is_announcement_wanted() && !exchange_.state_is_wanted() &&
        !(use_.is_measured && spread_.has_others()))
      checkpointer_.announce_checkpoint();
    const JobStep step = machine.next(facts());
    if (step == JobStep::kEnd) {
      CENTROID_CO_ASSIGN(const bool is_kept, co_await keep_goal(away));
      if (!is_kept) continue;
      JobFacts meanwhile = facts();
      meanwhile.lost_server = false;  // its chunks are in the checkpoint
      if (machine.next(meanwhile) != JobStep::kEnd) continue;
      if (data_.goal_reached()) data_.end_epochs(true);  // what is under way now is left out
      co_return Status();
    }
    if (step > JobStep::kEnd) dismiss_drained();
    CENTROID_CO_ASSIGN(const bool answer, co_await make(step));
    machine.over(step, answer);
  }
}

/// Write the checkpoint at the goal while all servers, which have the state in parts, are here.
/// False: a server was lost first, and the job returns to an older checkpoint. That disconnects
/// the workers. `away` is their number: the end waits for them, so that they learn of it.
Task<Result<bool>> RoundLoop::keep_goal(std::size_t& away) {
  const auto are_back = [this, &away] {
    return stopping_.is_requested || members_.present.size() >= away;
  };
  BlockedOn on{WaitCause::kWorkers, "job", "workers",
               [] { return "their return, for they left when a server was lost with its chunks"; }};
  (void)co_await waits_.until(are_back, std::move(on), clock_.now() + config_.timeouts.drain);
  if (stopping_.is_requested || !spread_.has_others()) co_return true;
  CENTROID_CO_TRY(co_await checkpointer_.finish_writing());
  if (!checkpointer_.needs_checkpoint()) co_return true;
  away = members_.present.size();
  const Raised writing(use_.is_loop_writing, changed_);
  const auto written = co_await checkpointer_.write_checkpoint(false);
  co_return written.ok() || !servers_.has_lost_server();  // other errors: it is tried again
}

/// The answer to the step's question, if it has one.
Task<Result<bool>> RoundLoop::make(JobStep step) {
  switch (step) {
    case JobStep::kFetchState:
      CENTROID_CO_TRY(co_await exchange_.fetch_state());
      break;
    case JobStep::kTakeSettings:
      co_await apply_changes();
      break;
    case JobStep::kRestore:
      CENTROID_CO_TRY(co_await restoration_.restore_wanted());
      break;
    case JobStep::kEnd:
      break;
    case JobStep::kAwaitLead:
      if (const auto why = gate_.held()) phase_.set(Phase::kPaused, why->message());
      CENTROID_CO_TRY(co_await gate_.may_commit());
      break;
    case JobStep::kFreeze:
      CENTROID_CO_TRY(co_await checkpointer_.freeze_for_checkpoint());
      break;
    case JobStep::kReplay: {
      CENTROID_CO_ASSIGN(const bool is_over, co_await start_.replay_on());
      if (is_over) break;
      phase_.set(Phase::kWaiting, replay_->reason());
      (void)co_await waits_.next_change();
      break;
    }
    case JobStep::kPause:
      phase_.set(Phase::kPaused, commands_.pause_reason());
      CENTROID_CO_TRY(co_await server_changes_.drain_while_paused());
      break;
    case JobStep::kResolveServers:
      co_return co_await server_changes_.resolve_servers();
    case JobStep::kGather:
      co_return co_await wait_for_members();
    case JobStep::kInitialize:
      (void)co_await initial_values_.initialize();
      break;
    case JobStep::kBeginJournal:
      CENTROID_CO_TRY(co_await start_.start_journal());
      break;
    case JobStep::kTrain:
      data_.skip_empty_epoch_end();
      if (data_.goal_reached()) break;
      phase_.set(Phase::kTraining, "");
      CENTROID_CO_TRY(co_await one_round());
      break;
  }
  co_return true;
}

Task<Status> RoundLoop::one_round() {
  co_await merge_.snapshot_room();
  {
    const auto waits = round_journal_.begin_wait();
    co_await journal_.begin_attempt(round_journal_.base());
  }
  if (!exchange_.choose()) co_return Status();  // the newest state is fetched first
  members_.roster.form(true);
  data_.end_epochs();  // a late share may have been dropped while no round was open
  auto members = elastic_.seated(members_.roster.ranked());
  // What has come late with asp or ssp takes a round each, before anybody begins anew.
  const bool is_for_late = policy_.applies_each() && open_.machine.has_late();
  if (is_for_late) members.clear();
  if (members.empty() && !is_for_late) {
    const bool waits = policy_.is_elastic() || !members_.present.empty();
    if (!waits) co_return Status();
    const auto guard = waits_.begin(WaitCause::kContribution, present_round(job_), "workers",
                                    "the end of their work on rounds that closed without them");
    co_await waits_.next_change();
    co_return Status();
  }
  auto shares = data_.make_shares(members);
  open_.opened = clock_.now();
  probe_.position(job_.round.value, job_.store().version().value, job_.epoch);
  attempts_.open_attempt(std::move(members), std::move(shares), false);
  if (is_for_late) attempts_.decide(open_.machine.tick(clock_.now()));

  std::optional<TimePoint> give_up;
  for (;;) {
    while (!open_.decision) {
      if (gate_.is_deposed()) co_return gate_.holds();
      if (stopping_.is_requested && !give_up) give_up = clock_.now() + config_.timeouts.drain;
      TimePoint limit = std::min(give_up.value_or(TimePoint::max()),
                                 open_.machine.deadline().value_or(TimePoint::max()));
      limit = std::min(limit, attempts_.round_limit());
      const bool woken = co_await waits_.next_change(limit);
      if (!open_.decision) attempts_.decide(open_.machine.tick(clock_.now()));
      if (!open_.decision) attempts_.exclude_silent();
      if (!open_.decision) elastic_.seat_waiting();
      attempts_.results_taken();
      if (servers_.has_lost_server()) {
        attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, "a server is gone");
        co_return Status();
      }
      if (!woken && give_up && clock_.now() >= *give_up && !open_.decision) {
        log::warn("round.abandoned",
                  {{"round", job_.round.value},
                   {"why", "stopping, and contributions are missing past drain_timeout"}});
        attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, "the server is stopping");
        co_return Status();
      }
    }
    RoundDecision decision = std::move(*open_.decision);
    open_.decision.reset();
    switch (decision.action) {
      case RoundAction::kWait:
        break;
      case RoundAction::kMerge:
        co_return co_await merge_round(std::move(decision));
      case RoundAction::kSkip:
        co_return co_await skip_round(std::move(decision));
      case RoundAction::kHalt: {
        const Error halt = halt_of(decision);
        attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, halt.message());
        co_return halt;
      }
      case RoundAction::kRetry: {
        CENTROID_CO_ASSIGN(const bool is_open, co_await open_again(decision));
        if (is_open) break;
        co_return Status();
      }
      case RoundAction::kDeserted:
        attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, decision.text);
        co_return Status();
    }
  }
}

/// False: nobody is left, or the round begins anew.
Task<Result<bool>> RoundLoop::open_again(const RoundDecision& decision) {
  co_await exchange_.pause_after_failure();
  const Status able = exchange_.evict_unreachable();
  if (!able.ok()) {
    // Before the end: workers send their state, and learn why it is, between attempts only.
    attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, able.error().message());
    co_return able.error();
  }
  if (!exchange_.choose()) {
    attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, decision.text);
    co_return false;
  }
  const auto waits = round_journal_.begin_wait();
  co_await journal_.begin_attempt(round_journal_.base());
  co_return attempts_.retry(decision);
}

Error RoundLoop::halt_of(const RoundDecision& decision) const {
  const auto rank = open_.attempt->rank_of(decision.culprit);  // none: it came late
  std::string who;                                             // of a sum it may be unknown
  if (decision.culprit != MemberId())
    who = "worker " + (rank ? std::to_string(*rank) + " " : std::string()) + "(" +
          members_.name_of(decision.culprit) + "): ";
  return {ErrorCode::kFailedPrecondition, "JIDOKA HALT: " + who + decision.text};
}

/// `min_workers` are waited for at the start; for a `lease` where a state was brought back,
/// for a worker may have gone with what was lost. `keep_min_workers` always are.
/// Those that stay, but have no seat until they are free again.
std::uint64_t RoundLoop::count_away() const {
  if (policy_.is_elastic()) return 0;
  return static_cast<std::uint64_t>(
      std::ranges::count_if(members_.present, [this](const auto& one) {
        return one.second->pace.is_away &&
               members_.roster.find(one.first)->state != MemberState::kDraining;
      }));
}

Task<bool> RoundLoop::wait_for_members() {
  if (job_.trained_rounds == 0 && job_.was_restored && !job_.gather_until)
    job_.gather_until = clock_.now() + config_.timeouts.lease;
  const bool is_over = job_.gather_until && clock_.now() >= *job_.gather_until;
  const bool is_start = job_.trained_rounds == 0 && !is_over;
  const std::uint64_t needed = is_start ? config_.workers.min : aggregate_.least();
  const std::uint64_t here = members_.roster.staying(), kept = config_.workers.min_continue;
  // Each that joins comes by here: as long as they are too few, nobody counts them one by one.
  const std::uint64_t away = here < needed ? 0 : count_away(), present = here - away;
  // With a robust aggregate those that are left out are some of the F that may be false.
  const bool tolerates = !is_start && away <= aggregate_.tolerated(present + away);
  const bool has_begun = present + (tolerates ? away : 0) >= needed;
  if (has_begun && here >= kept) co_return true;
  std::string why("min_workers");
  if (has_begun)
    why = "keep_min_workers";
  else if (!is_start && !aggregate_.is_mean())
    why = "aggregate " + aggregate_.to_string();
  // At the start the first of them have not had the time to come.
  if (has_begun && job_.trained_rounds > 0 && !phase_.is(Phase::kWaiting))
    tell(events_, log::Level::kWarn, "job.blocked",
         {{"round", job_.round.value},
          {"workers", here},
          {"keep_min_workers", kept},
          {"action", "no round begins until so many are here, or the setting is lowered"}});
  phase_.set(Phase::kWaiting, std::to_string(has_begun ? here : present) + " of " +
                                  std::to_string(has_begun ? kept : needed) +
                                  " workers are here (" + why + ")");
  const TimePoint limit = job_.gather_until.value_or(TimePoint::max());
  context_.awaits_workers = true;
  co_await waits_.next_change(is_over ? TimePoint::max() : limit);
  context_.awaits_workers = false;
  co_return false;
}

/// Tell drained members that no round follows for them, whether or not the others go on.
void RoundLoop::dismiss_drained() {
  if (!members_.roster.is_draining()) return;
  for (const auto& [id, worker] : members_.present) {
    if (members_.roster.find(id)->state != MemberState::kDraining || worker->finish) continue;
    worker->finish = proto::Finish{.reason = proto::FinishReason::kDrained,
                                   .version = job_.store().version(),
                                   .text = "drained by an operator"};
    worker->wake.notify_all();
  }
}

/// Between two rounds.
Task<void> RoundLoop::apply_changes() {
  commands_.is_changed = false;
  policy_ = policy_of(config_);
  open_.machine.set_policy(policy_);
  if (!job_.shard) co_return;
  const OptimizerConfig& now = job_.store().optimizer().config();
  if (now.learning_rate == config_.optimizer.learning_rate &&
      now.schedule == config_.optimizer.schedule)
    co_return;
  auto optimizer = make_optimizer(config_.optimizer);
  CENTROID_CHECK(optimizer.ok());  // `finish` has looked
  job_.store().set_optimizer(std::move(optimizer).value());
  journal_.begin_segment_next();  // each segment is replayed with its own
  if (!spread_.has_others()) co_return;
  proto::OptimizerChange change;
  change.learning_rate = config_.optimizer.learning_rate;
  change.schedule = config_.optimizer.schedule;
  auto head = proto::encode(change);  // who does not take it is given up, and gets it anew
  (void)co_await shards_.ask_all(spread_.others(), proto::ServersKind::kOptimizer, std::move(head));
}

void RoundLoop::round_over() {
  job_.round = job_.round.next();
  job_.attempts = 0;
  open_.exchange_failures = 0;
  open_.blamed.clear();
  ++job_.trained_rounds;
  const DataPosition next = data_.next_position();
  job_.returned.commit();
  data_.coordinate();
  const bool is_epoch_over = next.epoch != job_.epoch;
  if (const std::uint64_t every = config_.checkpoint.every_epochs; every > 0)
    if (next.epoch / every != job_.epoch / every) checkpointer_.set_due();
  job_.epoch = next.epoch;
  job_.offset = next.offset;
  if (is_epoch_over) job_.evaluate_next = true;
  data_.end_epochs();
}

Task<Status> RoundLoop::skip_round(RoundDecision decision) {
  ++totals_.skipped;
  probe_.round_skipped();
  if (const auto why = context_.strangers.member_line(decision.text))
    tell(events_, log::Level::kWarn, "round.skipped",
         {{"round", job_.round.value},
          {"worker", members_.name_of(decision.culprit)},
          {"why", *why}});
  const std::uint64_t number = round_journal_.end_round(journal::Kind::kSkip, decision);
  CENTROID_CO_TRY(co_await round_journal_.written(number));
  attempts_.close_attempt(proto::Outcome::kSkipped, 0, 0, decision.text);
  round_over();
  checkpointer_.checkpoint_behind_round();
  co_return Status();
}

/// As with a contribution that is not finite. What came late and is in the sum cannot wait for the
/// next round, nor can residuals of results be undone: then the job halts.
Task<Status> RoundLoop::refuse_overflow(RoundDecision decision) {
  merge_.explain_overflow(decision);
  const bool may_skip = policy_.nonfinite == NonFinitePolicy::kSkip && decision.late.empty() &&
                        !config_.compresses_results();
  if (may_skip) {
    co_await merge_.skip();
    co_return co_await skip_round(std::move(decision));
  }
  Error halt(ErrorCode::kFailedPrecondition, "JIDOKA HALT: " + decision.text);
  attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, halt.message());
  co_return halt;
}

/// Find workers whose parameters or slots are not those of the others. They get the right ones
/// before their next round.
/// fails: the job is to halt
Status RoundLoop::compare_replicas() {
  const std::uint64_t compared = open_.replicas.size();
  if (compared < 2) return {};
  probe_.replicas_compared();
  std::ranges::sort(open_.replicas, {}, [this](const ReplicaPrint& one) {
    return open_.attempt->rank_of(one.member).value_or(0);
  });
  const Drift drift = find_drift(open_.replicas, !open_.among_peers);
  if (drift.members.empty()) return {};
  const bool halts = config_.replicas.on_drift == "halt";
  std::string names;
  for (const MemberId member : drift.members) {
    names.append(names.empty() ? "" : ", ").append(members_.name_of(member));
    if (const auto worker = members_.find(member)) worker->has_drifted = true;
    probe_.replica_drifted();
    tell(events_, log::Level::kError, "replica.drifted",
         {{"worker", members_.name_of(member)},
          {"member", member.value},
          {"version", open_.attempt->version.value},
          {"compared", compared},
          {"action", halts ? "the job halts" : "it gets the state again"}});
  }
  if (!halts) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "JIDOKA HALT: parameters or optimizer state of version " +
                   to_string(open_.attempt->version) + " differ on " + names + " from those of " +
                   (drift.is_tie ? "as many other workers" : "most workers") +
                   " (replica_drift halt)");
}

Task<Status> RoundLoop::merge_round(RoundDecision decision) {
  if (Status halt = compare_replicas(); !halt.ok()) {
    attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, halt.error().message());
    co_return halt;
  }
  const auto is_committed = co_await merge_.merge(decision);
  if (!is_committed.ok()) {
    const Error& why = is_committed.error();
    const bool halts = why.code() == ErrorCode::kFailedPrecondition;
    if (halts && open_.attempt && !open_.attempt->closed)
      attempts_.close_attempt(proto::Outcome::kAborted, 0, 0, why.message());
    co_return why;
  }
  if (!*is_committed && open_.overflow) co_return co_await refuse_overflow(std::move(decision));
  if (!*is_committed) co_return Status();
  round_over();
  checkpointer_.checkpoint_behind_round();
  co_return Status();
}

}  // namespace centroid::server
