#include "server/shard/shard_group.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/proto/about.h"

namespace centroid::server {

using proto::ServersKind;
using transport::Reply;

namespace {

std::string milliseconds(Duration d) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(d).count()) + " ms";
}

bool may_take_long(ServersKind kind) {
  return kind == ServersKind::kMerge || kind == ServersKind::kStep ||
         kind == ServersKind::kCommit || kind == ServersKind::kLoad;
}

}  // namespace

ShardGroup::ShardGroup(Executor executor, const Clock& clock,
                       std::chrono::milliseconds reply_timeout, Hooks hooks)
    : executor_(std::move(executor)),
      clock_(clock),
      reply_timeout_(reply_timeout),
      hooks_(std::move(hooks)) {}

Result<std::shared_ptr<ShardSession>> ShardGroup::join(transport::Session& session,
                                                       TaskGroup& tasks,
                                                       const proto::ServerJoin& join) {
  if (join.name.empty() || join.endpoint.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "a server that joins needs a name (--name) and an endpoint for workers "
                 "(--advertise)");
  if (const auto old = find(join.name)) {
    const std::string why = "superseded: another server '" + join.name + "' joined from " +
                            session.peer().address + "; give each its own --name";
    const Error superseded(ErrorCode::kFailedPrecondition, why);
    dismiss(*old, superseded);
    left(old, superseded);
  }
  auto shard = std::make_shared<ShardSession>();
  shard->name = join.name;
  shard->endpoint = join.endpoint;
  shard->address = session.peer().address;
  shard->session = &session;
  shard->tasks = &tasks;
  shard->joined_unix_seconds = clock_.unix_seconds();
  present_[shard->name] = shard;
  log::info("server.joined",
            {{"server", shard->name}, {"endpoint", shard->endpoint}, {"address", shard->address}});
  hooks_.changed();
  return shard;
}

Task<Status> ShardGroup::on_frame(transport::Session& session, transport::InFrame frame,
                                  std::shared_ptr<ShardSession> shard) {
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat)) {
    if (!frame.head.empty()) {
      CENTROID_CO_ASSIGN(const auto beat, proto::decode<proto::Beat>(frame.head));
      shard->clock.heard(beat.unix_seconds, clock_.unix_seconds());
      shard->version = beat.version;
    }
    const std::uint16_t answer = frame.header.kind;
    co_return co_await session.send(answer, Bytes(), Bytes(), TimePoint::max());
  }
  if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kLeave)) {
    (void)co_await session.respond(frame.header, Bytes());
    if (!shard->is_gone()) hooks_.leaving(*shard);
    co_return Status();
  }
  if (frame.header.kind == static_cast<std::uint16_t>(ServersKind::kServerReport)) {
    CENTROID_CO_ASSIGN(auto report, proto::decode<proto::ServerReport>(frame.head));
    if (report.progress != shard->report.progress) shard->moved = clock_.now();
    shard->report = std::move(report);
    if (!shard->is_gone()) hooks_.reported(*shard);
    co_return Status();
  }
  if (frame.header.kind == static_cast<std::uint16_t>(ServersKind::kRefused)) {
    CENTROID_CO_ASSIGN(const auto refused, proto::decode<proto::Refused>(frame.head));
    if (!shard->is_gone()) hooks_.refused(*shard, refused);
    co_return Status();
  }
  if (frame.header.kind != static_cast<std::uint16_t>(ServersKind::kWhole))
    co_return Error(ErrorCode::kInvalidArgument,
                    "unexpected message kind " + std::to_string(frame.header.kind) +
                        " from server '" + shard->name + "' (docs/reference/wire.md)");
  CENTROID_CO_ASSIGN(const auto whole, proto::decode<proto::Whole>(frame.head));
  if (!shard->is_gone()) hooks_.whole(*shard, whole);
  co_return Status();
}

