#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_level.h"
#include "server/aggregate/round_timeout.h"
#include "server/service/cluster.h"

namespace centroid::server {

namespace {

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

/// Rounds that are kept for GET /v1/rounds: so many, or fewer where they name many workers, down to
/// kLeastHistory. 262,144 names are about 10 MB.
constexpr std::size_t kHistory = 4096, kLeastHistory = 256, kHistoryNames = 262144;

/// Those that are not about to leave, whatever they do at the moment.
std::uint64_t workers_here(const Roster& roster) {
  return static_cast<std::uint64_t>(std::ranges::count_if(roster.members(), [](const auto& one) {
    return is_present(one.second.state) && one.second.state != MemberState::kDraining;
  }));
}

}  // namespace

/// `min_workers` are waited for at the start; for a `lease` where a state was brought back,
/// for a worker may have gone with what was lost. `keep_min_workers` always are.
Task<bool> Cluster::wait_for_members() {
  if (trained_rounds_ == 0 && was_restored_ && !members_until_)
    members_until_ = clock_.now() + config_.lease;
  const bool is_over = members_until_ && clock_.now() >= *members_until_;
  const bool is_start = trained_rounds_ == 0 && !is_over;
  const std::uint64_t needed = is_start ? config_.min_workers : aggregate_.least();
  std::uint64_t present = 0;
  for (const auto& [id, link] : members_.links)
    present += members_.roster.find(id)->state != MemberState::kDraining &&
                       !(link->is_away && !policy_.is_elastic())
                   ? 1
                   : 0;
  const std::uint64_t here = workers_here(members_.roster), kept = config_.keep_min_workers;
  const bool has_begun = present >= needed;
  if (has_begun && here >= kept) co_return true;
  std::string why("min_workers");
  if (has_begun)
    why = "keep_min_workers";
  else if (!is_start && !aggregate_.is_mean())
    why = "aggregate " + aggregate_.to_string();
  // At the start the first of them have not had the time to come.
  if (has_begun && trained_rounds_ > 0 && !phase_.is(Phase::kWaiting))
    tell(events_, log::Level::kWarn, "job.short_of_workers",
         {{"round", job_.round.value},
          {"workers", here},
          {"keep_min_workers", kept},
          {"action", "no round begins until so many are here, or the setting is lowered"}});
  phase_.set(Phase::kWaiting, std::to_string(has_begun ? here : present) + " of " +
                                  std::to_string(has_begun ? kept : needed) +
                                  " workers are here (" + why + ")");
  co_await changed_.wait(is_over ? TimePoint::max() : members_until_.value_or(TimePoint::max()));
  co_return false;
}

void Cluster::await_members_again() {
  trained_rounds_ = 0;
  was_restored_ = true;
  members_until_.reset();
}

/// Tell drained members that no round follows for them, whether or not the others go on.
void Cluster::dismiss_drained() {
  for (const auto& [id, link] : members_.links) {
    if (members_.roster.find(id)->state != MemberState::kDraining || link->finish) continue;
    link->finish = proto::Finish{.reason = proto::FinishReason::kDrained,
                                 .version = job_.store->version(),
                                 .text = "drained by an operator"};
    outgoing_.notify_all();
  }
}

Task<Status> Cluster::run_rounds() {
  for (;;) {
    if (exchange_.state_is_wanted()) {
      CENTROID_CO_TRY(co_await exchange_.fetch_state());
      continue;
    }
    // On several servers a version is kept for statistics too, until their deadline.
    if (checkpointer_.is_announcement_wanted() && !(use_.is_measured && spread_.has_others()))
      checkpointer_.announce_checkpoint();
    if (is_changed_) co_await apply_changes();
    if (restore_ && !restore_->outcome) CENTROID_CO_TRY(co_await restore_wanted());
    // The state at the goal is only there when all servers are.
    const bool is_whole = !spread_.lost_since && !servers_.has_lost_server();
    if (stopping_.is_requested || (data_.goal_reached() && is_whole)) {
      if (data_.goal_reached()) data_.end_epochs(true);  // what is under way now is left out
      co_return Status();
    }
    dismiss_drained();
    if (const auto why = gate_.held()) {
      phase_.set(Phase::kPaused, why->message());
      CENTROID_CO_TRY(co_await gate_.may_commit());
      continue;
    }
    if (spread_.freezes > 0) CENTROID_CO_TRY(co_await checkpointer_.freeze_for_checkpoint());
    if (replay_) {
      CENTROID_CO_ASSIGN(const bool is_over, co_await replay_on());
      if (is_over) continue;
      phase_.set(Phase::kWaiting, replay_->reason());
      if (!co_await changed_.wait(TimePoint::max())) co_return Status();
      continue;
    }
    if (commands_.pause) {
      phase_.set(Phase::kPaused, commands_.pause_reason());
      CENTROID_CO_TRY(co_await drain_while_paused());
      continue;
    }
    if (spread_.lost_since || (job_.store && job_.store->version().value > 0)) {
      CENTROID_CO_ASSIGN(const bool is_settled, co_await settle_servers());
      if (!is_settled) continue;
    }
    if (!co_await wait_for_members()) continue;
    if (job_.store->version().value == 0) {
      (void)co_await initial_values_.initialize();
      continue;
    }
    CENTROID_CO_TRY(co_await start_journal());
    if (config_.keeps_journal() && !journal_.is_on()) continue;
    data_.skip_empty_epoch_end();
    if (data_.goal_reached()) continue;
    phase_.set(Phase::kTraining, "");
    CENTROID_CO_TRY(co_await one_round());
  }
}

/// Between two rounds.
Task<void> Cluster::apply_changes() {
  is_changed_ = false;
  policy_ = policy_of(config_);
  open_.machine.set_policy(policy_);
  if (!job_.store) co_return;
  const OptimizerConfig& now = job_.store->optimizer().config();
  if (now.learning_rate == config_.optimizer.learning_rate &&
      now.schedule == config_.optimizer.schedule)
    co_return;
  auto optimizer = make_optimizer(config_.optimizer);
  CENTROID_CHECK(optimizer.ok());  // `finish` has looked
  job_.store->set_optimizer(std::move(optimizer).value());
  journal_.begin_anew();  // each segment is replayed with its own
  if (!spread_.has_others()) co_return;
  proto::OptimizerChange change;
  change.learning_rate = config_.optimizer.learning_rate;
  change.schedule = config_.optimizer.schedule;
  auto head = proto::encode(change);  // who does not take it is given up, and gets it anew
  (void)co_await shards_.ask_all(spread_.others(), proto::ServersKind::kOptimizer, std::move(head));
}

/// What looks at settings when it is told to; the rest looks at them between two rounds.
void Cluster::settings_changed() {
  members_.roster.set_limits(config_.lease, static_cast<std::size_t>(config_.max_workers));
  log::set_level(log::parse_level(config_.log_level).value());
  is_changed_ = true;
  changed_.notify_all();
  if (told_of_change_) told_of_change_();
}

void Cluster::open_attempt(std::vector<MemberId> members, std::vector<proto::RoundOpen> shares,
                           bool resend) {
  open_.looked_at = clock_.now();
  job_.aggregator->begin({});  // gives credit back by the ranks of the attempt before
  open_.attempt = std::make_shared<Attempt>();
  open_.attempt->generation = members_.roster.generation();
  open_.attempt->round = job_.round;
  open_.attempt->number = job_.attempts++;
  open_.attempt->resend = resend;
  open_.attempt->version = job_.store->version();
  open_.attempt->optimizer_step = job_.store->optimizer_step();
  journal_.begin(job_.round, open_.attempt->number);
  open_.attempt->members = std::move(members);
  open_.attempt->release = [this](const std::vector<ParameterStore::Hold>& holds) {
    for (const ParameterStore::Hold hold : holds) job_.store->release(hold);
    changed_.notify_all();  // the round loop tries what waited for this memory
  };
  open_.attempt->opens = std::move(shares);
  open_.attempt->peers.generation = open_.attempt->generation;
  for (const MemberId member : open_.attempt->members) {
    const proto::Join& join = members_.find(member)->join;
    open_.attempt->peers.ranks.push_back({.endpoint = join.peer_endpoint, .node = join.node});
  }
  // Who begins at another time, with a policy that lets them, is one of the workers all the same.
  const std::size_t seats = open_.attempt->members.size(),
                    world = policy_.is_elastic() ? std::max(members_.roster.ranked().size(), seats)
                                                 : seats;
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
    open.steps_before = config_.local_steps > 1 ? job_.steps_before : 0;
    // What is made after a contribution goes into the next one: there is none behind the last.
    open.overlap = data_.is_last_round() ? 0 : static_cast<std::uint32_t>(config_.overlap);
    open.evaluate = data_.evaluator(open_.attempt->members) == rank;
    if (open.evaluate) job_.evaluate_next = false;
    data_.hand_out(*members_.find(open_.attempt->members[rank]), open);
    if (!policy_.is_elastic()) members_.find(open_.attempt->members[rank])->pending_end.reset();
    codecs.push_back(members_.find(open_.attempt->members[rank])->codec);
  }
  if (generation_told_ != open_.attempt->generation) {
    generation_told_ = open_.attempt->generation;
    events_.publish("generation.formed", {{"generation", generation_told_.value},
                                          {"world", open_.attempt->members.size()},
                                          {"round", job_.round.value}});
  }
  if (job_.replies) local_.begin_replies();
  open_.complete_chunks = 0;
  open_.failed.clear();
  open_.tally = {};
  open_.shares.clear();
  open_.decision.reset();
  open_.staged.clear();
  spread_.summed.clear();
  std::erase_if(spread_.whole, [this](const auto& one) {
    return one.first.first.round.value + policy_.max_late + 1 < job_.round.value;
  });
  if (policy_.is_elastic())
    for (const auto& codec : codecs)
      open_.staged.push_back(
          std::make_unique<StagedContribution>(job_.store->plan(), codec, local_.part().size()));
  job_.aggregator->begin(std::move(codecs));
  open_.machine.open(job_.round, open_.attempt->number, open_.attempt->members,
                     policy_.is_elastic() ? wait_report_.unseated() : std::vector<MemberId>(),
                     clock_.now());
  round_servers_.tell_opened();
  outgoing_.notify_all();
}

