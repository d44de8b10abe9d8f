#include "server/service/wait_report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/codec/chunk_codec.h"

namespace centroid::server {

namespace {

std::string milliseconds(Duration d) { return std::to_string(static_cast<int>(1000 * seconds(d))); }

/// Beside its outbox, which waits for the state that it is to bring.
Task<void> send_wait(std::shared_ptr<WorkerSession> worker, std::vector<std::byte> head,
                     TimePoint until) {
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kWait);
  (void)co_await worker->session->send(kind, head, Bytes(), until);
}

}  // namespace

/// What of a member's contribution waits here in the order of the sum, where that has taken its
/// credit: it can send nothing more until others have sent theirs, or there is memory.
std::optional<Aggregator::Queued> WaitReport::held_up(const WorkerSession& worker) const {
  if (policy_.is_elastic() || open_.among_peers || !job_.shard) return std::nullopt;
  const auto rank = open_.attempt ? open_.attempt->rank_of(worker.id) : std::nullopt;
  if (!rank || !open_.machine.is_missing(worker.id)) return std::nullopt;
  auto queued = job_.aggregator->queued(*rank);
  const std::size_t next = largest_payload(*worker.codec, job_.store().plan());
  if (queued.bytes == 0 || worker.session->credit_left() >= next) return std::nullopt;
  return queued;
}

/// Members without a seat in the attempt.
std::vector<MemberId> WaitReport::unseated() const {
  std::vector<MemberId> out = members_.roster.ranked();
  std::erase_if(out, [this](MemberId id) { return open_.attempt->rank_of(id).has_value(); });
  return out;
}

/// Before the first round, or for one that is gone.
bool WaitReport::waits_for_servers() const {
  return spread_.lost_since || replay_ ||
         (!spread_.were_here && config_.servers > 1 && job_.shard &&
          job_.store().version().value > 0);
}

/// For whom the open round waits, and why each of them has not contributed.
void WaitReport::round_waits(std::vector<WaitView>& views) const {
  constexpr double kLong = 2;  // seconds from which on the whole cause is told
  const std::string round = present_round(job_);
  const double open = seconds(clock_.now() - open_.opened);
  const std::size_t done = open_.machine.contributed().size(), needed = open_.machine.needed();
  const auto add = [&](MemberId member, std::string what) {
    const Duration silent = clock_.now() - members_.roster.find(member)->heard;
    if (open > kLong)
      what += "; the round has " + std::to_string(done) + " of the " + std::to_string(needed) +
              " contributions that it needs, of " + std::to_string(open_.attempt->members.size()) +
              " workers";
    if (silent > config_.timeouts.lease / 2)  // it should have sent two heartbeats
      what += ", silent for " + milliseconds(silent) + " ms";
    else if (open > kLong)
      what += ", last heard " + milliseconds(silent) + " ms ago";
    views.push_back({.waiter = round,
                     .waits_for = members_.name_of(member),
                     .what = std::move(what),
                     .seconds = open});
  };
  std::optional<MemberId> first;  // of those whom other servers add up: the others are behind it
  for (const MemberId member : open_.machine.missing()) {
    const auto worker = members_.find(member);
    const bool is_added_elsewhere = aggregate_.is_mean() && round_servers_.may_have_part(member);
    const bool is_behind = is_added_elsewhere && first;
    if (is_added_elsewhere && !first) first = member;
    if (worker && worker->version != open_.attempt->version) {
      add(member, "contribution, for which it has not got the state yet");
      continue;
    }
    if (const auto queued = worker ? held_up(*worker) : std::nullopt) {
      const std::string what = "credit: " + std::to_string(queued->bytes) +
                               " bytes of its contribution wait here, from chunk " +
                               to_string(queued->chunk) + " of " + round + " on, ";
      const double since = seconds(clock_.now() - worker->pace.opened_at);  // its last chunk
      for (const std::uint32_t rank : queued->behind)
        views.push_back({.waiter = "worker " + worker->join.name,
                         .waits_for = members_.name_of(open_.attempt->members[rank]),
                         .what = what + "which are added behind those of that one",
                         .seconds = since});
      if (queued->behind.empty())
        views.push_back({.waiter = "worker " + worker->join.name,
                         .waits_for = "memory",
                         .what = what + "until slower workers have read the results before, or "
                                        "the journal's disk has taken what came",
                         .seconds = since});
      continue;
    }
    if (worker && worker->contribution.pending_end) {
      add(member, "its chunks on server" + round_servers_.names_of_missing_holders(*worker));
      continue;
    }
    const bool adds =
        worker && open_.among_peers && worker->contribution.computed == open_.attempt->key();
    std::string what = adds ? "addition with its peers" : "contribution";
    if (is_behind) what += ", which other servers add behind that of " + members_.name_of(*first);
    add(member, std::move(what));
  }
  if (!policy_.is_elastic()) return;
  const auto deadline = open_.machine.deadline();
  // Where all that have seats are done and had no samples, it waits for the others, too.
  if (done < needed || (open_.machine.missing().empty() && !deadline))
    for (const MemberId member : unseated()) {
      const auto worker = members_.find(member);
      const auto late = worker->late          ? worker->late->key.round
                        : worker->pace.behind ? worker->pace.behind->round
                                              : worker->pace.opened.round;
      add(member, "the end of its work on round " + to_string(late) + ", which closed without it");
    }
  if (deadline)
    views.push_back({.waiter = round,
                     .waits_for = "workers that are expected soon",
                     .what = "enough have contributed; the round closes in " +
                             std::to_string(static_cast<int>(
                                 1000 * std::max(0.0, seconds(*deadline - clock_.now())))) +
                             " ms at the latest",
                     .seconds = open});
}

