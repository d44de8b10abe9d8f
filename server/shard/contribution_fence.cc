#include "server/shard/contribution_fence.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"

namespace centroid::server {

namespace {

/// A worker has its own connection with the leader, so its Enter may arrive before the leader's
/// message about it. Longest wait for that message, shorter than the worker's wait for the answer.
constexpr std::chrono::milliseconds kLongestEnter{5000};

std::uint32_t crc_of(const std::string& name) { return crc32c(std::as_bytes(std::span(name))); }

std::string text(Generation generation, Round round, std::uint32_t attempt) {
  return "generation " + to_string(generation) + ", round " + to_string(round) + ", attempt " +
         std::to_string(attempt);
}

}  // namespace

void ContributionFence::set(proto::Opened opened) {
  if (opened.members != opened_.members) {  // every attempt repeats them, and they rarely change
    members_.clear();
    for (const proto::OpenedMember& one : opened.members) members_[one.member] = one.name_crc;
    if (!opened.members.empty())
      newest_member_ = std::max(newest_member_, opened.members.back().member);
  }
  opened_ = std::move(opened);
  changed_.notify_all();
}

void ContributionFence::reset() {
  set({});
  newest_member_ = {};
}

void ContributionFence::remove(MemberId member) {
  members_.erase(member);
  changed_.notify_all();
}

bool ContributionFence::is_member(const proto::Enter& enter) const {
  const auto found = members_.find(enter.member);
  return found != members_.end() && found->second == crc_of(enter.name);
}

bool ContributionFence::is_opened(const proto::ContributionKey& key) const {
  return key.generation <= opened_.generation &&
         (key.round < opened_.round ||
          (key.round == opened_.round && key.attempt <= opened_.attempt));
}

Task<Status> ContributionFence::await_member(const proto::Enter& enter) {
  const TimePoint limit =
      context_.clock.now() + std::min(kLongestEnter, context_.options.stall_timeout);
  if (enter.member > newest_member_) log::debug("enter.deferred", {{"worker", enter.name}});
  const auto is_named = [this, &enter] { return enter.member <= newest_member_; };
  (void)co_await until(changed_, is_named, limit);
  if (is_member(enter)) co_return Status();
  co_return Error(ErrorCode::kAborted,
                  "fenced: worker '" + enter.name + "' is refused by server '" +
                      context_.options.name + "': member " + to_string(enter.member) +
                      (enter.member > newest_member_
                           ? " is unknown to its leader (or that one's program is older)"
                           : " of that name is none any more") +
                      ": join the leader again");
}

Task<Status> ContributionFence::await_opened(const proto::Enter& enter,
                                             proto::ContributionKey key) {
  const TimePoint limit = context_.clock.now() + context_.options.stall_timeout;
  if (is_member(enter))
    log::debug("push.deferred", {{"worker", enter.name}, {"round", key.round.value}});
  const auto is_known = [this, &enter, &key] { return !is_member(enter) || is_opened(key); };
  (void)co_await until(changed_, is_known, limit);
  if (!is_member(enter))
    co_return Error(ErrorCode::kAborted, "fenced: worker '" + enter.name + "', member " +
                                             to_string(enter.member) +
                                             ", is none any more, says the leader of server '" +
                                             context_.options.name + "': join it again");
  if (is_opened(key)) co_return Status();
  // The leader may be disconnected from this server: the worker should retry, not fail.
  co_return Error(ErrorCode::kAborted,
                  "Push of " + enter.name + " is for " +
                      text(key.generation, key.round, key.attempt) +
                      ", which was never opened; the newest is " +
                      text(opened_.generation, opened_.round, opened_.attempt) + ", says server '" +
                      context_.options.name + "': join the leader again, and bring what it opens");
}

}  // namespace centroid::server
