#include "transport/handshake_turns.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "transport/stranger_budget.h"

namespace centroid::transport {

namespace {
/// Weight of the newest handshake in what they cost lately.
constexpr double kNewest = 0.1;
}  // namespace

double HandshakeTurns::credit_at(TimePoint now) const {
  const double passed = std::max(std::chrono::duration<double>(now - at_).count(), 0.0);
  return std::min(kBurst, credit_ + passed * kShare);
}

double HandshakeTurns::used(TimePoint now) const {
  return std::clamp(kBurst - credit_at(now), 0.0, kBurst);
}

void HandshakeTurns::ask(Id id, const std::string& address) {
  const std::string client = client_of(address);
  auto& ids = by_address_[client];
  if (ids.empty()) addresses_.push_back(client);
  ids.push_back(id);
  waiting_.emplace(id, client);
}

std::optional<HandshakeTurns::Id> HandshakeTurns::next(TimePoint now, bool is_idle) {
  credit_ = credit_at(now);
  at_ = now;
  const bool lends = is_idle && lent_ < kMostLent;
  if (addresses_.empty() || (!lends && credit_ < cost_)) return std::nullopt;
  const std::string client = std::move(addresses_.front());
  addresses_.pop_front();
  const auto found = by_address_.find(client);
  const Id id = found->second.front();
  found->second.pop_front();
  waiting_.erase(id);
  if (found->second.empty())
    by_address_.erase(found);
  else
    addresses_.push_back(client);
  const double pays = lends ? 0 : cost_;
  credit_ -= pays;
  lent_ += lends ? 1 : 0;
  begun_.emplace(id, pays);
  return id;
}

std::optional<HandshakeTurns::Id> HandshakeTurns::first() const {
  if (addresses_.empty()) return std::nullopt;
  return by_address_.at(addresses_.front()).front();
}

TimePoint HandshakeTurns::next_at(TimePoint now) const {
  const std::chrono::duration<double> wait(std::max(cost_ - credit_at(now), 0.0) / kShare);
  return now + std::chrono::duration_cast<Duration>(wait) + std::chrono::microseconds(1);
}

void HandshakeTurns::end(Id id, double seconds) {
  if (const auto begun = begun_.find(id); begun != begun_.end()) {
    const double cost = kLeastCost + seconds;
    if (begun->second > 0)
      credit_ += begun->second - cost;
    else
      --lent_;
    cost_ = std::min(kBurst, cost_ + kNewest * (cost - cost_));
    begun_.erase(begun);
    return;
  }
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  auto& ids = by_address_[found->second];
  std::erase(ids, id);
  if (ids.empty()) {
    by_address_.erase(found->second);
    std::erase(addresses_, found->second);
  }
  waiting_.erase(found);
}

}  // namespace centroid::transport
