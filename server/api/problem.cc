#include "server/api/problem.h"

#include "server/api/schema.h"

namespace centroid::server {

namespace {

struct Problem {
  std::string type = "about:blank";
  std::string title;
  unsigned status = 0;
  std::string detail, instance, code;
};

View<Problem> describe(const Problem*) {
  using V = Problem;
  std::vector<std::string> codes;
  for (int code = 1; code <= static_cast<int>(ErrorCode::kInternal); ++code)
    codes.emplace_back(to_string(static_cast<ErrorCode>(code)));
  return {"Problem",
          "What went wrong (RFC 9457).",
          {{"type", &V::type, "about:blank: the title is the status.", one_of({"about:blank"})},
           {"title", &V::title, "Reason phrase of the status."},
           {"status", &V::status, "The HTTP status.", between(400, 599)},
           {"detail", &V::detail, "The expected and the received value, and what to do."},
           {"instance", &V::instance, "The request's path."},
           {"code", &V::code, "What the caller should do about it.", one_of(codes)}}};
}

}  // namespace

const Schema& problem_schema() { return view_of<Problem>(); }

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
  Problem problem;
  problem.title = transport::http_reason(status);
  problem.status = status;
  problem.detail = detail;
  problem.instance = instance.substr(0, 256);
  problem.code = to_string(code);
  HttpResponse response;
  response.status = status;
  response.content_type = "application/problem+json";
  const Json json = view_of<Problem>().to_json(problem);
  response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (status == 503 || status == 429) response.fields.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse make_problem(const Error& error, std::string_view instance) {
  return make_problem(http_status(error.code()), error.code(), error.message(), instance);
}

}  // namespace centroid::server
