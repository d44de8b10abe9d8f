#include "server/election/election.h"

#include <utility>

namespace centroid::server {

std::optional<Election::Request> Election::next(TimePoint now) {
  if (is_under_way_ || role_ == Role::kDeposed || now < next_at_) return std::nullopt;
  is_under_way_ = true;
  sent_ = now;
  return Request{.call = call_,
                 .lease = call_ == Call::kAcquire || call_ == Call::kRenew ? lease_ : 0};
}

TimePoint Election::end_of_lease(Duration ttl) const {
  return sent_ + std::chrono::duration_cast<Duration>(ttl * (1 - options_.drift));
}

Election::Role Election::role(TimePoint now) const {
  return role_ == Role::kLeader && now >= acts_until_ ? Role::kSuspended : role_;
}

void Election::won(const Holder& holder) {
  role_ = Role::kLeader;
  term_ = holder.term;
  plan(Call::kRenew, sent_);
}

void Election::depose(std::string why) {
  role_ = Role::kDeposed;
  why_ = std::move(why);
}

void Election::answered(TimePoint now, const Reply& reply) {
  is_under_way_ = false;
  trouble_.clear();
  if (call_ != Call::kGrant) holder_ = reply.holder;
  // Also if the answer to kAcquire was lost: the key names its owner.
  const bool is_ours = holder_ && lease_ != 0 && holder_->lease == lease_;
  switch (call_) {
    case Call::kLook:
    case Call::kAcquire:
      if (is_ours) return won(*holder_);
      if (holder_) return plan(Call::kLook, now + options_.poll);
      // A lease that was not used in time expires.
      return plan(acts_until_ > now + options_.ttl / 2 ? Call::kAcquire : Call::kGrant, now);
    case Call::kGrant:
      lease_ = reply.lease;
      acts_until_ = end_of_lease(reply.ttl);
      return plan(Call::kAcquire, now);
    case Call::kRenew:
      if (reply.ttl <= Duration::zero())
        return depose("its lease in etcd expired: no renewal arrived in time");
      if (!holder_) return depose("its key in etcd was deleted");
      if (!is_ours || holder_->term != term_) return depose("another server owns the key");
      acts_until_ = end_of_lease(reply.ttl);
      return plan(Call::kRenew, sent_ + options_.renew);
  }
}

void Election::failed(TimePoint now, std::string why) {
  is_under_way_ = false;
  trouble_ = std::move(why);
  // Whether a request was carried out is unknown: only a read of the key shows it.
  plan(call_ == Call::kRenew ? Call::kRenew : Call::kLook, now + options_.retry);
}

}  // namespace centroid::server