/// Who is held back for slower members, whether or not a round is open.
void WaitReport::pace_waits(std::vector<WaitView>& views) const {
  for (const auto& [id, worker] : members_.present) {
    if (worker->pace.is_away || open_.machine.may_begin(id)) continue;
    const MemberId slowest = open_.machine.slowest();
    const Member* const member = members_.roster.find(slowest);
    if (member == nullptr) continue;
    const double silent = seconds(clock_.now() - member->heard);
    views.push_back(
        {.waiter = "worker " + worker->join.name,
         .waits_for = members_.name_of(slowest),
         .what = "it is " + std::to_string(open_.machine.steps_ahead(id)) +
                 " steps ahead of the slowest worker, and policy " + config_.policy + " allows " +
                 std::to_string(policy_.count) + "; that one was heard " +
                 std::to_string(static_cast<int>(1000 * silent)) + " ms ago",
         .seconds = seconds(clock_.now() - worker->contribution.at.value_or(phase_.since()))});
  }
}

/// The oldest request to a server; those with a deadline count once they are not young.
std::optional<ShardSession::Work> WaitReport::pending_request(const ShardSession& shard) const {
  for (const ShardSession::Work& work : shard.work)
    if (!work.has_deadline || clock_.now() - work.since >= Waits::kYoung) return work;
  return std::nullopt;
}

/// For which servers the round, or chunks that go to them, wait.
void WaitReport::shard_waits(std::vector<WaitView>& views) const {
  for (const auto& [name, shard] : shards_.present()) {
    const auto work = pending_request(*shard);
    if (!work) continue;
    const bool is_move = work->kind == proto::ServersKind::kLoad;
    const std::string what = is_move              ? "the values of chunks"
                             : work->has_deadline ? "its answer"
                                                  : "its part of the commit";
    const Duration silent = clock_.now() - shard->session->connection().last_received();
    std::string told = shard->report.busy.empty() ? what : what + ": " + shard->report.busy;
    told += ", last heard " + milliseconds(silent) + " ms ago";
    views.push_back({.waiter = is_move ? "chunks that move" : present_round(job_),
                     .waits_for = "server '" + name + "'",
                     .what = std::move(told),
                     .seconds = seconds(clock_.now() - work->since)});
  }
}