void ShardGroup::left(const std::shared_ptr<ShardSession>& shard, const Error& why) {
  if (shard->is_gone()) return;
  shard->session = nullptr;
  shard->tasks = nullptr;
  if (const auto found = present_.find(shard->name);
      found != present_.end() && found->second == shard)
    present_.erase(found);
  if (why.code() == ErrorCode::kCancelled)
    log::info("server.left", {{"server", shard->name}, {"why", why}});
  else
    log::warn("server.lost", {{"server", shard->name}, {"why", why}});
  hooks_.gone(*shard);
  hooks_.changed();
}

void ShardGroup::expire(std::chrono::milliseconds lease) {
  const TimePoint now = clock_.now();
  standstill_.look(now, lease / 2);
  for (const auto& [name, shard] : std::map(present_)) {
    const auto silent = now - standstill_.since(shard->session->connection().last_received());
    if (silent > lease) {
      shard->session->close(Error(ErrorCode::kUnavailable, "server '" + name + "' was silent for " +
                                                               milliseconds(silent) + " (lease)"));
      continue;
    }
    const Duration patience = std::max<Duration>(reply_timeout_, lease);  // it reports each lease
    for (const ShardSession::Work& work : shard->work) {
      const Duration idle = now - standstill_.since(std::max(work.since, shard->moved));
      if (work.has_deadline || idle <= patience) continue;
      give_up(shard, Error(ErrorCode::kDeadlineExceeded,
                           "server '" + name + "' has not answered request " +
                               std::to_string(static_cast<int>(work.kind)) + " for " +
                               milliseconds(now - work.since) + " and told of no progress for " +
                               milliseconds(idle) +
                               (shard->report.busy.empty() ? "" : ": " + shard->report.busy)));
      break;
    }
  }
}

void ShardGroup::dismiss(ShardSession& shard, const Error& why) {
  if (!shard.is_gone()) shard.tasks->spawn(shard.session->goodbye(why));
}

Task<void> ShardGroup::dismiss_all(Error why) {
  TaskGroup group(executor_);
  for (const auto& [name, shard] : present_) group.spawn(shard->session->goodbye(why));
  co_await group.join();
}

std::shared_ptr<ShardSession> ShardGroup::find(const std::string& name) const {
  const auto found = present_.find(name);
  return found == present_.end() ? nullptr : found->second;
}

std::uint32_t ShardGroup::count_of_staying() const {
  const auto stays = [](const auto& one) { return !one.second->is_draining; };
  return 1 + static_cast<std::uint32_t>(std::ranges::count_if(present_, stays));
}

Task<Result<Reply>> ShardGroup::ask(std::shared_ptr<ShardSession> shard, ServersKind kind,
                                    std::vector<std::byte> head, Bytes payload,
                                    std::optional<TimePoint> limit) {
  const std::string where = "server '" + shard->name + "'";
  if (shard->is_gone()) co_return Error(ErrorCode::kUnavailable, where + " is gone");
  TimePoint until = limit.value_or(clock_.now() + reply_timeout_);
  const bool has_deadline = limit || !may_take_long(kind);
  if (!has_deadline) until = TimePoint::max();  // `expire` checks its progress
  const ShardSession::Work begun{kind, clock_.now(), has_deadline};
  const auto work = shard->work.insert(shard->work.end(), begun);
  auto reply =
      co_await shard->session->request(static_cast<std::uint16_t>(kind), head, payload, until);
  shard->work.erase(work);
  if (reply.ok()) co_return std::move(reply).value();
  const Error why = reply.error().with_context(where);
  if (limit) co_return why;
  const bool may_refuse =
      kind == ServersKind::kFetch || kind == ServersKind::kFreeze || kind == ServersKind::kRecall;
  if (!shard->is_gone() && (!may_refuse || why.code() == ErrorCode::kDeadlineExceeded)) {
    give_up(shard, why);
  }
  co_return why;
}

void ShardGroup::give_up(const std::shared_ptr<ShardSession>& shard, const Error& why) {
  if (shard->is_gone()) return;
  transport::Session* const session = shard->session;
  left(shard, why);
  session->close(why);
}

