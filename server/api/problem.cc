#include "server/api/problem.h"

#include <nlohmann/json.hpp>

namespace centroid::server {

unsigned http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kAborted:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kFailedPrecondition:
      return 409;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kUnimplemented:
      return 501;
    case ErrorCode::kUnavailable:
    case ErrorCode::kCancelled:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
    case ErrorCode::kDataLoss:
    case ErrorCode::kInternal:
      break;
  }
  return 500;
}

HttpResponse make_problem(unsigned status, ErrorCode code, std::string_view detail,
                          std::string_view instance) {
  nlohmann::ordered_json problem;
  problem["type"] = "about:blank";
  problem["title"] = transport::http_reason(status);
  problem["status"] = status;
  problem["detail"] = detail;
  problem["instance"] = instance.substr(0, 256);
  problem["code"] = to_string(code);
  HttpResponse response;
  response.status = status;
  response.content_type = "application/problem+json";
  response.body = problem.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (status == 503 || status == 429) response.fields.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse make_problem(const Error& error, std::string_view instance) {
  return make_problem(http_status(error.code()), error.code(), error.message(), instance);
}

}  // namespace centroid::server
