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
           {"detail", &V::detail, "What was expected, what came, and what to do."},
           {"instance", &V::instance, "The request's path."},
           {"code", &V::code, "What the caller should do about it.", one_of(codes)}}};
}

}  // namespace

const Schema& problem_schema() { return view_of<Problem>(); }

unsigned http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
    case ErrorCode::kAborted:
      return 409;
    case ErrorCode::kFailedPrecondition:
      return 409;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kCancelled:
      return 503;
    case ErrorCode::kDataLoss:
      return 500;
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kAlreadyExists:
      return 409;
    case ErrorCode::kUnimplemented:
      return 501;
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

std::string_view http_reason(unsigned status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 206:
      return "Partial Content";
    case 304:
      return "Not Modified";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 416:
      return "Range Not Satisfiable";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

HttpResponse make_problem(unsigned status, ErrorCode code, std::string_view detail,
                          std::string_view instance) {
  Problem problem;
  problem.title = http_reason(status);
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
