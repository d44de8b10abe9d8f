#include "transport/session_credit.h"

#include <algorithm>
#include <string>
#include <utility>

namespace centroid::transport {

bool SendCredit::try_take(std::uint64_t bytes) {
  if (window_ == kUnlimitedCredit) return true;
  if (bytes > available_) return false;
  available_ -= bytes;
  return true;
}

Status SendCredit::add(std::uint64_t bytes) {
  if (window_ == kUnlimitedCredit)
    return Error(ErrorCode::kInvalidArgument,
                 "received a Credit frame, but the window is unlimited");
  if (bytes > window_ - available_)
    return Error(ErrorCode::kInvalidArgument,
                 "a Credit frame returns " + std::to_string(bytes) + " bytes, but only " +
                     std::to_string(window_ - available_) + " of the window of " +
                     std::to_string(window_) + " were taken");
  available_ += bytes;
  return {};
}

Status ReceiveCredit::take(std::uint64_t bytes) {
  if (window_ == kUnlimitedCredit) return {};
  if (bytes > left())
    return Error(ErrorCode::kResourceExhausted, "a payload of " + std::to_string(bytes) +
                                                    " bytes arrived, but the sender's credit is " +
                                                    std::to_string(left()) + " of " +
                                                    std::to_string(window_));
  in_use_ += bytes;
  return {};
}

void ReceiveCredit::release(std::uint64_t bytes) {
  const std::uint64_t freed = std::min(bytes, in_use_);
  in_use_ -= freed;
  gathered_ += freed;
}

bool ReceiveCredit::is_grant_due() const {
  return gathered_ != 0 && (in_use_ == 0 || gathered_ >= std::max<std::uint64_t>(1, window_ / 4));
}

std::uint64_t ReceiveCredit::take_grant() { return std::exchange(gathered_, 0); }

}  // namespace centroid::transport
