#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/clock.h"

namespace centroid::server {

/// The value of the leader's key in etcd.
struct Holder {
  std::string value;       ///< its identity
  std::uint64_t term = 0;  ///< create revision of the key: larger for every later leader
  std::int64_t lease = 0;  ///< to which the key is bound
  bool operator==(const Holder&) const = default;
};

/// One server's part in an election: which request to send to etcd and when, and whether this
/// server may act as the leader now. Pure: time and answers are arguments.
///
/// safety  etcd gives the key to one server at a time and deletes it when its lease expires. The
///         holder counts the lease from the moment the last successful renewal was *sent*, on its
///         own steady clock, `drift` shorter, and never acts longer than that, whatever it
///         receives. So two servers act at once only if a clock runs `drift` slower than etcd's, or
///         if the key is deleted by hand (found at the next renewal; the term in the shared folder
///         fences writes until then)
/// source  C. Gray and D. Cheriton, "Leases", SOSP 1989, section 2; fencing numbers: M. Burrows,
///         "The Chubby lock service", OSDI 2006, section 2.4 (sequencers)
class Election {
 public:
  struct Options {
    Duration ttl = std::chrono::seconds(3);          ///< of the lease
    Duration renew = std::chrono::seconds(1);        ///< from one renewal to the next
    Duration poll = std::chrono::milliseconds(200);  ///< how often a standby reads the key
    Duration retry = std::chrono::milliseconds(200);
    double drift = 0.1;  ///< by which clocks may differ in rate
  };
  enum class Role : std::uint8_t {
    kStandby,
    kLeader,
    kSuspended,  ///< leader that could not renew: may not act, may become leader again
    kDeposed,    ///< was leader and never is again: begin a new Election
  };
  enum class Call : std::uint8_t {
    kLook,     ///< read the key
    kGrant,    ///< a new lease of `ttl`
    kAcquire,  ///< create the key, bound to `lease`, if it is missing; else read it: one
               ///< transaction
    kRenew,    ///< keep `lease` alive, then read the key
  };
  struct Request {
    Call call = Call::kLook;
    std::int64_t lease = 0;
  };
  struct Reply {
    std::optional<Holder> holder;  ///< of the key, after the request; not for kGrant
    std::int64_t lease = 0;        ///< kGrant
    Duration ttl{};                ///< kGrant, kRenew: as etcd grants it; 0: no such lease
  };

  explicit Election(Options options) : options_(options) {}

  /// The request to send now, at most one in flight.
  std::optional<Request> next(TimePoint now);
  /// When to call `next` again, while none is in flight.
  TimePoint wakes() const { return next_at_; }
  /// The answer to the request in flight.
  void answered(TimePoint now, const Reply& reply);
  void failed(TimePoint now, std::string why);

  Role role(TimePoint now) const;
  /// End of this server's right to act as leader, on its steady clock. Never, as a standby.
  TimePoint acts_until() const { return role_ == Role::kLeader ? acts_until_ : TimePoint::min(); }
  std::uint64_t term() const { return term_; }             ///< of this leader; 0: never was
  std::int64_t lease() const { return lease_; }            ///< to revoke on a clean stop; 0: none
  const std::string& trouble() const { return trouble_; }  ///< why the last request failed; empty
  const std::optional<Holder>& holder() const { return holder_; }  ///< by the last answer
  const std::string& why_deposed() const { return why_; }

 private:
  void won(const Holder& holder);
  void depose(std::string why);
  void plan(Call call, TimePoint at) { call_ = call, next_at_ = at; }
  TimePoint end_of_lease(Duration ttl) const;

  Options options_;
  Role role_ = Role::kStandby;
  Call call_ = Call::kLook;
  TimePoint next_at_ = TimePoint::min(), sent_;
  bool is_under_way_ = false;
  std::int64_t lease_ = 0;
  TimePoint acts_until_ = TimePoint::min();  // of the lease, here and cautiously
  std::uint64_t term_ = 0;
  std::optional<Holder> holder_;
  std::string trouble_, why_;
};

}  // namespace centroid::server
