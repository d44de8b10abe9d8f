#include "client/http.h"

#include <utility>

#include "client/fetch.h"
#include "common/async/io_thread.h"
#include "transport/tls/tls.h"

namespace centroid::client {

using transport::HttpClient;
using transport::HttpOrigin;
using transport::HttpReading;
using transport::HttpRequest;

namespace {

/// `why`: as in HttpClient.
Error failure(const std::string& where, const Error& why) {
  const bool is_late = why.code() == ErrorCode::kDeadlineExceeded;
  return Error(is_late ? ErrorCode::kDeadlineExceeded : ErrorCode::kUnavailable,
               where + ": " + why.message());
}

/// Connected, with TLS if required.
Task<Status> open(HttpClient& http, const Remote& remote, Deadline deadline) {
  std::shared_ptr<transport::StreamLayer> tls;
  if (remote.origin.is_secure) {
    transport::TlsOptions options;
    if (!remote.is_unchecked) options.authority = remote.authority;
    options.server_name = remote.server_name;
    options.is_unchecked = remote.is_unchecked;
    CENTROID_CO_ASSIGN(tls, transport::make_tls(std::move(options)));
  }
  const Status opened = co_await http.open(tls, deadline);
  if (opened.ok()) co_return opened;
  const std::string where = remote.origin.to_string();
  const Error& why = opened.error();
  if (why.code() == ErrorCode::kAborted)
    co_return Error(ErrorCode::kFailedPrecondition,
                    where + ": " + why.message() + "; does it speak HTTPS?");
  if (why.code() == ErrorCode::kFailedPrecondition)
    co_return Error(ErrorCode::kFailedPrecondition,
                    where + ": the certificate is not accepted: " + why.message() +
                        " (--authority FILE, --server-name NAME)");
  co_return failure(where, why);
}

HttpRequest make_request(const Remote& remote, const std::string& method, const std::string& path,
                         const char* accept, const std::string& body) {
  HttpRequest request;
  request.method = method;
  request.target = path;
  request.body = body;
  const auto set = [&request](const char* name, const std::string& value) {
    request.fields.emplace_back(name, value);
  };
  set("User-Agent", "centroidctl");
  set("Accept", accept);
  set("Connection", "close");
  if (!remote.token.empty()) set("Authorization", "Bearer " + remote.token);
  if (!body.empty()) set("Content-Type", "application/json");
  return request;
}

Task<Result<Answer>> exchange(Executor executor, const Remote& remote, const HttpRequest& request,
                              const HttpReading& reading) {
  HttpClient http(executor, remote.origin);
  const Deadline deadline = centroid::now() + remote.timeout;
  CENTROID_CO_TRY(co_await open(http, remote, deadline));
  auto answer = co_await http.ask(request, reading, deadline);
  if (answer.ok()) co_return answer;
  const std::string where = remote.origin.to_string();
  const Error& why = answer.error();
  if (why.code() == ErrorCode::kDataLoss && !reading.take)
    co_return Error(ErrorCode::kDataLoss, where + " does not speak HTTP: " + why.message() +
                                              (remote.origin.is_secure ? "" : "; is it https://?"));
  co_return failure(where, why);
}

Result<Answer> exchange(const Remote& remote, const HttpRequest& request,
                        const HttpReading& reading = {}) {
  IoThread io("http");
  return io.wait(exchange(io.executor(), remote, request, reading));
}

}  // namespace

Result<std::string> Remote::set_address(const std::string& text) {
  const auto scheme = text.find("://");
  const auto slash = text.find('/', scheme == std::string::npos ? 0 : scheme + 3);
  auto parsed = HttpOrigin::parse(text.substr(0, slash));
  if (!parsed.ok())
    return Error(ErrorCode::kInvalidArgument,
                 "'" + text +
                     "' is no address of a server: expected http://HOST:PORT, https://HOST:PORT or "
                     "HOST:PORT");
  origin = std::move(parsed).value();
  return slash == std::string::npos ? "" : text.substr(slash);
}

Result<Answer> listen(const Remote& remote, const std::string& path,
                      const std::function<bool(std::string_view)>& take) {
  HttpReading reading;
  reading.take = take;
  return exchange(remote, make_request(remote, "GET", path, "text/event-stream", ""), reading);
}

Result<Answer> ask(const Remote& remote, const std::string& method, const std::string& path,
                   const std::string& json_body) {
  return exchange(remote, make_request(remote, method, path, "application/json", json_body));
}

Result<Answer> request_part(const Remote& remote, const std::string& path, std::uint64_t begin,
                            std::uint64_t count) {
  HttpRequest request = make_request(remote, "GET", path, "application/json", "");
  const std::string end = std::to_string(begin + count - 1);
  request.fields.emplace_back("Range", "bytes=" + std::to_string(begin) + "-" + end);
  return exchange(remote, request);
}

Status knock(const transport::Endpoint& there, std::chrono::milliseconds timeout) {
  IoThread io("http");
  HttpOrigin origin;
  origin.endpoint = there;
  HttpClient http(io.executor(), origin);
  const Status opened = io.wait(http.open(nullptr, centroid::now() + timeout));
  return opened.ok() ? opened : failure(there.to_string(), opened.error());
}

}  // namespace centroid::client