std::vector<WaitView> WaitReport::present_waits() const {
  std::vector<WaitView> views;
  const bool begins = gate_.is_beginning();  // then Guards say what is waited for
  if (phase_.is(Phase::kStandby) && !begins)
    views.push_back({.waiter = "this server",
                     .waits_for = gate_.leadership().leader.empty()
                                      ? "etcd"
                                      : "leader " + gate_.leadership().leader,
                     .what = phase_.reason(),
                     .seconds = seconds(clock_.now() - phase_.since())});
  else if (const auto why = gate_.held())
    views.push_back(
        {.waiter = "job",
         .waits_for = "etcd",
         .what = why->message() +
                 (gate_.leadership().trouble.empty() ? "" : ": " + gate_.leadership().trouble),
         .seconds = seconds(clock_.now() - open_.opened)});
  else if (!begins &&
           (phase_.is(Phase::kWaiting) || phase_.is(Phase::kInitializing) ||
            phase_.waits_for_operator()) &&
           !waits_.has("job", "journal"))
    views.push_back({.waiter = "job",
                     .waits_for = phase_.waits_for_operator() ? "operator"
                                  : use_.is_loop_writing      ? "checkpoint"
                                  : waits_for_servers()       ? "servers"
                                                              : "workers",
                     .what = phase_.reason(),
                     .seconds = seconds(clock_.now() - phase_.since())});
  if (open_.attempt && !open_.attempt->closed && open_.machine.is_open()) round_waits(views);
  if (open_.exchange_failures > 0)
    views.push_back({.waiter = present_round(job_),
                     .waits_for = "workers",
                     .what = "an attempt in which they reach each other, after " +
                             std::to_string(open_.exchange_failures) + " that failed",
                     .seconds = seconds(clock_.now() - open_.exchange_failed)});
  pace_waits(views);
  data_.epoch_waits(views);
  waits_.list(views);
  if (const auto journal = journal_.state();
      !journal.trouble.empty() && !journal.is_broken && !waits_.has(WaitCause::kJournal))
    views.push_back({.waiter = present_round(job_),
                     .waits_for = "journal",
                     .what = journal.trouble,
                     .seconds = seconds(clock_.now() - open_.opened)});
  shard_waits(views);
  if (upload_)
    views.push_back({.waiter = "server",
                     .waits_for = members_.name_of(upload_->from),
                     .what = "the state, piece " + std::to_string(upload_->received) + " of " +
                             std::to_string(upload_->pieces()),
                     .seconds = seconds(clock_.now() - upload_->begun)});
  rows_.waits(views);
  if (table_servers_) table_servers_->waits(views);
  for (const auto& [id, worker] : members_.present)
    for (const transport::Session::Wait& wait : worker->session->waits())
      views.push_back(
          {.waiter = "session of " + worker->join.name,
           .waits_for = worker->join.name,
           .what = wait.what + ", " + present_round(job_, worker->results.attempt.lock().get()),
           .seconds = seconds(clock_.now() - wait.since)});
  return views;
}