Task<Result<std::vector<Reply>>> ShardGroup::ask_all(
    std::vector<std::shared_ptr<ShardSession>> shards, ServersKind kind,
    std::vector<std::byte> head, std::optional<TimePoint> limit) {
  std::vector<std::optional<Result<Reply>>> answers(shards.size());
  auto one = [](ShardGroup* self, std::shared_ptr<ShardSession> shard, ServersKind what,
                std::vector<std::byte> text, std::optional<TimePoint> until,
                std::optional<Result<Reply>>* out) -> Task<void> {
    out->emplace(co_await self->ask(std::move(shard), what, std::move(text), Bytes(), until));
  };
  TaskGroup group(executor_);
  for (std::size_t i = 0; i < shards.size(); ++i)
    group.spawn(one(this, shards[i], kind, head, limit, &answers[i]));
  co_await group.join();
  std::vector<Reply> replies;
  for (auto& answer : answers) {
    if (!answer) co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (!answer->ok()) co_return answer->error();
    replies.push_back(std::move(*answer).value());
  }
  co_return replies;
}

void ShardGroup::tell_opened(const proto::Opened& opened) {
  if (present_.empty()) return;
  const auto head = proto::encode(opened);
  for (const auto& [name, shard] : present_) {
    if (shard->opened == head) continue;
    shard->opened = head;
    if (!std::exchange(shard->is_being_sent, true)) shard->tasks->spawn(send_opened(shard));
  }
}

/// One task per server, so that messages stay in order.
Task<void> ShardGroup::send_opened(std::shared_ptr<ShardSession> shard) {
  const auto kind = static_cast<std::uint16_t>(ServersKind::kOpened);
  std::vector<std::byte> head;
  while (!shard->is_gone() && head != shard->opened) {
    head = shard->opened;
    const Status sent = co_await shard->session->send(kind, head, Bytes(), TimePoint::max());
    if (!sent.ok()) co_return;  // its session ends
  }
  shard->is_being_sent = false;
}

Task<Status> ShardGroup::plan_memory(Wanted wanted, TimePoint limit) {
  struct Agreed {
    std::shared_ptr<ShardSession> shard;
    proto::MemoryPlan before, now;
  };
  std::vector<Agreed> agreed;
  while (true) {
    Agreed next;
    for (const auto& [name, shard] : present_) {
      // Skip a server whose session has ended: its chunks will move to other servers.
      if (shard->memory_plan.workers == 0 || shard->session->is_closed()) continue;
      const auto need = wanted(*shard);
      if (!need) continue;
      if (need->workers <= shard->memory_plan.workers &&
          need->servers >= shard->memory_plan.servers)
        continue;
      next.shard = shard, next.before = shard->memory_plan, next.now = *need;
      break;
    }
    if (!next.shard) co_return Status();
    auto head = proto::encode(next.now);
    const auto told =
        co_await ask(next.shard, ServersKind::kMemoryPlan, std::move(head), Bytes(), limit);
    if (next.shard->is_gone() || next.shard->session->is_closed()) continue;
    if (told.ok()) {
      if (next.shard->memory_plan != next.before) continue;  // changed concurrently: check again
      next.shard->memory_plan = next.now;
      agreed.push_back(std::move(next));
      continue;
    }
    for (const Agreed& one : agreed) {
      if (one.shard->is_gone() || one.shard->session->is_closed() ||
          one.shard->memory_plan != one.now)
        continue;
      auto back = proto::encode(one.before);
      const auto undone =
          co_await ask(one.shard, ServersKind::kMemoryPlan, std::move(back), Bytes(), limit);
      if (undone.ok() && one.shard->memory_plan == one.now) one.shard->memory_plan = one.before;
    }
    co_return told.error();
  }
}

void ShardGroup::forget(MemberId member, const std::string& reason) {
  proto::Forget gone;
  gone.member = member;
  gone.reason = reason;
  auto send = [](transport::Session* session, proto::Forget what) -> Task<void> {
    const auto head = proto::encode(what);
    const auto kind = static_cast<std::uint16_t>(ServersKind::kForget);
    (void)co_await session->send(kind, head, Bytes(), TimePoint::max());
  };
  for (const auto& [name, shard] : present_)
    if (shard->has_model) shard->tasks->spawn(send(shard->session, gone));
}

}  // namespace centroid::server
