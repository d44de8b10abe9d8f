#include "common/base/result.h"

#include <cstdio>
#include <cstdlib>

#include "common/base/refusal.h"

namespace centroid {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kFailedPrecondition:
      return "failed_precondition";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kDataLoss:
      return "data_loss";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kUnimplemented:
      return "unimplemented";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string Error::to_string() const {
  return std::string(centroid::to_string(code_)) + ": " + message_;
}

Error Error::with_refusal(Refusal refusal) && {
  refusal_ = std::make_shared<const Refusal>(std::move(refusal));
  return std::move(*this);
}

Error not_leader(const std::string& name, const std::string& endpoint) {
  const std::string text = endpoint.empty() ? "there is no leader now: try again"
                                            : "leader is " + name + " at " + endpoint;
  return Error(ErrorCode::kUnavailable, "standby, " + text).with_refusal({NotLeader{endpoint}});
}

Error not_ready(const std::string& why) {
  return Error(ErrorCode::kUnavailable, "not yet: " + why).with_refusal({NotReady{}});
}

void check_failed(std::string_view expression, std::source_location where) {
  std::fprintf(stderr, "CENTROID_CHECK failed: %.*s at %s:%u\n",
               static_cast<int>(expression.size()), expression.data(), where.file_name(),
               where.line());
  std::abort();
}

}  // namespace centroid
