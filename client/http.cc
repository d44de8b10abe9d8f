#include "client/http.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "client/fetch.h"
#include "transport/tls/maybe_tls.h"

namespace centroid::client {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::uint64_t kMaxBody = 64u << 20;

bool is_port(const std::string& text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         std::stoul(text) <= 65535;
}

Error failure(const std::string& where, const beast::error_code& ec) {
  if (ec == beast::error::timeout || ec == asio::error::timed_out)
    return Error(ErrorCode::kDeadlineExceeded, where + ": no answer in time");
  return Error(ErrorCode::kUnavailable, where + ": " + ec.message());
}

using Stream = transport::MaybeTls<beast::tcp_stream>;

asio::awaitable<beast::error_code> connect(beast::tcp_stream& stream, std::string host,
                                           std::string port) {
  Tcp::resolver resolver(stream.get_executor());
  const auto [lookup, found] = co_await resolver.async_resolve(host, port, kAwait);
  if (lookup) co_return lookup;
  const auto [ec, at] = co_await stream.async_connect(found, kAwait);
  co_return ec;
}

/// Connected, and secure where that is wanted.
asio::awaitable<std::optional<Error>> open(Stream& stream, const Remote& remote) {
  stream.lower().expires_after(remote.timeout);
  const beast::error_code connected = co_await connect(stream.lower(), remote.host, remote.port);
  if (connected) co_return failure(remote.to_string(), connected);
  if (!remote.is_https) co_return std::nullopt;
  transport::TlsOptions options;
  if (!remote.is_unchecked) options.authority = remote.authority;
  options.server_name = remote.server_name;
  options.is_unchecked = remote.is_unchecked;
  auto files = transport::TlsFiles::open(std::move(options));
  if (!files.ok()) co_return std::move(files).error();
  stream.secure(files->connecting_end(remote.host));
  const auto [ec] = co_await stream.async_handshake(kAwait);
  if (!ec) co_return std::nullopt;
  const std::string verdict = stream.verdict();
  if (verdict.empty() && ec.category() == asio::error::get_ssl_category())
    co_return Error(ErrorCode::kFailedPrecondition,
                    remote.to_string() + ": " + ec.message() + "; does it speak HTTPS?");
  if (verdict.empty()) co_return failure(remote.to_string(), ec);
  co_return Error(ErrorCode::kFailedPrecondition,
                  remote.to_string() + ": the certificate is not accepted: " + verdict +
                      " (--authority FILE, --server-name NAME)");
}

http::request<http::string_body> make_request(const Remote& remote, const std::string& method,
                                              const std::string& path, const char* accept,
                                              const std::string& body) {
  http::request<http::string_body> request;
  request.method_string(method);
  request.target(path);
  request.version(11);
  request.set(http::field::host, remote.authority_text());
  request.set(http::field::user_agent, "centroidctl");
  request.set(http::field::accept, accept);
  request.keep_alive(false);
  if (!remote.token.empty()) request.set(http::field::authorization, "Bearer " + remote.token);
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = body;
  if (method != "GET") request.content_length(body.size());
  return request;
}

asio::awaitable<std::optional<Result<Answer>>> exchange(const Remote& remote, std::string method,
                                                        std::string path, std::string body,
                                                        std::string range) {
  Stream stream(co_await asio::this_coro::executor, nullptr);
  std::optional<Error> unopened = co_await open(stream, remote);
  if (unopened) co_return std::move(*unopened);
  auto request = make_request(remote, method, path, "application/json", body);
  if (!range.empty()) request.set(http::field::range, range);
  const auto [write_failed, written] = co_await http::async_write(stream, request, kAwait);
  if (write_failed) co_return failure(remote.to_string(), write_failed);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxBody);
  const auto [read_failed, read] = co_await http::async_read(stream, buffer, parser, kAwait);
  if (read_failed &&
      read_failed.category() == http::make_error_code(http::error::bad_version).category())
    co_return Error(ErrorCode::kDataLoss, remote.to_string() +
                                              " does not speak HTTP: " + read_failed.message() +
                                              (remote.is_https ? "" : "; is it https://?"));
  if (read_failed) co_return failure(remote.to_string(), read_failed);
  Answer answer;
  answer.status = parser.get().result_int();
  answer.date = std::string(parser.get()[http::field::date]);
  answer.body = std::move(parser.get().body());
  co_return std::move(answer);
}

