#include "common/base/scalars.h"

#include <algorithm>
#include <cmath>

namespace centroid {

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool may_follow(char c) {
  return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '/' || c == '-';
}

}  // namespace

bool is_scalar_name(std::string_view name) {
  return !name.empty() && name.size() <= Scalars::kMaxNameBytes && is_letter(name.front()) &&
         std::ranges::all_of(name, may_follow);
}

Status Scalars::record(std::string_view name, double value) {
  if (!is_scalar_name(name))
    return Error(ErrorCode::kInvalidArgument,
                 "a scalar's name has 1 to 64 letters, digits, _ . / or -, and begins with a "
                 "letter or _; this name has " +
                     std::to_string(name.size()) + " bytes");
  if (!(std::abs(value) <= kMaxSum))
    return Error(ErrorCode::kInvalidArgument,
                 "scalar " + std::string(name) + " is not finite, or beyond 1e300");
  if (add(name, {value, 1})) return {};
  return Error(ErrorCode::kResourceExhausted, "scalar " + std::string(name) + " is one more than " +
                                                  std::to_string(kMaxNames) + " names");
}

bool Scalars::add(std::string_view name, const Sum& more) {
  auto at = sums_.find(name);
  if (at == sums_.end()) {
    if (sums_.size() == kMaxNames) return false;
    at = sums_.emplace(name, Sum()).first;
  }
  at->second.sum = std::clamp(at->second.sum + more.sum, -kMaxSum, kMaxSum);
  at->second.count += more.count;
  return true;
}

void Scalars::add(const Scalars& more) {
  for (const auto& [name, sum] : more.sums_) (void)add(name, sum);
}

}  // namespace centroid
