#include "server/election/election.h"

#include <utility>

namespace centroid::server {

std::optional<Election::Request> Election::next(TimePoint now) {
  if (is_under_way_ || role_ == Role::kDeposed || now < next_at_) return std::nullopt;
  is_under_way_ = true;
  sent_ = now;
  return Request{.ask = ask_, .lease = ask_ == Ask::kAcquire || ask_ == Ask::kRenew ? lease_ : 0};
}

TimePoint Election::end_of_lease(Duration ttl) const {
  return sent_ + std::chrono::duration_cast<Duration>(ttl * (1 - options_.drift));
}

Election::Role Election::role(TimePoint now) const {
  return role_ == Role::kLeader && now >= acts_until_ ? Role::kHeld : role_;
}

void Election::won(const Holder& holder) {
  role_ = Role::kLeader;
  term_ = holder.term;
  plan(Ask::kRenew, sent_);
}

void Election::depose(std::string why) {
  role_ = Role::kDeposed;
  why_ = std::move(why);
}

void Election::answered(TimePoint now, const Reply& reply) {
  is_under_way_ = false;
  trouble_.clear();
  if (ask_ != Ask::kGrant) holder_ = reply.holder;
  // Also when the answer to kAcquire was lost: the key says whose it is.
  const bool is_ours = holder_ && lease_ != 0 && holder_->lease == lease_;
  switch (ask_) {
    case Ask::kLook:
    case Ask::kAcquire:
      if (is_ours) return won(*holder_);
      if (holder_) return plan(Ask::kLook, now + options_.poll);
      // A lease that was not used in time is left to run out.
      return plan(acts_until_ > now + options_.ttl / 2 ? Ask::kAcquire : Ask::kGrant, now);
    case Ask::kGrant:
      lease_ = reply.lease;
      acts_until_ = end_of_lease(reply.ttl);
      return plan(Ask::kAcquire, now);
    case Ask::kRenew:
      if (reply.ttl <= Duration::zero())
        return depose("its lease has run out in etcd: no renewal came through in time");
      if (!holder_) return depose("its key in etcd is gone");
      if (!is_ours || holder_->term != term_) return depose("another server holds the key");
      acts_until_ = end_of_lease(reply.ttl);
      return plan(Ask::kRenew, sent_ + options_.renew);
  }
}

void Election::failed(TimePoint now, std::string why) {
  is_under_way_ = false;
  trouble_ = std::move(why);
  // Whether a request was carried out is not known: only a look at the key tells.
  plan(ask_ == Ask::kRenew ? Ask::kRenew : Ask::kLook, now + options_.retry);
}

}  // namespace centroid::server