void Cluster::decide(RoundDecision decision) {
  if (decision.action == RoundAction::kWait) {
    if (open_.machine.deadline()) changed_.notify_all();  // the round loop is to wait no longer
    return;
  }
  const std::size_t contributors = decision.contributors.size() + decision.late.size();
  const bool is_short = contributors < aggregate_.least();
  // Of one that closes without some, or whose members are here but had no samples, that is not
  // said.
  const bool has_lost = !policy_.is_elastic() && contributors < config_.keep_min_workers &&
                        workers_here(members_.roster) < config_.keep_min_workers;
  if (decision.action == RoundAction::kMerge && (is_short || has_lost)) {
    decision.action = RoundAction::kDeserted;
    decision.text = std::to_string(contributors) + " contributions, ";
    if (is_short)
      decision.text +=
          "aggregate " + aggregate_.to_string() + " needs " + std::to_string(aggregate_.least());
    else
      decision.text += "keep_min_workers is " + std::to_string(config_.keep_min_workers);
    ++totals_.aborted;
    probe_.round_aborted();
    tell(events_, log::Level::kWarn, "round.aborted",
         {{"round", job_.round.value}, {"attempt", open_.attempt->number}, {"why", decision.text}});
  }
  if (policy_.is_elastic()) elastic_.leave_out(decision);
  open_.decision = std::move(decision);
  changed_.notify_all();
}

