#include "server/shard/shard_workers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/log.h"
#include "common/codec/chunk_codec.h"

namespace centroid::server {

namespace {

/// Whether a worker returns by itself after this error, with the newest route.
bool may_come_back(const Error& why) {
  return why.code() == ErrorCode::kUnavailable || why.code() == ErrorCode::kAborted ||
         why.code() == ErrorCode::kCancelled;
}

std::string text(const proto::Push& push, const std::string& worker) {
  return "push of chunk " + to_string(push.chunk) + " by " + worker + " in round " +
         to_string(push.round);
}

}  // namespace

ShardWorkers::ShardWorkers(ShardContext& context, HostedModel& model)
    : context_(context), model_(model), fence_(context) {}

void ShardWorkers::set_tokens(proto::Tokens tokens) {
  tokens_.clear();
  for (proto::Token& one : tokens.tokens)
    tokens_.push_back(
        {std::move(one.id), std::move(one.salt), std::move(one.hash), one.expires_unix_seconds});
}

bool ShardWorkers::accepts(std::string_view secret) const {
  const bool is_known = opens(tokens_, secret, context_.clock.unix_seconds());
  if (!is_known) context_.probe.token_refused();
  return is_known;
}

void ShardWorkers::forget(const proto::Forget& gone) {
  fence_.remove(gone.member);
  model_.drop(gone.member);
  away_.erase(gone.member);
  const auto found = workers_.find(gone.member);
  if (found == workers_.end()) return;
  const Error fenced(ErrorCode::kAborted, "fenced: " + gone.reason + "; join again");
  const auto worker = found->second;
  workers_.erase(found);
  worker->tasks->spawn(worker->session->goodbye(fenced));
}

void ShardWorkers::close_all(const Error& why) {
  for (const auto& [id, worker] : workers_) worker->session->close(why);
  workers_.clear();
  away_.clear();
  fence_.reset();
  tokens_.clear();
}

Task<Result<std::shared_ptr<ShardWorkers::Worker>>> ShardWorkers::enter(transport::Session& session,
                                                                        TaskGroup& tasks,
                                                                        const proto::Enter& enter) {
  const Status known = co_await fence_.await_member(enter);
  auto entered =
      known.ok() ? admit(session, enter) : Result<std::shared_ptr<Worker>>(known.error());
  if (!entered.ok()) {
    session_ended(enter, entered.error());
    if (const auto why = context_.strangers.line(entered.error()))
      log::warn("worker.refused", {{"peer", session.peer().address}, {"why", *why}});
    co_return entered;
  }
  entered.value()->tasks = &tasks;
  tasks.spawn(outbox(entered.value()));
  co_return entered;
}

Result<std::shared_ptr<ShardWorkers::Worker>> ShardWorkers::admit(transport::Session& session,
                                                                  const proto::Enter& enter) {
  const std::string refusal =
      "worker '" + enter.name + "' is refused by server '" + context_.options.name;
  const std::uint64_t route = model_.chunks().route().version;
  if (!model_.chunks().has_model() || route == 0)
    return Error(ErrorCode::kUnavailable, refusal + "': it has no chunks yet");
  if (enter.route != route)
    return Error(ErrorCode::kAborted, refusal + "': it comes by route " +
                                          std::to_string(enter.route) + ", the present one is " +
                                          std::to_string(route) +
                                          ": the leader tells it (join again)");
  auto worker = std::make_shared<Worker>(context_.executor);
  CENTROID_ASSIGN(worker->codec, make_codec(enter.codec));
  worker->session = &session;
  worker->enter = enter;
  worker->lane = trace::Lane(worker->enter.name);
  if (const auto old = workers_.find(worker->enter.member); old != workers_.end())
    old->second->session->close(
        Error(ErrorCode::kFailedPrecondition, "superseded: this worker entered again"));
  workers_[worker->enter.member] = worker;
  away_.erase(worker->enter.member);
  if (const auto address = context_.strangers.arrival_line(session.peer().address))
    log::info("worker.entered", {{"worker", worker->enter.name},
                                 {"member", worker->enter.member.value},
                                 {"address", *address}});
  return worker;
}

/// Check a Push. The error for a chunk on another server sends the worker to the leader, which has
/// the route.
Status ShardWorkers::check_push(const Worker& worker, const proto::Push& push,
                                std::uint64_t bytes) const {
  const std::string where = text(push, worker.enter.name);
  const ShardChunks& chunks = model_.chunks();
  if (!chunks.has_model() || push.chunk.value >= chunks.plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument, where + ": there is no such chunk");
  const proto::Route& route = chunks.route();
  if (!chunks.shard().is_mine(push.chunk))
    return Error(ErrorCode::kAborted,
                 where + ": by route " + std::to_string(route.version) + " it lies on server '" +
                     route.servers[route.owners[push.chunk.value]].name + "', not on '" +
                     context_.options.name + "': the leader tells the route (join again)");
  const Chunk& chunk = chunks.plan().chunk(push.chunk);
  const Status fits = check_length(codec_of(*worker.codec, chunks.plan(), chunk), chunk, bytes);
  return fits.ok() ? fits : fits.error().with_context(where);
}

Task<Status> ShardWorkers::take_push(transport::Session& session, std::shared_ptr<Worker> worker,
                                     proto::Push push, std::uint64_t bytes) {
  proto::ContributionKey key;
  key.member = worker->enter.member;
  key.generation = push.generation;
  key.round = push.round;
  key.attempt = push.attempt;
  if (!fence_.is_opened(key) || !fence_.is_member(worker->enter)) {
    CENTROID_CO_TRY(co_await fence_.await_opened(worker->enter, key));
  }
  CENTROID_CO_TRY(check_push(*worker, push, bytes));
  const ShardChunks& chunks = model_.chunks();
  // A chunk of another fragment was in flight when its round closed without it.
  const bool is_old = !chunks.shard().has_turn(chunks.plan().chunk(push.chunk));
  context_.probe.payload_received(bytes);
  if (is_old || !model_.expect(key, worker->codec)) {
    context_.probe.stale_frame();
    CENTROID_CO_TRY(co_await session.skip_payload());
    co_return Status();
  }
  Buffer buffer(bytes);
  const TimePoint arrived = context_.clock.now();
  CENTROID_CO_TRY(co_await session.read_payload(buffer.bytes().first(bytes)));
  context_.probe.receive().ended(worker->lane, arrived, context_.clock.now(), push.round.value);
  if (!model_.is_expected(key)) {  // it was dropped while the payload arrived
    session.release_credit(bytes);
    context_.probe.stale_frame();
    co_return Status();
  }
  const std::string where =
      text(push, worker->enter.name) + " on server '" + context_.options.name + "'";
  if (chunks.model().refuses_nonfinite) {
    const Codec& codec = codec_of(*worker->codec, chunks.plan(), chunks.plan().chunk(push.chunk));
    const Status is_sound = check_numbers(codec, buffer.bytes().first(bytes));
    if (!is_sound.ok()) co_return is_sound.error().with_context(where);
  }
  worker->unreleased += bytes;
  const TimePoint begin = context_.clock.now();
  const auto whole = model_.take(key, worker->codec, push, std::move(buffer), bytes);
  if (!chunks.model().is_elastic && chunks.aggregate().is_mean())
    context_.probe.aggregate().ended(worker->lane, begin, context_.clock.now(), push.round.value);
  if (!whole.ok()) co_return whole.error().with_context(where);
  if (*whole) report_whole(**whole);
  co_return Status();
}

void ShardWorkers::release(MemberId member, std::size_t bytes) {
  const auto found = workers_.find(member);
  if (found == workers_.end()) return;
  Worker& worker = *found->second;
  bytes = std::min(bytes, worker.unreleased);  // credit of an earlier session is not returned
  worker.unreleased -= bytes;
  worker.session->release_credit(bytes);
}

void ShardWorkers::report_whole(proto::Whole whole) {
  if (!context_.leader.is_open()) return;
  if (std::isnan(whole.squares))  // NaN cannot be encoded
    whole.squares = std::numeric_limits<double>::infinity();
  context_.leader.tasks().spawn(send_whole(context_.leader.session(), whole));
}

Task<void> ShardWorkers::send_whole(transport::Session& leader, proto::Whole whole) {
  const auto head = proto::encode(whole);
  const auto kind = static_cast<std::uint16_t>(proto::ServersKind::kWhole);
  (void)co_await leader.send(kind, head, Bytes(), TimePoint::max());
}

void ShardWorkers::left(const std::shared_ptr<Worker>& worker, const Error& why) {
  if (const auto text = context_.strangers.arrival_line(why.to_string()))
    log::info("worker.left", {{"worker", worker->enter.name}, {"why", *text}});
  const auto traffic = worker->session->connection().traffic();
  traffic_.bytes_in += traffic.bytes_in;
  traffic_.bytes_out += traffic.bytes_out;
  const auto found = workers_.find(worker->enter.member);
  if (found != workers_.end() && found->second == worker) {
    workers_.erase(found);
    session_ended(worker->enter, why);
  }
  worker->wake.notify_all();
}

/// A worker without a session here may still send heartbeats to the leader, so the leader must be
/// notified: at once if the worker was refused, after a lease if it may return.
void ShardWorkers::session_ended(const proto::Enter& enter, const Error& why) {
  LeaderSession& leader = context_.leader;
  if (!leader.is_open() || !leader.is_joined() || workers_.contains(enter.member)) return;
  if (!fence_.is_member(enter)) return;  // the leader has removed it, or never named it
  auto refused = std::make_shared<proto::Refused>();
  refused->member = enter.member;
  refused->code = static_cast<std::uint8_t>(why.code());
  refused->why = why.message();
  if (!may_come_back(why)) {
    leader.tasks().spawn(send_refused(leader.session(), std::move(refused)));
    return;
  }
  refused->why = "worker '" + enter.name + "' has had no session here for " +
                 std::to_string(leader.terms().lease_ms) + " ms: " + why.message();
  away_.insert(enter.member);
  leader.tasks().spawn(refuse_if_away(leader.session(), std::move(refused)));
}

Task<void> ShardWorkers::send_refused(transport::Session& leader,
                                      std::shared_ptr<const proto::Refused> refused) {
  const auto head = proto::encode(*refused);
  const auto kind = static_cast<std::uint16_t>(proto::ServersKind::kRefused);
  (void)co_await leader.send(kind, head, Bytes(), TimePoint::max());
}

Task<void> ShardWorkers::refuse_if_away(transport::Session& leader,
                                        std::shared_ptr<const proto::Refused> refused) {
  const std::chrono::milliseconds lease(context_.leader.terms().lease_ms);
  if (!co_await sleep_until(context_.clock.now() + lease)) co_return;  // lint-ok: a deadline
  if (away_.erase(refused->member) == 0) co_return;  // it returned, or the leader knows
  log::warn("worker.disconnected", {{"member", refused->member.value}, {"why", refused->why}});
  co_await send_refused(leader, std::move(refused));
}

void ShardWorkers::send(const std::vector<MemberId>& members, const ShardResult& result) {
  for (const MemberId member : members) {
    const auto found = workers_.find(member);
    if (found == workers_.end()) continue;
    found->second->outgoing.push_back(result);
    found->second->wake.notify_all();
  }
}

/// Sends the queued results to one worker, in order.
Task<void> ShardWorkers::outbox(std::shared_ptr<Worker> worker) {
  transport::Session& session = *worker->session;
  const trace::Lane lane(worker->enter.name + " out");
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kResult);
  const auto has_work = [&] { return !worker->outgoing.empty() || session.is_closed(); };
  for (;;) {
    const bool goes_on = co_await until(worker->wake, has_work);
    if (!goes_on || session.is_closed()) co_return;
    const ShardResult result = std::move(worker->outgoing.front());
    worker->outgoing.pop_front();
    const auto head = proto::encode(result.head);
    const TimePoint begin = context_.clock.now();
    const TimePoint limit = begin + context_.options.stall_timeout;
    const Status sent = co_await session.send(kind, head, *result.values, limit, result.crc);
    if (!sent.ok()) {
      session.close(sent.error());
      co_return;
    }
    context_.probe.send().ended(lane, begin, context_.clock.now(), result.head.round.value);
    context_.probe.payload_sent(result.values->size());
  }
}

void ShardWorkers::add_to(proto::ServerReport& report) const {
  report.workers = static_cast<std::uint32_t>(workers_.size());
  report.bytes_in = traffic_.bytes_in;
  report.bytes_out = traffic_.bytes_out;
  for (const auto& [id, worker] : workers_) {
    const auto now = worker->session->connection().traffic();
    report.bytes_in += now.bytes_in;
    report.bytes_out += now.bytes_out;
  }
}

}  // namespace centroid::server
