#include "transport/stranger_budget.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "common/base/refusal.h"

namespace centroid::transport {

bool ByteBudget::take(std::uint64_t bytes) {
  if (used_ != 0 && bytes > limit_ - std::min(limit_, used_)) {
    ++refused_;
    return false;
  }
  used_ += bytes;
  return true;
}

Status HeldBytes::resize(std::uint64_t bytes) {
  if (!budget_) return {};
  if (bytes > bytes_ && !budget_->take(bytes - bytes_))
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for a message of " + std::to_string(bytes) + " bytes: of " +
                     std::to_string(budget_->limit()) + " for all that have not joined yet, " +
                     std::to_string(budget_->used()) + " are taken: try again")
        .with_refusal({NotReady{}});
  if (bytes < bytes_) budget_->give_back(bytes_ - bytes);
  bytes_ = bytes;
  return {};
}

double LineBudget::left_at(TimePoint now) const {
  const double passed = std::chrono::duration<double>(now - at_).count();
  return burst_ - std::max(spent_ - std::max(passed, 0.0) * kPerSecond, 0.0);
}

std::optional<std::string> LineBudget::take(std::string_view why, TimePoint now) {
  spent_ = burst_ - left_at(now);
  at_ = now;
  if (burst_ - spent_ < 1) {
    ++left_out_;
    return std::nullopt;
  }
  spent_ += 1;
  std::string text = shortened(why, kLineBytes);
  if (left_out_ > 0) text += " (and " + grouped(left_out_) + " more, not logged)";
  left_out_ = 0;
  return text;
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  return std::string(text.substr(0, most)) + "... (" + std::to_string(text.size()) + " bytes)";
}

std::string grouped(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

void StrangerPlaces::Group::add(const std::string& address, Id id) {
  std::set<Id>& ids = by_address_[address];
  if (!ids.empty()) crowds_.erase({-std::ssize(ids), *ids.begin()});
  ids.insert(id);
  crowds_.emplace(-std::ssize(ids), *ids.begin());
}

void StrangerPlaces::Group::remove(const std::string& address, Id id) {
  const auto found = by_address_.find(address);
  std::set<Id>& ids = found->second;
  crowds_.erase({-std::ssize(ids), *ids.begin()});
  ids.erase(id);
  if (ids.empty())
    by_address_.erase(found);
  else
    crowds_.emplace(-std::ssize(ids), *ids.begin());
}

StrangerPlaces::Arrival StrangerPlaces::arrive(const std::string& address) {
  Arrival arrival;
  if (!present_.empty() && present_.size() >= most_) {
    arrival.displaced = (silent_.is_empty() ? greeted_ : silent_).victim();
    leave(*arrival.displaced);
  }
  arrival.id = next_++;
  const auto at = present_.emplace(arrival.id, Stranger{client_of(address)}).first;
  silent_.add(at->second.address, arrival.id);
  return arrival;
}

void StrangerPlaces::greeted(Id id) {
  const auto found = present_.find(id);
  if (found == present_.end() || found->second.is_greeted) return;
  silent_.remove(found->second.address, id);
  found->second.is_greeted = true;
  greeted_.add(found->second.address, id);
}

void StrangerPlaces::leave(Id id) {
  const auto found = present_.find(id);
  if (found == present_.end()) return;
  group_of(found->second).remove(found->second.address, id);
  present_.erase(found);
}

}  // namespace centroid::transport
