#include "server/membership/roster.h"

#include <algorithm>

namespace centroid::server {

std::string_view to_string(MemberState state) {
  switch (state) {
    case MemberState::kJoining:
      return "joining";
    case MemberState::kActive:
      return "active";
    case MemberState::kDraining:
      return "draining";
    case MemberState::kLeft:
      return "left";
    case MemberState::kDead:
      return "dead";
    case MemberState::kFenced:
      return "fenced";
  }
  return "unknown";
}

bool is_present(MemberState state) { return state <= MemberState::kDraining; }

Result<Roster::Joined> Roster::join(const std::string& name, const std::string& address,
                                    TimePoint now, double unix_seconds) {
  Joined joined;
  if (const auto older = present_.find(name); older != present_.end())
    joined.fenced = older->second;
  if (!joined.fenced && present() >= options_.max_members)
    return Error(
        ErrorCode::kResourceExhausted,
        "the cluster is full: " + std::to_string(options_.max_members) + " members (max_workers)");
  if (joined.fenced)
    end(*joined.fenced, MemberState::kFenced,
        "a newer worker named '" + name + "' joined from " + address);
  joined.member = next_;
  next_ = next_.next();
  Member member;
  member.id = joined.member;
  member.name = name;
  member.address = address;
  member.heard = now;
  member.joined_unix_seconds = unix_seconds;
  members_.emplace(joined.member, std::move(member));
  present_.emplace(name, joined.member);
  changed_ = true;
  return joined;
}

void Roster::heard(MemberId member, TimePoint when) {
  const auto it = members_.find(member);
  if (it != members_.end()) it->second.heard = std::max(it->second.heard, when);
}

bool Roster::end(MemberId id, MemberState state, const std::string& reason) {
  const auto it = members_.find(id);
  if (it == members_.end() || !is_present(it->second.state)) return false;
  present_.erase(it->second.name);
  if (it->second.state == MemberState::kDraining) --draining_;
  it->second.state = state;
  it->second.rank.reset();
  it->second.reason = reason;
  changed_ = true;
  std::size_t absent = members_.size() - present_.size();
  for (auto oldest = members_.begin(); absent > options_.max_absent && oldest != members_.end();) {
    if (!is_present(oldest->second.state) && oldest->first != id) {
      oldest = members_.erase(oldest);
      --absent;
    } else {
      ++oldest;
    }
  }
  return true;
}

bool Roster::leave(MemberId member, const std::string& reason) {
  return end(member, MemberState::kLeft, reason);
}
bool Roster::lost(MemberId member, const std::string& reason) {
  return end(member, MemberState::kDead, reason);
}

bool Roster::drain(MemberId member) {
  const auto it = members_.find(member);
  if (it == members_.end() || !is_present(it->second.state)) return false;
  if (it->second.state != MemberState::kDraining) ++draining_;
  it->second.state = MemberState::kDraining;
  changed_ = true;
  return true;
}

std::vector<MemberId> Roster::tick(TimePoint now) {
  const bool we_slept = last_tick_ && now - *last_tick_ > options_.lease / 2;
  last_tick_ = now;
  std::vector<MemberId> dead;
  for (auto& [id, member] : members_) {
    if (!is_present(member.state)) continue;
    if (we_slept) member.heard = now;
    if (now - member.heard > options_.lease) dead.push_back(id);
  }
  using Milliseconds = std::chrono::duration<double, std::milli>;
  for (const MemberId id : dead) {
    const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(
        Milliseconds(now - members_.at(id).heard));
    lost(id, "silent for " + std::to_string(silent.count()) + " ms, longer than its lease");
  }
  return dead;
}

Generation Roster::form(bool admit_joining) {
  std::vector<Member*> ranked;
  bool changes_again = false;  // at the next round: a newcomer is in, who drains is out
  for (auto& [id, member] : members_) {
    const bool drains_now = member.state == MemberState::kDraining && !admit_joining && member.rank;
    if (member.state == MemberState::kActive || drains_now ||
        (member.state == MemberState::kJoining && admit_joining)) {
      changes_again = changes_again || drains_now;
      ranked.push_back(&member);
    } else if (is_present(member.state)) {
      changes_again = changes_again || member.state == MemberState::kJoining;
      member.rank.reset();
    }
  }
  if (changed_) {
    std::sort(ranked.begin(), ranked.end(), [](const Member* a, const Member* b) {
      return a->name.size() != b->name.size() ? a->name.size() < b->name.size() : a->name < b->name;
    });
    generation_ = generation_.next();
    for (std::size_t i = 0; i < ranked.size(); ++i) {
      if (ranked[i]->state == MemberState::kJoining) ranked[i]->state = MemberState::kActive;
      ranked[i]->rank = Rank(static_cast<std::uint32_t>(i));
    }
  }
  changed_ = changes_again;
  return generation_;
}

std::vector<MemberId> Roster::ranked() const {
  std::vector<const Member*> ranked;
  for (const auto& [id, member] : members_)
    if (is_present(member.state) && member.rank) ranked.push_back(&member);
  std::sort(ranked.begin(), ranked.end(),
            [](const Member* a, const Member* b) { return a->rank < b->rank; });
  std::vector<MemberId> out;
  out.reserve(ranked.size());
  for (const Member* member : ranked) out.push_back(member->id);
  return out;
}

const Member* Roster::find(MemberId member) const {
  const auto it = members_.find(member);
  return it == members_.end() ? nullptr : &it->second;
}

}  // namespace centroid::server
