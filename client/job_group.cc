#include "client/job_group.h"

#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/collective/collectives.h"
#include "worker/parallel/agreement.h"

namespace centroid::client {

using parallel::Notice;
using transport::Endpoint;

bool is_loss(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded ||
         error.code() == ErrorCode::kAborted;
}

Result<std::unique_ptr<JobGroup>> JobGroup::join(JobGroupOptions options) {
  options.peers.may_be_newcomer = true;
  std::unique_ptr<JobGroup> made(new JobGroup(std::move(options)));
  const PeerOptions& peers = made->options_.peers;
  const Deadline deadline = centroid::now() + peers.timeout;
  for (Endpoint leader;;) {
    made->meeting_.reset();  // members must not take the place of an earlier try for a live one's
    CENTROID_ASSIGN(made->peers_, PeerGroup::join(peers, made->options_.rendezvous));
    const Status opened = made->open_meeting();
    if (made->peers_->is_connected()) {
      CENTROID_TRY(made->meet_first_ranks(opened));
      return made;
    }
    CENTROID_TRY(opened);
    if (leader != made->peers_->running())
      log::info("sharded.newcomer_waiting", {{"leader", made->peers_->running().to_string()}});
    leader = made->peers_->running();
    auto members = made->meeting_->join(leader, made->peers_->address(), deadline);
    made->is_newcomer_ = members.ok();
    made->is_over_ = !members.ok() && members.error().code() == ErrorCode::kCancelled;
    if (members.ok()) made->members_ = std::move(*members);
    if (made->is_newcomer_ || made->is_over_) return made;
    const bool is_elsewhere = members.error().code() == ErrorCode::kUnavailable;
    if (!is_elsewhere || centroid::now() >= deadline) return std::move(members).error();
  }
}

Status JobGroup::open_meeting() {
  MeetingOptions options;
  options.token = options_.peers.token;
  options.layer = options_.peers.layer;
  options.patience = options_.peers.timeout;
  options.settings = options_.settings;
  CENTROID_ASSIGN(options.rendezvous, Endpoint::parse(options_.rendezvous));
  options.is_host = options_.peers.rank == 0;
  CENTROID_ASSIGN(meeting_, Meeting::open(peers_->options().host, std::move(options)));
  return {};
}

/// `opened`: whether this rank has a place for meetings.
Status JobGroup::meet_first_ranks(const Status& opened) {
  const std::chrono::milliseconds timeout = options_.peers.timeout;
  Notice own;
  own.status = opened;
  if (opened.ok()) own.text = meeting_->place().to_string() + " " + peers_->address();
  CENTROID_ASSIGN(const auto places, parallel::exchange(group(), own, timeout));
  CENTROID_TRY(parallel::first_failure(places));
  own.text = options_.settings;
  CENTROID_ASSIGN(const auto settings, parallel::exchange(group(), own, timeout));
  members_.job = peers_->job();
  members_.generation = group().generation();
  members_.next = group().world();
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    const std::string other = difference(settings[0].text, settings[rank].text);
    if (!other.empty())
      return Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + ": " + other);
    const std::string& text = places[rank].text;
    const std::size_t end = text.find(' ');
    Member& member = members_.members.emplace_back();
    member.number = rank;
    CENTROID_ASSIGN(member.place, Endpoint::parse(text.substr(0, end)));
    member.address = text.substr(end + 1);
  }
  meeting_->begin(members_);
  return {};
}

Status JobGroup::regroup(Meeting::Newcomers newcomers, const TakeOver& take_over) {
  constexpr int kTries = 6;
  const bool is_newcomer = std::exchange(is_newcomer_, false);
  const std::uint32_t before = members_.next;
  if (!is_newcomer) {
    CENTROID_ASSIGN(members_, meeting_->meet(newcomers));
  }
  for (int tries = 1;; ++tries) {
    const Status joined = join_members();
    const Status entered = joined.ok() ? complete(take_over) : joined;
    if (entered.ok()) return {};
    const bool is_lost = is_loss(entered.error()) && (!joined.ok() || group().culprit());
    const bool may_do_without = !is_newcomer && members_.next > before;
    if (tries == kTries || (!is_lost && (tries > 1 || !may_do_without))) return entered;
    log::warn("sharded.regroup_failed", {{"generation", members_.generation},
                                         {"world", members_.members.size()},
                                         {"error", entered.error()}});
    // Some may not be in the group that failed, such as those that wait.
    if (peers_->is_connected()) group().abort(entered.error());
    using Newcomers = Meeting::Newcomers;
    CENTROID_ASSIGN(members_, meeting_->meet(tries > 1 ? Newcomers::kRefuse : Newcomers::kKeep));
  }
}

Status JobGroup::join_members() {
  std::vector<std::string> addresses;
  for (const Member& one : members_.members) addresses.push_back(one.address);
  return peers_->regroup(members_.job, addresses, members_.generation);
}

Status JobGroup::complete(const TakeOver& take_over) {
  CENTROID_TRY(take_over());
  CENTROID_TRY(collective::barrier(group()));  // every rank has its part now
  meeting_->complete();
  return {};
}

}  // namespace centroid::client