/// Tell every worker that waits for others why, as long as it does: who has done its part, has none
/// at the moment, or cannot go on with it.
void WaitReport::tell_waits(const std::vector<WaitView>& lasting) {
  constexpr std::chrono::seconds kEvery{2};
  for (const auto& [id, worker] : members_.present) {
    if (clock_.now() - worker->wait_reported < kEvery || worker->finish) continue;
    const bool is_for_copy = waits_.has("worker " + worker->join.name, kStateCopy);
    const bool has_part = open_.attempt && !open_.attempt->closed && open_.machine.is_missing(id);
    if (has_part && !is_for_copy && !worker->contribution.pending_end && !held_up(*worker))
      continue;
    proto::Wait wait;
    for (const WaitView& one : lasting) {
      const bool is_of_all = one.waiter.starts_with("round ") || one.waiter == "job" ||
                             one.waiter == "server" || one.waiter == "state" ||
                             one.waiter == "chunks that move";
      if (!is_of_all && one.waiter != "worker " + worker->join.name) continue;
      if (one.waits_for == worker->join.name) continue;
      wait.ms = std::max(wait.ms, static_cast<std::uint32_t>(1000 * std::min(one.seconds, 4e6)));
      wait.what += (wait.what.empty() ? "" : "; ") + one.waiter + " waits for " + one.waits_for +
                   ": " + one.what;
    }
    if (wait.what.empty()) continue;
    if (wait.what.size() > proto::kMaxTextBytes) wait.what.resize(proto::kMaxTextBytes);
    worker->wait_reported = clock_.now();
    if (is_for_copy) {
      worker->tasks->spawn(send_wait(worker, proto::encode(wait), clock_.now() + kEvery));
      continue;
    }
    worker->wait = std::move(wait);
    worker->wake.notify_all();
  }
}

/// An event for each wait that lasts: once, when it has.
Task<void> WaitReport::watch_waits() {
  constexpr double kLasting = 2;
  constexpr std::chrono::milliseconds kEvery{500};
  std::set<std::pair<std::string, std::string>> told;
  while (!stopping_.is_closing) {
    const bool goes_on = co_await sleep_until(clock_.now() + kEvery);  // lint-ok: a tick
    if (!goes_on) co_return;
    std::set<std::pair<std::string, std::string>> lasting;
    std::vector<WaitView> waits = present_waits();
    std::erase_if(waits, [](const WaitView& wait) { return wait.seconds < kLasting; });
    tell_waits(waits);
    for (const WaitView& wait : waits) {
      auto key = std::make_pair(wait.waiter, wait.waits_for);
      if (!told.contains(key) && !lasting.contains(key))
        events_.publish("wait.prolonged", {{"waiter", wait.waiter},
                                           {"waits_for", wait.waits_for},
                                           {"what", wait.what},
                                           {"seconds", wait.seconds}});
      lasting.insert(std::move(key));
    }
    told = std::move(lasting);
  }
}

/// The waits of `waits`, counted by cause.
std::array<std::size_t, kWaitCauses.size()> WaitReport::count_waits() const {
  std::array<std::size_t, kWaitCauses.size()> counts{};
  const auto count = [&](WaitCause cause) { ++counts[static_cast<std::size_t>(cause)]; };
  if (!gate_.is_beginning() && (phase_.is(Phase::kWaiting) || phase_.is(Phase::kInitializing)))
    count(WaitCause::kWorkers);
  if (phase_.waits_for_operator()) count(WaitCause::kOperator);
  if (open_.attempt && !open_.attempt->closed && open_.machine.is_open())
    for (const MemberId member : open_.machine.missing()) {
      const auto worker = members_.find(member);
      const bool adds =
          worker && open_.among_peers && worker->contribution.computed == open_.attempt->key();
      count(adds                         ? WaitCause::kAddition
            : worker && held_up(*worker) ? WaitCause::kCredit
                                         : WaitCause::kContribution);
    }
  const auto journal = journal_.state();
  if (!journal.trouble.empty() && !journal.is_broken && !waits_.has(WaitCause::kJournal))
    count(WaitCause::kJournal);
  waits_.count(count);
  for (const auto& [name, shard] : shards_.present())
    if (pending_request(*shard)) count(WaitCause::kServers);
  if (upload_) count(WaitCause::kState);
  for (const auto& [id, worker] : members_.present) {
    if (worker->pace.held_since || (!worker->pace.is_away && !open_.machine.may_begin(id)))
      count(WaitCause::kPace);
    if (!worker->session->waits().empty()) count(WaitCause::kCredit);
  }
  return counts;
}

}  // namespace centroid::server
