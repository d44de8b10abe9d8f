#include "server/service/server_changes.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/shard/placement.h"

namespace centroid::server {

using proto::ServersKind;

/// Between rounds: the chunks lie where they are to lie, or a step is made towards it. False: look
/// again, for something has changed or is still missing.
Task<Result<bool>> ServerChanges::resolve_servers() {
  if (shards_.present().empty() && !spread_.has_others() && config_.servers <= 1 &&
      !spread_.lost_since)
    co_return true;
  if (spread_.lost_since) co_return co_await recover_servers();
  const Status copied = co_await moves_.finish_moves();
  if (!copied.ok()) {
    attempts_.give_up_merge(copied.error());
    co_return false;
  }
  for (std::size_t i = 1; i < spread_.present.size(); ++i) {
    if (!spread_.present[i]->is_gone()) continue;
    const bool has_chunks =
        std::ranges::find(spread_.route.owners, i) != spread_.route.owners.end();
    spread_.lost = spread_.present[i]->name;
    if (has_chunks) {
      attempts_.lose_server();
      co_return false;
    }
    CENTROID_CO_TRY(co_await servers_.drop_server(i));
    co_return false;
  }
  const std::size_t here = shards_.present().size() + 1;
  if (here < config_.servers && !spread_.were_here) {
    phase_.set(Phase::kWaiting, std::to_string(here) + " of " + std::to_string(config_.servers) +
                                    " servers are here (servers)");
    co_await waits_.next_change();
    co_return false;
  }
  spread_.were_here = true;
  for (const auto& [name, shard] : std::map(shards_.present())) {
    if (shard->is_draining || shard->is_gone() ||
        std::ranges::find(spread_.present, shard) != spread_.present.end())
      continue;
    const auto what = [name] { return "server '" + name + "' takes the model's terms and route"; };
    const auto waits = waits_.begin(WaitCause::kServers, present_round(job_), "servers", what);
    const Status added = co_await servers_.add_server(shard);
    if (!added.ok()) {
      log::warn("server.add_failed", {{"server", name}, {"why", added.error()}});
      co_return false;  // its session has ended, or ends now
    }
    if (servers_.has_lost_server()) co_return false;
  }
  bool moves = spread_.has_others() && spread_.target != spread_.route.owners;
  if (moves) moves = co_await may_move();
  if (moves) {
    const bool has_room =
        co_await has_room_to_move(spread_, shards_, clock_.now() + kMemoryPlanTimeout);
    const bool changes = spread_.target == spread_.route.owners || servers_.has_lost_server();
    if (!has_room && !changes)  // one does not answer, or its session has ended
      co_await waits_.next_change(clock_.now() + kRetryInterval);
    if (!has_room) co_return false;
    const Status moved = co_await moves_.move_some(job_.trained_rounds == 0);
    if (!moved.ok()) log::warn("chunks.move_failed", {{"why", moved.error()}});
    if (!moved.ok() || job_.trained_rounds == 0) co_return false;
  }
  if (!spread_.moving.empty()) co_return true;  // it is drained when what it gives is copied
  for (std::size_t i = 1; i < spread_.present.size(); ++i) {
    if (!spread_.present[i]->is_draining ||
        std::ranges::find(spread_.route.owners, i) != spread_.route.owners.end())
      continue;
    const auto drained = spread_.present[i];
    const Status dropped = co_await servers_.drop_server(i);
    if (!servers_.holds_rows(drained->name))
      shards_.dismiss(*drained, Error(ErrorCode::kCancelled, "drained: its chunks have moved"));
    CENTROID_CO_TRY(dropped);
    // Rounds behind the newest checkpoint are in its journal, which goes with it.
    if (journal_.is_on() && !use_.is_writing && checkpointer_.needs_checkpoint())
      tasks_.spawn(checkpointer_.checkpoint_in_background(false));
    co_return false;
  }
  co_return true;
}

/// A checkpoint reads the chunks where they are. What is late lies where its chunks were.
Task<bool> ServerChanges::may_move() {
  if (open_.machine.has_late()) co_return false;
  const auto is_read = [this] { return !use_.is_writing && !spread_.frozen; };
  const auto has_turn = [this, is_read] { return is_read() || spread_.freezes > 0; };
  while (!is_read()) {
    (void)disk_.hurried();
    if (spread_.freezes > 0) (void)co_await checkpointer_.freeze_for_checkpoint();
    if (job_.trained_rounds > 0) co_return false;  // rounds go on, and so does this when it is over
    BlockedOn on{WaitCause::kCheckpoint, present_round(job_), "checkpoint",
                 [] { return "it reads the chunks that are to move where they are"; }};
    const bool goes_on = co_await until(has_turn, std::move(on));
    if (!goes_on) co_return false;
  }
  co_return true;
}

/// No round holds up the chunks that a server gives away, and none waits for them; else wait for
/// something to change.
Task<Status> ServerChanges::drain_while_paused() {
  const auto drains = [](const auto& shard) {
    return shard && !shard->is_gone() && shard->is_draining;
  };
  if (std::ranges::any_of(spread_.present, drains) && !replay_ && !spread_.lost_since &&
      !servers_.has_lost_server()) {
    CENTROID_CO_ASSIGN(const bool is_settled, co_await resolve_servers());
    if (!is_settled) co_return Status();
  }
  co_await waits_.next_change();
  co_return Status();
}

/// Wait for the lost server, for so long as the setting says; then place all chunks anew from the
/// newest checkpoint, or from the beginning without one.
Task<Result<bool>> ServerChanges::recover_servers() {
  const TimePoint limit = *spread_.lost_since + config_.timeouts.servers;
  if (!shards_.find(spread_.lost) && clock_.now() < limit) {
    phase_.set(Phase::kWaiting, "server '" + spread_.lost + "' is gone with its chunks; after " +
                                    std::to_string(config_.timeouts.servers.count()) +
                                    " ms (servers_wait) the others take them, from the newest "
                                    "checkpoint");
    co_await waits_.next_change(limit);
    co_return false;
  }
  co_await journal_.drop_attempt();
  co_await journal_.stop(disk_.executor);  // read, it begins anew behind the rounds it has
  // From the end of this wait on nothing is awaited before the servers are forgotten.
  const auto is_unused = [this] {
    return members_.present.empty() && (!open_.attempt || open_.attempt.use_count() == 1) &&
           !use_.is_writing && spread_.copiers == 0;
  };
  BlockedOn on{WaitCause::kServers, "job", "workers", [this] {
                 return "server '" + spread_.lost +
                        "' is gone with its chunks: the end of the workers' connections, and of "
                        "what reads the state that is given up";
               }};
  const bool goes_on = co_await until(is_unused, std::move(on));
  if (!goes_on) co_return false;
  const Version lost = job_.version();
  const std::uint64_t lost_round = job_.round.value - 1;
  open_ = OpenRound(policy_);
  const Raised loading(use_.is_loading, changed_);  // what is left of the store is of no version
  servers_.forget_servers();
  job_.drop_model();  // chunks of it are lost
  CENTROID_CO_ASSIGN(const bool has_checkpoint, co_await loader_.has_checkpoint());
  if (has_checkpoint) {
    CENTROID_CO_ASSIGN(JobState newest, co_await loader_.load_checkpoint());
    start_.go_on_from(std::move(newest));
    CENTROID_CO_TRY(co_await start_.begin_replay());
  } else if (config_.init != "first-worker") {
    CENTROID_CO_ASSIGN(JobState initial, co_await loader_.load_initial_file());
    start_.go_on_from(std::move(initial));
  } else {
    start_.go_on_from(JobState());
  }
  job_.gather_again();
  log::warn("servers.state_restored", {{"lost_version", lost.value},
                                       {"version", job_.shard ? job_.store().version().value : 0},
                                       {"round", job_.round.value},
                                       {"servers", shards_.present().size() + 1}});
  if (job_.round.value == 1 && lost_round > 0)
    tell(events_, log::Level::kWarn, "job.restarted",
         {{"lost_round", lost_round},
          {"why", "a server was lost with its chunks, and there is no checkpoint"}});
  co_return false;
}

Result<proto::ServerTerms> ServerChanges::admit_server(transport::Session& session,
                                                       TaskGroup& tasks,
                                                       const proto::ServerJoin& join,
                                                       std::shared_ptr<ShardSession>& shard) {
  CENTROID_TRY(gate_.check_lead());
  const std::string refusal = "server '" + join.name + "' is refused: ";
  if (const std::string why = why_one_server(config_); !why.empty())
    return Error(ErrorCode::kFailedPrecondition, refusal + why);
  if (job_.shard) {
    const Status fits = check_chunk_count(config_, job_.store().plan().chunks().size());
    if (!fits.ok()) return Error(ErrorCode::kFailedPrecondition, refusal + fits.error().message());
  }
  if (join.name == config_.leader_name())
    return Error(ErrorCode::kFailedPrecondition,
                 refusal + "that is the leader's name: give each server its own --name");
  const bool is_awaited = table_servers_ && table_servers_->awaits(join.name);
  const bool has_rows =
      table_servers_ && table_servers_->serves(join.name);  // past the model's goal
  if (!is_awaited && !has_rows && (phase_.is(Phase::kFinished) || phase_.is(Phase::kHalted)))
    return Error(ErrorCode::kCancelled, "the job is over: " + phase_.reason());
  if (!is_awaited && stopping_.is_requested)
    return Error(ErrorCode::kUnavailable, "the leader is stopping: " + stopping_.reason);
  if (!join.run_id.empty() && join.run_id != job_.run_id)
    return Error(ErrorCode::kFailedPrecondition,
                 refusal + "it served run '" + join.run_id + "', this one is '" + job_.run_id +
                     "': start it anew to have it serve another run");
  if (shards_.present().size() + 2 > kMaxServers)
    return Error(ErrorCode::kResourceExhausted,
                 refusal + "a model lies on at most " + std::to_string(kMaxServers) + " servers");
  CENTROID_ASSIGN(shard, shards_.join(session, tasks, join));
  proto::ServerTerms terms;
  terms.run_id = job_.run_id;
  terms.lease_ms = static_cast<std::uint32_t>(config_.timeouts.lease.count());
  terms.credit_bytes = config_.transfer.credit_bytes;
  terms.term = gate_.leadership().term;
  return terms;
}

/// Nothing more of a worker comes to one of the servers: nobody is to wait for its contribution,
/// whatever it says of itself here.
void ServerChanges::refused_elsewhere(const ShardSession& server, const proto::Refused& refused) {
  const auto worker = members_.find(refused.member);
  const auto is_it = [&](const auto& one) { return one.get() == &server; };
  if (!worker || std::ranges::none_of(spread_.present, is_it)) return;
  const Error why(static_cast<ErrorCode>(refused.code),
                  "server '" + server.name + "': " + refused.why);
  if (members_.roster.lost(worker->id, why.to_string())) {
    tell(events_, log::Level::kWarn, "member.lost",
         {{"worker", worker->join.name}, {"member", worker->id.value}, {"why", why}});
    probe_.member_dead();
  }
  control_.member_gone(worker->id, why);
}

}  // namespace centroid::server