/// The server says something every 15 s at the latest.
constexpr std::chrono::seconds kSilence{60};

asio::awaitable<std::optional<Result<Answer>>> read_stream(
    const Remote& remote, std::string path, const std::function<bool(std::string_view)>& take) {
  Stream stream(co_await asio::this_coro::executor, nullptr);
  std::optional<Error> unopened = co_await open(stream, remote);
  if (unopened) co_return std::move(*unopened);
  const auto request = make_request(remote, "GET", path, "text/event-stream", "");
  const auto [write_failed, written] = co_await http::async_write(stream, request, kAwait);
  if (write_failed) co_return failure(remote.to_string(), write_failed);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  const auto [head_failed, head] = co_await http::async_read_header(stream, buffer, parser, kAwait);
  if (head_failed) co_return failure(remote.to_string(), head_failed);
  Answer answer;
  answer.status = parser.get().result_int();
  while (!parser.is_done()) {
    stream.lower().expires_after(kSilence);
    const auto [failed, count] = co_await http::async_read_some(stream, buffer, parser, kAwait);
    if (failed && failed != http::error::end_of_stream)
      co_return failure(remote.to_string(), failed);
    std::string text = std::move(parser.get().body());
    parser.get().body().clear();
    if (!answer.is_good()) answer.body += text;
    const bool goes_on = !answer.is_good() || text.empty() || take(text);
    if (failed || !goes_on || answer.body.size() > kMaxBody) break;
  }
  co_return std::move(answer);
}

asio::awaitable<beast::error_code> try_connect(std::string host, std::string port,
                                               std::chrono::milliseconds timeout) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(timeout);
  co_return co_await connect(stream, host, port);
}

}  // namespace

Result<std::string> Remote::set_address(const std::string& text) {
  constexpr std::string_view kPlain = "http://", kSecure = "https://";
  is_https = text.starts_with(kSecure);
  const std::size_t scheme = is_https                   ? kSecure.size()
                             : text.starts_with(kPlain) ? kPlain.size()
                                                        : 0;
  std::string rest = text.substr(scheme);
  std::string path;
  if (const auto slash = rest.find('/'); slash != std::string::npos) {
    path = rest.substr(slash);
    rest.resize(slash);
  }
  const auto colon = rest.rfind(':');
  std::string name = rest.substr(0, colon);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  if (colon == std::string::npos || name.empty() || !is_port(rest.substr(colon + 1)))
    return Error(ErrorCode::kInvalidArgument,
                 "'" + text +
                     "' is no address of a server: expected http://HOST:PORT, https://HOST:PORT or "
                     "HOST:PORT");
  host = name;
  port = rest.substr(colon + 1);
  return path;
}

bool Remote::is_loopback() const {
  beast::error_code no_address;
  const auto address = asio::ip::make_address(host, no_address);
  return host == "localhost" || (!no_address && address.is_loopback());
}

std::string Remote::authority_text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + port;
}

std::string Remote::to_string() const {
  return (is_https ? "https://" : "http://") + authority_text();
}

Result<Answer> listen(const Remote& remote, const std::string& path,
                      const std::function<bool(std::string_view)>& take) {
  asio::io_context context(1);
  auto answer = asio::co_spawn(context, read_stream(remote, path, take), asio::use_future);
  context.run();
  return std::move(*answer.get());
}

Result<Answer> ask(const Remote& remote, const std::string& method, const std::string& path,
                   const std::string& json_body) {
  asio::io_context context(1);
  auto answer =
      asio::co_spawn(context, exchange(remote, method, path, json_body, ""), asio::use_future);
  context.run();
  return std::move(*answer.get());
}

Result<Answer> ask_part(const Remote& remote, const std::string& path, std::uint64_t begin,
                        std::uint64_t count) {
  const std::string range =
      "bytes=" + std::to_string(begin) + "-" + std::to_string(begin + count - 1);
  asio::io_context context(1);
  auto answer = asio::co_spawn(context, exchange(remote, "GET", path, "", range), asio::use_future);
  context.run();
  return std::move(*answer.get());
}

Status knock(const std::string& host, const std::string& port, std::chrono::milliseconds timeout) {
  asio::io_context context(1);
  auto tried = asio::co_spawn(context, try_connect(host, port, timeout), asio::use_future);
  context.run();
  const beast::error_code ec = tried.get();
  if (ec) return failure(host + ":" + port, ec);
  return {};
}

}  // namespace centroid::client
