#include "server/service/peer_exchange.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/coordinate/exchange_choice.h"
#include "server/service/initial_values.h"

namespace centroid::server {

namespace {
constexpr std::uint64_t kFailuresBeforeBlame = 3, kFailuresBeforeHalt = 6;
constexpr std::chrono::seconds kHearing{1};
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::uint64_t kMostDoublings = 5;  // of the pause
/// With exchange auto the state is copied from a worker so often, and at most for a fiftieth of the
/// time: what is lost with all workers at once.
constexpr std::chrono::seconds kCopyEvery{10};
constexpr int kCopyShare = 50;
/// As long as a worker that leaves waits for its answer.
constexpr std::chrono::seconds kTakingOver{10};
}  // namespace

ExchangeChoice PeerExchange::choice() const {
  ExchangeFacts facts;
  facts.model_bytes = job_.store().plan().total_elements() * sizeof(float);
  for (const auto& [id, worker] : members_.present)
    if (!worker->finish)
      facts.workers.push_back({.name = worker->join.name,
                               .codec = worker->join.codec,
                               .is_reachable = !worker->join.peer_endpoint.empty()});
  const bool is_as_it_was = std::ranges::all_of(
      failure_.members, [this](MemberId id) { return members_.find(id) != nullptr; });
  if (is_as_it_was) facts.failure = failure_.why;
  return choose_exchange(facts);
}

bool PeerExchange::choose() {
  const auto set = [this](bool among_peers) {
    open_.among_peers = policy_.is_joint = among_peers;
    open_.machine.set_policy(policy_);
  };
  if (!config_.chooses_exchange()) {
    set(config_.is_peer_to_peer());
    return true;
  }
  if (const Attempt* last = open_.attempt.get();
      last != nullptr && last->among_peers && last->closed &&
      last->closed->outcome == proto::Outcome::kCommitted)
    met_ = {last->members.begin(), last->members.end()};
  ExchangeChoice now = choice();
  if (!now.among_peers && !job_.store().is_current()) return false;
  if (now.among_peers && job_.store().is_current()) job_.held = job_.position();
  if (now.among_peers && !open_.among_peers) copy_due_ = clock_.now() + kCopyEvery;
  set(now.among_peers);
  open_.exchange_why = now.why;
  const auto before = std::exchange(chosen_, now.among_peers);
  if (before == chosen_) return true;
  // In a generation whose peers they know the workers add among themselves.
  if (before.value_or(false)) members_.roster.renew();
  tell(events_, log::Level::kInfo, "exchange.chosen",
       {{"exchange", now.among_peers ? "ring" : "star"},
        {"round", job_.round.value},
        {"why", now.why}});
  return true;
}

/// Holds the newest version, or will when its outbox has told it how the last round ended.
bool PeerExchange::holds_newest(const WorkerSession& worker) const {
  if (worker.has_drifted) return false;
  if (worker.version == job_.store().version()) return true;
  return open_.attempt && open_.attempt->closed &&
         open_.attempt->closed->outcome == proto::Outcome::kCommitted &&
         open_.attempt->closed->version == job_.store().version() &&
         open_.attempt->rank_of(worker.id).has_value() &&
         open_.attempt->left_out.count(worker.id) == 0;
}

bool PeerExchange::state_is_wanted() const {
  if (!job_.shard || job_.store().is_current()) return false;
  if (!members_.present.empty() && use_.readers > 0) return true;
  if (!members_.present.empty() && config_.chooses_exchange() &&
      (clock_.now() >= copy_due_ || !choice().among_peers))
    return true;
  if (stopping_.is_requested || data_.goal_reached() || checkpointer_.awaits_state()) return true;
  return std::any_of(members_.present.begin(), members_.present.end(), [this](const auto& entry) {
    return !holds_newest(*entry.second) ||  // a newcomer, or one that leaves and may be the last
           members_.roster.find(entry.first)->state == MemberState::kDraining;
  });
}

Task<Status> PeerExchange::fetch_state() {
  const TimePoint begin = clock_.now();
  while (!job_.store().is_current()) {
    if (use_.is_writing) {  // reads the values that this would replace
      BlockedOn on{WaitCause::kCheckpoint, "state", "checkpoint",
                   [] { return "its files: they are read from what the newest state replaces"; }};
      const bool goes_on = co_await until_written(std::move(on));
      if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
    }
    std::shared_ptr<WorkerSession> holder;
    for (const auto& [id, worker] : members_.present) {
      const auto rank = members_.roster.find(id)->rank;
      if (!holds_newest(*worker)) continue;
      if (!holder || rank < members_.roster.find(holder->id)->rank) holder = worker;
    }
    if (!holder) {
      CENTROID_CO_TRY(co_await go_back());
      break;
    }
    holder->state_requested = true;
    upload_ = Upload{.from = holder->id,
                     .begun = clock_.now(),
                     .moved = clock_.now(),
                     .chunks = job_.store().plan().chunks().size(),
                     .planes = 1 + job_.store().optimizer().slots()};
    holder->wake.notify_all();
    const auto is_over = [this, id = holder->id] {
      return job_.store().is_current() || !members_.find(id);
    };
    while (!is_over()) {
      const TimePoint limit = upload_->moved + config_.timeouts.stall;
      const bool is_here = co_await until(is_over, kShownElsewhere, limit);
      if (is_here || clock_.now() < upload_->moved + config_.timeouts.stall) continue;
      const std::string why = "it was asked for the state and sent nothing for " +
                              std::to_string(config_.timeouts.stall.count()) +
                              " ms (stall_timeout)";
      tell(events_, log::Level::kWarn, "member.lost",
           {{"worker", holder->join.name}, {"member", holder->id.value}, {"why", why}});
      members_.roster.lost(holder->id, why);
      control_.member_gone(holder->id, Error(ErrorCode::kAborted, why));
    }
    upload_.reset();
  }
  const TimePoint end = clock_.now();
  copy_due_ = end + std::max<Duration>(kCopyEvery, (end - begin) * kCopyShare);
  changed_.notify_all();
  co_return Status();
}

bool PeerExchange::is_last_holder(const WorkerSession& worker) const {
  if (!job_.shard || job_.store().is_current() || !holds_newest(worker)) return false;
  return std::ranges::none_of(members_.present, [&](const auto& entry) {
    return entry.first != worker.id && holds_newest(*entry.second) &&
           members_.roster.find(entry.first)->state != MemberState::kDraining;
  });
}

Task<void> PeerExchange::take_over(std::shared_ptr<WorkerSession> worker) {
  members_.roster.drain(worker->id);  // so the state is wanted (`state_is_wanted`)
  if (open_.attempt && !open_.attempt->closed && open_.machine.is_open() && !open_.decision) {
    RoundDecision deserted;
    deserted.action = RoundAction::kDeserted;
    deserted.text = "its last worker leaves";
    control_.decide(std::move(deserted));
  }
  changed_.notify_all();
  BlockedOn on{WaitCause::kState, "worker " + worker->join.name, "its connection",
               [] { return "it leaves, and no other worker has the newest state"; }};
  const auto is_over = [this, worker] {
    return worker->is_gone || !job_.shard || job_.store().is_current();
  };
  (void)co_await until(is_over, std::move(on), clock_.now() + kTakingOver);
}

/// No worker holds the newest state any more: the job goes on from the newest one that is left.
Task<Status> PeerExchange::go_back() {
  const Version lost = job_.store().version();
  const std::uint64_t lost_round = job_.round.value - 1;
  bool has_checkpoint = job_.store().held() == Version();
  if (has_checkpoint) {
    CENTROID_CO_ASSIGN(has_checkpoint, co_await loader_.has_checkpoint());
  }
  if (has_checkpoint) {
    // The last worker went while it was sending.
    CENTROID_CO_ASSIGN(JobState newest, co_await loader_.load_checkpoint());
    newest.trained_rounds = job_.trained_rounds;  // those that are here go on without waiting
    job_.replace(std::move(newest));
  } else {
    job_.replace(std::move(job_).back_to_stored());
  }
  tell(events_, log::Level::kError, "state.lost",
       {{"why", "every worker that held it is gone"},
        {"version", lost.value},
        {"action", "going back"},
        {"to_version", job_.store().version().value},
        {"to_round", job_.round.value}});
  probe_.state_lost();
  if (job_.round.value == 1 && lost_round > 0)
    tell(events_, log::Level::kWarn, "job.restarted",
         {{"lost_round", lost_round},
          {"why", "every worker that held the state is gone, and there is no checkpoint"}});
  co_return Status();
}

Task<Status> PeerExchange::take_state_chunk(transport::Session& session,
                                            std::shared_ptr<WorkerSession> worker,
                                            proto::StateChunk head, std::uint64_t bytes) {
  const std::string where = "state chunk " + to_string(head.chunk) + " of plane " +
                            std::to_string(head.plane) + " of " + worker->join.name;
  if (!upload_ || upload_->from != worker->id || head.version != job_.store().version())
    co_return Error(ErrorCode::kFailedPrecondition, where + ": nobody asked for it");
  const std::size_t piece = head.plane * upload_->chunks + head.chunk.value;
  if (head.chunk.value >= upload_->chunks || piece != upload_->received ||
      piece >= upload_->pieces())
    co_return Error(ErrorCode::kInvalidArgument,
                    where + ": expected piece " + std::to_string(upload_->received) + " of " +
                        std::to_string(upload_->pieces()) + ", plane by plane");
  const Chunk& chunk = job_.store().plan().chunk(head.chunk);
  CENTROID_CO_ASSIGN(const Buffer buffer,
                     co_await read_numbers(session, probe_, where, chunk.elements, bytes));
  if (!upload_ || upload_->from != worker->id) co_return Status();  // given up meanwhile
  if (piece == 0) job_.store().begin_replacing();
  const auto values = buffer.as<float>().first(chunk.elements);
  CENTROID_CO_TRY(job_.store().load(head.plane, chunk.position, values));
  ++upload_->received;
  upload_->moved = clock_.now();
  co_return Status();
}

Status PeerExchange::state_done(WorkerSession& worker, const proto::StateMark& mark) {
  const std::string where = "StateDone of " + worker.join.name;
  if (!upload_ || upload_->from != worker.id || mark.version != job_.store().version())
    return Error(ErrorCode::kFailedPrecondition, where + ": nobody asked for it");
  if (upload_->received != upload_->pieces())
    return Error(ErrorCode::kInvalidArgument, where + ": " + std::to_string(upload_->received) +
                                                  " of " + std::to_string(upload_->pieces()) +
                                                  " chunks came");
  job_.store().end_replacing();
  job_.held = job_.position();
  log::info("state.fetched",
            {{"worker", worker.join.name}, {"version", job_.store().version().value}});
  changed_.notify_all();
  return {};
}

void PeerExchange::exchange_failed(WorkerSession& worker, const proto::ExchangeFailed& failed) {
  if (!open_.attempt || open_.attempt->closed || !open_.attempt->rank_of(worker.id) ||
      Attempt::Key{failed.generation, failed.round, failed.attempt} != open_.attempt->key()) {
    probe_.stale_frame();
    return;
  }
  if (open_.failed.contains(worker.id)) return;
  if (const auto why = context_.strangers.member_line(failed.reason))
    log::warn("exchange.failed", {{"worker", worker.join.name},
                                  {"round", failed.round.value},
                                  {"attempt", failed.attempt},
                                  {"why", *why}});
  if (failed.has_culprit && failed.culprit.value < open_.attempt->members.size())
    ++open_.blamed[open_.attempt->members[failed.culprit.value]];
  open_.failed.insert(worker.id);
  const std::string why = "worker '" + worker.join.name + "': " + failed.reason;
  const auto missing = open_.machine.missing();
  const bool is_told_by_all = std::all_of(
      missing.begin(), missing.end(), [this](MemberId id) { return open_.failed.contains(id); });
  if (is_told_by_all)
    give_up_attempt(worker.id, why);
  else if (open_.failed.size() == 1)
    tasks_.spawn(await_other_reports(open_.attempt, worker.id, why));
}

/// One worker alone may be the cut-off one that blames the others: who else failed says so soon.
Task<void> PeerExchange::await_other_reports(std::weak_ptr<const Attempt> of, MemberId first,
                                             std::string why) {
  const bool in_time = co_await sleep_until(clock_.now() + kHearing);  // lint-ok: a deadline
  const auto attempt = of.lock();
  if (in_time && attempt && attempt == open_.attempt && !attempt->closed)
    give_up_attempt(first, why);
}

void PeerExchange::give_up_attempt(MemberId reporter, const std::string& why) {
  auto decision = open_.machine.failed(reporter, why);
  if (decision.action == RoundAction::kRetry && open_.exchange_failures++ == 0)
    open_.exchange_failed = clock_.now();
  control_.decide(std::move(decision));
}

Task<void> PeerExchange::pause_after_failure() {
  if (open_.exchange_failures == 0) co_return;
  const auto doublings = std::min(open_.exchange_failures - 1, kMostDoublings);
  const auto has_left = [this, attempt = open_.attempt] {
    return gate_.is_deposed() || stopping_.is_requested ||
           !std::ranges::all_of(attempt->members,
                                [this](MemberId id) { return members_.find(id) != nullptr; });
  };
  (void)co_await until(has_left, kShownElsewhere, clock_.now() + kFirstPause * (1 << doublings));
}

/// Workers that have never met may be unable to; others may have been cut off for a moment.
void PeerExchange::note_failure() {
  const auto& members = open_.attempt->members;
  const bool have_met =
      std::ranges::all_of(members, [this](MemberId id) { return met_.contains(id); });
  if (open_.exchange_failures < (have_met ? kFailuresBeforeBlame : 1)) return;
  failure_ = {.members = {members.begin(), members.end()},
              .why = "the workers could not reach each other (exchange.failed in the log)"};
  std::uint64_t votes = 0;
  for (const auto& [id, count] : open_.blamed) {
    const auto worker = members_.find(id);
    if (!worker || count <= votes) continue;
    votes = count;
    failure_ = {.members = {id},
                .why = "the others could not exchange with worker '" + worker->join.name + "' at " +
                       worker->join.peer_endpoint};
  }
}

/// Attempts that fail again and again although everybody is here: somebody cannot be reached by the
/// others. The one most of them name goes, so that the rest can go on.
Status PeerExchange::evict_unreachable() {
  if (config_.chooses_exchange()) {
    if (open_.among_peers) note_failure();
    return {};
  }
  const auto failing = clock_.now() - open_.exchange_failed;
  if (open_.exchange_failures < kFailuresBeforeBlame || failing < config_.timeouts.lease) return {};
  MemberId culprit;
  std::uint64_t votes = 0;
  for (const MemberId member : open_.attempt->members) {  // of equals the one of highest rank
    const auto blame = open_.blamed.find(member);
    if (blame == open_.blamed.end() || blame->second < votes || !members_.find(member)) continue;
    culprit = member;
    votes = blame->second;
  }
  if (votes > 0) {
    const std::string why = "the other workers could not exchange with it at " +
                            members_.find(culprit)->join.peer_endpoint + " in " +
                            std::to_string(open_.exchange_failures) +
                            " attempts: is that address reachable from them?";
    log::error("member.unreachable_evicted", {{"worker", members_.name_of(culprit)}, {"why", why}});
    members_.roster.lost(culprit, why);
    control_.member_gone(culprit, Error(ErrorCode::kFailedPrecondition, why));
    open_.exchange_failures = 0;
    open_.blamed.clear();
    return {};
  }
  if (open_.exchange_failures < kFailuresBeforeHalt) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "the workers cannot exchange: round " + to_string(open_.attempt->round) +
                   " failed " + std::to_string(open_.exchange_failures) +
                   " times and no worker is named as the cause (exchange.failed in the log)");
}

}  // namespace centroid::server
