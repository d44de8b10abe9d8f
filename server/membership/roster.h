#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"

namespace centroid::server {

enum class MemberState : std::uint8_t {
  kJoining,   ///< admitted, takes part from the next generation on
  kActive,    ///< has a rank in the present generation
  kDraining,  ///< finishes the round it is in, then is told to leave
  kLeft,      ///< said goodbye
  kDead,      ///< silent beyond its lease, or its connection broke
  kFenced,    ///< replaced by a newer worker of the same name
};
std::string_view to_string(MemberState state);
/// Joining, active or draining.
bool is_present(MemberState state);

struct Member {
  MemberId id;
  std::string name;
  std::string address;
  MemberState state = MemberState::kJoining;
  std::optional<Rank> rank;  ///< in the present generation
  TimePoint heard;           ///< when it last gave a sign of life
  double joined_unix_seconds = 0;
  std::string reason;  ///< of leaving, death or fencing
};

/// Who belongs to the cluster. Pure: no socket, no timer, no clock; time comes with the events.
///
/// fence    every admission gets a new MemberId; a name has at most one present member, the newest
///          wins
/// ranks    by name (shorter names first, then alphabetical: worker-2 before worker-10), so that
///          they repeat from run to run
/// bounds   absent members are remembered for the operator, at most `max_absent`, oldest forgotten
///          first
class Roster {
 public:
  struct Options {
    Duration lease = std::chrono::seconds(10);
    std::size_t max_members = 1024;
    std::size_t max_absent = 256;
  };
  explicit Roster(Options options) : options_(options) {}

  /// What `options` gave first; they hold for who is present too.
  void set_limits(Duration lease, std::size_t max_members) {
    options_.lease = lease, options_.max_members = max_members;
  }

  struct Joined {
    MemberId member;
    std::optional<MemberId> fenced;  ///< the older member of the same name
  };
  /// fails resource_exhausted when the cluster is full.
  Result<Joined> join(const std::string& name, const std::string& address, TimePoint now,
                      double unix_seconds);
  void heard(MemberId member, TimePoint when);
  /// False when the member is not present (then nothing changed).
  bool leave(MemberId member, const std::string& reason);
  bool lost(MemberId member, const std::string& reason);
  bool drain(MemberId member);

  /// Members silent beyond the lease become dead and are returned. A tick that comes late by more
  /// than half a lease means that we ourselves were stopped: then every lease starts anew and
  /// nobody dies.
  std::vector<MemberId> tick(TimePoint now);

  /// Membership differs from what the present generation was formed of.
  bool is_changed() const { return changed_; }
  /// The next `form` makes a new generation even with the same members: their connections with each
  /// other are to be made anew.
  void renew() { changed_ = true; }
  /// Give every joining and active member a rank, in a new generation if anything changed.
  /// `admit_joining` false keeps newcomers out (in the middle of a round).
  Generation form(bool admit_joining);

  Generation generation() const { return generation_; }
  /// Active (and draining) members of the present generation in rank order.
  std::vector<MemberId> ranked() const;
  const Member* find(MemberId member) const;
  std::size_t present() const { return present_.size(); }
  /// Present, and not about to leave.
  std::size_t staying() const { return present_.size() - draining_; }
  /// At least one member leaves after the round.
  bool is_draining() const { return draining_ > 0; }
  const std::map<MemberId, Member>& members() const { return members_; }
  /// After a restart, so that old messages stay fenced.
  void restore(Generation generation) { generation_ = generation; }

 private:
  bool end(MemberId member, MemberState state, const std::string& reason);
  Options options_;
  std::map<MemberId, Member> members_;
  std::unordered_map<std::string, MemberId> present_;  ///< of them, by name
  std::size_t draining_ = 0;                           ///< of those
  MemberId next_{1};
  Generation generation_;
  std::optional<TimePoint> last_tick_;
  bool changed_ = false;
};

}  // namespace centroid::server