Task<Status> Cluster::one_round() {
  co_await snapshot_room();
  {
    const auto waits = round_journal_.begin_wait();
    co_await journal_.begin_attempt(round_journal_.base());
  }
  members_.roster.form(true);
  data_.end_epochs();  // a late share may have been dropped while no round was open
  auto members = elastic_.seated(members_.roster.ranked());
  // What has come late with asp or ssp takes a round each, before anybody begins anew.
  const bool is_for_late = policy_.applies_each() && open_.machine.has_late();
  if (is_for_late) members.clear();
  if (members.empty() && !is_for_late) {
    const bool waits = policy_.is_elastic() || !members_.links.empty();
    if (waits) co_await changed_.wait(TimePoint::max());
    co_return Status();
  }
  auto shares = data_.make_shares(members);
  open_.opened = clock_.now();
  probe_.position(job_.round.value, job_.store->version().value, job_.epoch);
  open_attempt(std::move(members), std::move(shares), false);
  if (is_for_late) decide(open_.machine.tick(clock_.now()));

  std::optional<TimePoint> give_up;
  for (;;) {
    while (!open_.decision) {
      if (gate_.is_deposed()) co_return gate_.holds();
      if (stopping_.is_requested && !give_up) give_up = clock_.now() + config_.drain_timeout;
      TimePoint limit = std::min(give_up.value_or(TimePoint::max()),
                                 open_.machine.deadline().value_or(TimePoint::max()));
      limit = std::min(limit, round_limit());
      const bool woken = co_await changed_.wait(limit);
      if (!open_.decision) decide(open_.machine.tick(clock_.now()));
      if (!open_.decision) leave_silent_out();
      if (!open_.decision) elastic_.seat_waiting();
      results_taken();
      if (servers_.has_lost_server()) {
        close_attempt(proto::Outcome::kAborted, 0, 0, "a server is gone");
        co_return Status();
      }
      if (!woken && give_up && clock_.now() >= *give_up && !open_.decision) {
        log::warn("round.given_up",
                  {{"round", job_.round.value},
                   {"why", "stopping, and contributions are missing past drain_timeout"}});
        close_attempt(proto::Outcome::kAborted, 0, 0, "the server is stopping");
        co_return Status();
      }
    }
    RoundDecision decision = std::move(*open_.decision);
    open_.decision.reset();
    switch (decision.action) {
      case RoundAction::kWait:
        break;
      case RoundAction::kMerge:
        co_return co_await merge(std::move(decision));
      case RoundAction::kSkip: {
        ++totals_.skipped;
        probe_.round_skipped();
        tell(events_, log::Level::kWarn, "round.skipped",
             {{"round", job_.round.value},
              {"worker", members_.name_of(decision.culprit)},
              {"why", decision.text}});
        const std::uint64_t number = round_journal_.end_round(journal::Kind::kSkip, decision);
        CENTROID_CO_TRY(co_await round_journal_.written(number));
        close_attempt(proto::Outcome::kSkipped, 0, 0, decision.text);
        round_over();
        checkpointer_.checkpoint_behind_round();
        co_return Status();
      }
      case RoundAction::kHalt: {
        const auto rank = open_.attempt->rank_of(decision.culprit);  // none: it came late
        Error halt(ErrorCode::kFailedPrecondition,
                   "JIDOKA HALT: worker " + (rank ? std::to_string(*rank) + " " : std::string()) +
                       "(" + members_.name_of(decision.culprit) + "): " + decision.text);
        close_attempt(proto::Outcome::kAborted, 0, 0, halt.message());
        co_return halt;
      }
      case RoundAction::kRetry:
        CENTROID_CO_TRY(exchange_.heed_failures());
        {
          const auto waits = round_journal_.begin_wait();
          co_await journal_.begin_attempt(round_journal_.base());
        }
        if (retry(decision)) break;
        co_return Status();
      case RoundAction::kDeserted:
        close_attempt(proto::Outcome::kAborted, 0, 0, decision.text);
        co_return Status();
    }
  }
}

