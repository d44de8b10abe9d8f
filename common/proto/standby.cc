#include "common/proto/standby.h"

#include <string_view>

namespace centroid::proto {

namespace {
constexpr std::string_view kBegin = "standby, leader is ";
constexpr std::string_view kAt = " at ";
constexpr std::string_view kNotYet = "not yet: ";
}  // namespace

Error standby_error(const std::string& leader, const std::string& endpoint) {
  if (endpoint.empty())
    return Error(ErrorCode::kUnavailable, "standby, there is no leader now: try again");
  return Error(ErrorCode::kUnavailable, std::string(kBegin) + leader + std::string(kAt) + endpoint);
}

std::optional<std::string> leader_named_by(const Error& refusal) {
  if (refusal.code() != ErrorCode::kUnavailable) return std::nullopt;
  const std::string& text = refusal.message();
  const auto begin = text.find(kBegin);
  const auto at = text.rfind(kAt);
  if (begin == std::string::npos || at == std::string::npos || at < begin + kBegin.size())
    return std::nullopt;
  const auto from = at + kAt.size();
  const auto end = text.find_first_of(" ;,)\n", from);
  return text.substr(from, end == std::string::npos ? end : end - from);
}

Error not_yet_error(const std::string& why) {
  return Error(ErrorCode::kUnavailable, std::string(kNotYet) + why);
}

bool is_not_yet(const Error& refusal) {
  return refusal.code() == ErrorCode::kUnavailable &&
         refusal.message().find(kNotYet) != std::string::npos;
}

}  // namespace centroid::proto
