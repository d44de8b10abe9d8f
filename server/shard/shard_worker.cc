#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "server/shard/shard.h"

/// What workers bring to a shard server, and the results that they get.
namespace centroid::server {

namespace {
/// After these a worker comes back by itself, by the route that is valid then.
bool may_come_back(const Error& why) {
  return why.code() == ErrorCode::kUnavailable || why.code() == ErrorCode::kAborted ||
         why.code() == ErrorCode::kCancelled;
}

/// A worker hears from the leader by another connection than this server does: what it says may
/// come first. So long it may enter, and so long is below what it waits for the answer.
constexpr std::chrono::milliseconds kLongestEnter{5000};

std::uint32_t crc_of(const std::string& name) { return crc32c(std::as_bytes(std::span(name))); }

std::string text(Generation generation, Round round, std::uint32_t attempt) {
  return "generation " + to_string(generation) + ", round " + to_string(round) + ", attempt " +
         std::to_string(attempt);
}
}  // namespace

void Shard::take_opened(proto::Opened told) {
  if (told.members != opened_.members) {  // with each attempt it is told, and they seldom change
    members_.clear();
    for (const proto::OpenedMember& one : told.members) members_[one.member] = one.name_crc;
    if (!told.members.empty())
      newest_member_ = std::max(newest_member_, told.members.back().member);
  }
  opened_ = std::move(told);
  changed_.notify_all();
}

bool Shard::is_member(const proto::Enter& enter) const {
  const auto found = members_.find(enter.member);
  return found != members_.end() && found->second == crc_of(enter.name);
}

/// As the leader's: what is older than the newest attempt was on its way when its own closed.
bool Shard::is_opened(const proto::ContributionKey& key) const {
  return key.generation <= opened_.generation &&
         (key.round < opened_.round ||
          (key.round == opened_.round && key.attempt <= opened_.attempt));
}

/// Who was a member and is none is refused at once; one that the leader has not named yet waits for
/// its word. fails aborted
Task<Status> Shard::await_member(const proto::Enter& enter) {
  const TimePoint limit = clock_.now() + std::min(kLongestEnter, options_.stall_timeout);
  bool waits = true;
  if (enter.member > newest_member_) log::debug("enter.early", {{"worker", enter.name}});
  while (waits && enter.member > newest_member_) waits = co_await changed_.wait(limit);
  if (is_member(enter)) co_return Status();
  co_return Error(ErrorCode::kAborted,
                  "fenced: worker '" + enter.name + "' is refused by server '" + options_.name +
                      "': member " + to_string(enter.member) +
                      (enter.member > newest_member_
                           ? " is unknown to its leader (or that one's program is older)"
                           : " of that name is none any more") +
                      ": join the leader again");
}

/// fails failed_precondition: nobody can have been told of it; aborted: the worker is fenced
Task<Status> Shard::await_opened(const proto::Enter& enter, proto::ContributionKey key) {
  const TimePoint limit = clock_.now() + options_.stall_timeout;
  bool waits = true;
  if (is_member(enter))
    log::debug("push.early", {{"worker", enter.name}, {"round", key.round.value}});
  while (waits && is_member(enter) && !is_opened(key)) waits = co_await changed_.wait(limit);
  if (!is_member(enter))
    co_return Error(ErrorCode::kAborted, "fenced: worker '" + enter.name + "', member " +
                                             to_string(enter.member) +
                                             ", is none any more, says the leader of server '" +
                                             options_.name + "': join it again");
  if (is_opened(key)) co_return Status();
  co_return Error(ErrorCode::kFailedPrecondition,
                  "Push of " + enter.name + " is for " +
                      text(key.generation, key.round, key.attempt) +
                      ", which was never opened; the newest is " +
                      text(opened_.generation, opened_.round, opened_.attempt) + ", says server '" +
                      options_.name + "': join the leader again, and bring what it opens");
}

Result<std::shared_ptr<Shard::Worker>> Shard::enter(transport::Session& session,
                                                    proto::Enter enter) {
  const std::string who = "worker '" + enter.name + "' is refused by server '" + options_.name;
  if (!store_ || route_.version == 0)
    return Error(ErrorCode::kUnavailable, who + "': it has no chunks yet");
  if (enter.route != route_.version)
    return Error(ErrorCode::kAborted, who + "': it comes by route " + std::to_string(enter.route) +
                                          ", the present one is " + std::to_string(route_.version) +
                                          ": the leader tells it (join again)");
  auto worker = std::make_shared<Worker>(executor_);
  CENTROID_ASSIGN(worker->codec, make_codec(enter.codec));
  worker->session = &session;
  worker->enter = std::move(enter);
  worker->lane = trace::Lane(worker->enter.name);
  if (const auto old = workers_.find(worker->enter.member); old != workers_.end())
    old->second->session->close(
        Error(ErrorCode::kFailedPrecondition, "superseded: this worker entered again"));
  workers_[worker->enter.member] = worker;
  away_.erase(worker->enter.member);
  log::info("worker.entered",
            {{"worker", worker->enter.name}, {"member", worker->enter.member.value}});
  return worker;
}

std::shared_ptr<StagedContribution> Shard::staged(const proto::ContributionKey& key) {
  const auto found = staged_.find(key.member);
  if (found == staged_.end()) return nullptr;
  for (Staged& one : found->second)
    if (one.key == key) return one.contribution;
  return nullptr;
}

/// A round is merged: what counts has been added, and of the rest only what the leader names may
/// count later.
void Shard::drop_all_but(const proto::Merge& merge) {
  over_ = merge.round;
  keeps_ = {merge.keeps.begin(), merge.keeps.end()};
  for (const proto::WeighedContribution& one : merge.parts) keeps_.erase(one.key);
  for (auto& [member, kept] : staged_)
    std::erase_if(kept, [this](const Staged& one) {
      return one.key.round <= over_ && !keeps_.contains(one.key);
    });
}

/// Where a chunk with this key belongs; nullptr: it is older than what its worker sent since, or
/// does not count any more.
StagedContribution* Shard::stage_for(const proto::ContributionKey& key,
                                     const std::shared_ptr<const Codec>& codec) {
  std::deque<Staged>& kept = staged_[key.member];
  if (!kept.empty() && kept.back().key == key) return kept.back().contribution.get();
  if (!kept.empty() && key < kept.back().key) return nullptr;
  if (key.round <= over_ && !keeps_.contains(key)) return nullptr;
  std::erase_if(kept, [&](const Staged& one) {
    return !one.contribution->is_whole() || one.key.round == key.round;
  });
  if (kept.size() == kKept) kept.pop_front();
  Staged fresh;
  fresh.key = key;
  fresh.contribution = std::make_shared<StagedContribution>(store_->plan(), codec, part().size());
  kept.push_back(std::move(fresh));
  return kept.back().contribution.get();
}

/// Names what is wrong; a chunk that lies elsewhere leads its sender to the leader, who has the
/// route.
Status Shard::check_push(const Worker& worker, const proto::Push& push, std::uint64_t bytes) const {
  const std::string where = "push of chunk " + to_string(push.chunk) + " by " + worker.enter.name +
                            " in round " + to_string(push.round);
  if (!store_ || push.chunk.value >= store_->plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument, where + ": there is no such chunk");
  if (!is_mine_[push.chunk.value])
    return Error(ErrorCode::kAborted,
                 where + ": by route " + std::to_string(route_.version) + " it lies on server '" +
                     route_.servers[route_.owners[push.chunk.value]].name + "', not on '" +
                     options_.name + "': the leader tells the route (join again)");
  const Chunk& chunk = store_->plan().chunk(push.chunk);
  const std::size_t limit = worker.codec->max_bytes(chunk.elements);
  if (bytes > limit)
    return Error(ErrorCode::kInvalidArgument, where + ": " + std::to_string(bytes) +
                                                  " bytes, at most " + std::to_string(limit) +
                                                  " with codec " + worker.codec->spec());
  return {};
}

Task<Status> Shard::take_push(transport::Session& session, std::shared_ptr<Worker> worker,
                              proto::Push push, std::uint64_t bytes) {
  proto::ContributionKey key;
  key.member = worker->enter.member;
  key.generation = push.generation;
  key.round = push.round;
  key.attempt = push.attempt;
  if (!is_opened(key) || !is_member(worker->enter)) {
    CENTROID_CO_TRY(co_await await_opened(worker->enter, key));
  }
  CENTROID_CO_TRY(check_push(*worker, push, bytes));
  // Of another fragment: it was on its way when its round closed without it.
  const TensorId tensor = store_->plan().chunk(push.chunk).tensor;
  const bool is_old = fragments_.number_of(tensor) != fragments_.turn(store_->optimizer_step());
  probe_.payload_received(bytes);
  if (is_old || stage_for(key, worker->codec) == nullptr) {
    probe_.stale_frame();
    CENTROID_CO_TRY(co_await session.skip_payload());
    co_return Status();
  }
  Buffer buffer(bytes);
  const TimePoint arrived = clock_.now();
  CENTROID_CO_TRY(co_await session.read_payload(buffer.bytes().first(bytes)));
  probe_.receive().ended(worker->lane, arrived, clock_.now(), push.round.value);
  session.release_credit(bytes);
  const auto kept = staged(key);
  if (kept == nullptr) {  // it has gone while the bytes came in
    probe_.stale_frame();
    co_return Status();
  }
  const std::string where = "push of chunk " + to_string(push.chunk) + " by " + worker->enter.name +
                            " in round " + to_string(push.round) + " on server '" + options_.name +
                            "'";
  if (model_.refuses_nonfinite) {
    const Status is_sound = check_numbers(*worker->codec, buffer.bytes().first(bytes));
    if (!is_sound.ok()) co_return is_sound.error().with_context(where);
  }
  const Status put = kept->put(push.chunk, push.weight, std::move(buffer), bytes);
  if (!put.ok()) co_return put.error().with_context(where);
  if (kept->is_whole()) tell_whole(key, *kept);
  co_return Status();
}

void Shard::tell_whole(const proto::ContributionKey& key, const StagedContribution& kept) {
  if (leader_ == nullptr) return;
  proto::Whole whole;
  whole.key = key;
  whole.weight = kept.weight();
  whole.squares = std::isnan(kept.squares()) ? std::numeric_limits<double>::infinity()
                                             : kept.squares();  // a head holds no NaN
  auto send = [](transport::Session* leader, proto::Whole one) -> Task<void> {
    const auto head = proto::encode(one);
    const auto kind = static_cast<std::uint16_t>(proto::ServersKind::kWhole);
    (void)co_await leader->send(kind, head, Bytes(), TimePoint::max());
  };
  leader_tasks_->spawn(send(leader_, whole));
}

/// A worker may go on saying to the leader that it lives: the leader is told that nothing comes
/// here any more. At once when it was refused; after a lease when it may come back.
void Shard::session_ended(const proto::Enter& enter, const Error& why) {
  if (leader_ == nullptr || !is_joined_ || workers_.contains(enter.member)) return;
  if (!is_member(enter)) return;  // the leader has ended it, or knows no such worker
  auto refused = std::make_shared<proto::Refused>();
  refused->member = enter.member;
  refused->code = static_cast<std::uint8_t>(why.code());
  refused->why = why.message();
  if (!may_come_back(why)) {
    leader_tasks_->spawn(tell_refused(*leader_, std::move(refused)));
    return;
  }
  refused->why = "worker '" + enter.name + "' has had no session here for " +
                 std::to_string(terms_.lease_ms) + " ms: " + why.message();
  away_.insert(enter.member);
  leader_tasks_->spawn(tell_if_away(*leader_, std::move(refused)));
}

Task<void> Shard::tell_refused(transport::Session& leader,
                               std::shared_ptr<const proto::Refused> refused) {
  const auto head = proto::encode(*refused);
  const auto kind = static_cast<std::uint16_t>(proto::ServersKind::kRefused);
  (void)co_await leader.send(kind, head, Bytes(), TimePoint::max());
}

Task<void> Shard::tell_if_away(transport::Session& leader,
                               std::shared_ptr<const proto::Refused> refused) {
  const std::chrono::milliseconds lease(terms_.lease_ms);
  if (!co_await sleep_until(clock_.now() + lease)) co_return;
  if (away_.erase(refused->member) == 0) co_return;  // it is back, or the leader knows
  log::warn("worker.away", {{"member", refused->member.value}, {"why", refused->why}});
  co_await tell_refused(leader, std::move(refused));
}

/// The results that wait for one worker, in order.
Task<void> Shard::outbox(std::shared_ptr<Worker> worker) {
  transport::Session& session = *worker->session;
  const trace::Lane lane(worker->enter.name + " out");
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kResult);
  while (!session.is_closed()) {
    if (worker->outgoing.empty()) {
      if (!co_await worker->wake.wait(TimePoint::max())) co_return;
      continue;
    }
    const Piece piece = std::move(worker->outgoing.front());
    worker->outgoing.pop_front();
    const auto head = proto::encode(piece.head);
    const TimePoint begin = clock_.now();
    const Status sent =
        co_await session.send(kind, head, *piece.values, begin + options_.stall_timeout, piece.crc);
    if (!sent.ok()) {
      session.close(sent.error());
      co_return;
    }
    probe_.send().ended(lane, begin, clock_.now(), piece.head.round.value);
    probe_.payload_sent(piece.values->size());
  }
}

}  // namespace centroid::server