/// When those that are missing have had their time.
TimePoint Cluster::round_limit() const {
  const bool is_bounded =
      config_.round_timeout.count() > 0 && open_.attempt && !open_.attempt->closed;
  return is_bounded ? open_.looked_at + config_.round_timeout : TimePoint::max();
}

/// Of whom nothing has come for `round_timeout` since it was told to begin, who lives, and is the
/// one that is waited for (nothing of it waits for others here) is left out: the attempt is given
/// up and repeated without it, or goes on without it where others have contributed and gone.
void Cluster::leave_silent_out() {
  const TimePoint now = clock_.now();
  if (now < round_limit()) return;
  open_.looked_at = now;  // from where the next look is counted, where nobody can be left out
  std::vector<MemberId> silent;
  for (const MemberId member : open_.machine.missing()) {
    const auto link = members_.find(member);
    const bool was_told = link && link->opened == open_.attempt->key();
    // A median takes chunks when all are there, and holds nobody up meanwhile.
    const bool awaits_others = aggregate_.is_mean() && was_told &&
                               job_.aggregator->is_waiting(*open_.attempt->rank_of(member));
    if (!was_told || link->pending_end || awaits_others) continue;
    const TimePoint until =
        link->opened_at + allowed_silence(config_.round_timeout, link->came_late);
    if (now >= until)
      silent.push_back(member);
    else
      open_.looked_at = std::min(open_.looked_at, until - config_.round_timeout);
  }
  const bool has_part = std::ranges::any_of(silent, [this](MemberId member) {
    return job_.aggregator->has_part_of(*open_.attempt->rank_of(member));
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
                    std::to_string(config_.round_timeout.count()) + " ms (at most " +
                    std::to_string(kMostRoundTimeouts) + " times that of who came late)";
  else
    for (const MemberId member : silent) job_.aggregator->absent(*open_.attempt->rank_of(member));
  for (const MemberId member : silent) set_silent(*members_.find(member));
  decide(std::move(decision));
}

/// It is told that the round closed without it, says Ready when it is done with it, and gets a part
/// of a later round then (outbox.cc).
void Cluster::set_silent(Link& link) {
  probe_.member_silent();
  events_.publish(
      "member.left_out",
      {{"worker", link.join.name}, {"member", link.id.value}, {"round", job_.round.value}});
  data_.part_lost(link);
  link.is_away = true;
  link.late.emplace();
  link.late->key = open_.attempt->key();
  link.late->outcome = proto::Outcome::kLate;
}

/// Open the next attempt for those of the members that are left. False when nobody is, or too few.
bool Cluster::retry(const RoundDecision& decision) {
  ++totals_.aborted;
  probe_.round_aborted();
  log::warn(
      "round.attempt_aborted",
      {{"round", job_.round.value}, {"attempt", open_.attempt->number}, {"why", decision.text}});
  events_.publish(
      "round.aborted",
      {{"round", job_.round.value}, {"attempt", open_.attempt->number}, {"why", decision.text}});
  const auto old = open_.attempt;
  close_attempt(proto::Outcome::kAborted, 0, 0, decision.text);
  if (config_.is_peer_to_peer()) members_.roster.renew();
  members_.roster.form(false);
  std::vector<MemberId> members;
  std::vector<proto::RoundOpen> shares;
  for (std::size_t rank = 0; rank < old->members.size(); ++rank) {
    const auto link = members_.find(old->members[rank]);
    if (!link || link->is_away) continue;  // away: silent
    members.push_back(old->members[rank]);
    shares.push_back(old->opens[rank]);
  }
  const bool is_short = std::max<std::uint64_t>(members.size(), workers_here(members_.roster)) <
                        config_.keep_min_workers;
  if (members.empty() || is_short) return false;
  // The sum begins anew: a whole contribution of one that has gone was in it, and cannot be had
  // again. Whose was not whole has given its share back when it went.
  for (const MemberId member : open_.machine.contributed())
    if (!members_.find(member)) {
      const proto::RoundOpen& open = old->opens[*old->rank_of(member)];
      data_.return_part({open.epoch, open.begin, open.end}, job_.round);
    }
  open_attempt(std::move(members), std::move(shares), true);
  return true;
}

void Cluster::close_attempt(proto::Outcome outcome, double weight, std::uint32_t contributors,
                            std::string reason) {
  proto::RoundClosed closed;
  closed.round = open_.attempt->round;
  closed.attempt = open_.attempt->number;
  closed.outcome = outcome;
  const bool pending = outcome == proto::Outcome::kCommitted &&
                       config_.applies_on_worker();  // committed right after
  closed.version = pending ? job_.store->version().next() : job_.store->version();
  closed.optimizer_step = job_.store->optimizer_step() + (pending ? 1 : 0);
  closed.weight = weight;
  closed.contributors = contributors;
  closed.reason = reason;
  open_.attempt->closed = closed;
  for (const auto& [id, link] : members_.links)
    if (link->late && link->late->key == open_.attempt->key()) link->late->closed = closed;

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
    const auto done = open_.machine.contributed();
    const bool is_in = std::find(done.begin(), done.end(), member) != done.end();
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
  outgoing_.notify_all();
}

void Cluster::round_over() {
  job_.round = job_.round.next();
  job_.attempts = 0;
  open_.exchange_failures = 0;
  open_.blamed.clear();
  ++trained_rounds_;
  const DataPosition next = data_.next_position();
  job_.returned.commit();
  data_.coordinate();
  const bool is_epoch_over = next.epoch != job_.epoch;
  if (const std::uint64_t every = config_.checkpoint_every_epochs; every > 0)
    if (next.epoch / every != job_.epoch / every) checkpointer_.set_epoch_due();
  job_.epoch = next.epoch;
  job_.offset = next.offset;
  if (is_epoch_over) job_.evaluate_next = true;
  data_.end_epochs();
}

}  // namespace centroid::server
