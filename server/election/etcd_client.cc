#include "server/election/etcd_client.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/detail/base64.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "transport/tls/maybe_tls.h"

namespace centroid::server {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Json = nlohmann::json;
using Tcp = asio::ip::tcp;

constexpr std::uint64_t kMaxAnswer = 1u << 20;
constexpr std::string_view kPlain = "http://", kSecure = "https://";

std::string to_base64(const std::string& text) {
  std::string out(beast::detail::base64::encoded_size(text.size()), '\0');
  out.resize(beast::detail::base64::encode(out.data(), text.data(), text.size()));
  return out;
}

Result<std::string> from_base64(const std::string& text) {
  std::string out(beast::detail::base64::decoded_size(text.size()), '\0');
  const auto [written, read] = beast::detail::base64::decode(out.data(), text.data(), text.size());
  const auto end = text.find('=');
  if (read != (end == std::string::npos ? text.size() : end))
    return Error(ErrorCode::kDataLoss, "etcd sent a value that is not base64");
  out.resize(written);
  return out;
}

/// The gateway writes 64-bit integers as texts.
std::int64_t integer(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end()) return 0;
  if (at->is_number_integer()) return at->get<std::int64_t>();
  std::int64_t value = 0;
  if (at->is_string()) {
    const auto& text = at->get_ref<const std::string&>();
    std::from_chars(text.data(), text.data() + text.size(), value);
  }
  return value;
}

const Json& member(const Json& object, const char* name) {
  static const Json kNone = Json::object();
  const auto at = object.find(name);
  return at != object.end() && at->is_object() ? *at : kNone;
}

Result<Holder> read_pair(const Json& pair) {
  if (!pair.is_object()) return Error(ErrorCode::kDataLoss, "etcd sent a key that is no object");
  Holder holder;
  holder.term = static_cast<std::uint64_t>(integer(pair, "create_revision"));
  holder.lease = integer(pair, "lease");
  if (const auto value = pair.find("value"); value != pair.end() && value->is_string()) {
    CENTROID_ASSIGN(holder.value, from_base64(value->get<std::string>()));
  }
  return holder;
}

Result<std::optional<Holder>> first_pair(const Json& range) {
  const auto pairs = range.find("kvs");
  if (pairs == range.end() || !pairs->is_array() || pairs->empty()) return std::optional<Holder>();
  CENTROID_ASSIGN(Holder holder, read_pair(pairs->front()));
  return std::make_optional(std::move(holder));
}

struct Address {
  std::string host, port;
  std::string authority;  ///< HOST:PORT as given
  bool is_secure = false;
};

/// Of a scheme and HOST:PORT or [IPv6]:PORT.
std::optional<Address> address_of(std::string_view text) {
  Address out;
  out.is_secure = text.starts_with(kSecure);
  if (!out.is_secure && !text.starts_with(kPlain)) return {};
  text.remove_prefix(out.is_secure ? kSecure.size() : kPlain.size());
  out.authority = text;
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size()) return {};
  out.host = text.substr(0, colon);
  out.port = text.substr(colon + 1);
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']')
    out.host = out.host.substr(1, out.host.size() - 2);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (out.port.size() > 5 || !std::ranges::all_of(out.port, is_digit)) return {};
  if (std::stoul(out.port) == 0 || std::stoul(out.port) > 65535) return {};
  if (out.host.find_first_of("/@ \t\r\n") != std::string::npos) return {};
  return out;
}

}  // namespace

Result<std::vector<std::string>> parse_etcd_endpoints(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    std::string one = list.substr(at, end - at);
    at = end + 1;
    while (!one.empty() && one.back() == '/') one.pop_back();
    if (one.find("://") == std::string::npos) one = std::string(kPlain).append(one);
    if (!address_of(one))
      return Error(ErrorCode::kInvalidArgument,
                   "etcd: '" + one +
                       "' is no endpoint: expected http://HOST:PORT or https://HOST:PORT, several "
                       "separated by commas");
    out.push_back(one);
  }
  return out;
}

struct EtcdClient::Impl {
  Impl(Executor of, EtcdOptions with) : executor(std::move(of)), options(std::move(with)) {}

  Task<Result<Json>> call(std::string path, Json body);
  Task<Result<Json>> call_once(std::string path, std::string body);
  Task<Status> connect(std::string endpoint);
  Task<Result<Json>> exchange(std::string endpoint, std::string path, std::string body);
  Task<Status> sign_in(std::string endpoint);

  Executor executor;
  EtcdOptions options;
  std::size_t present = 0;  // of the endpoints: answered last
  std::optional<transport::MaybeTls<beast::tcp_stream>> stream;
  std::string stream_to, token;
};

EtcdClient::EtcdClient(Executor executor, EtcdOptions options)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(options))) {}
EtcdClient::~EtcdClient() = default;

const std::string& EtcdClient::endpoint() const { return impl_->options.endpoints[impl_->present]; }

namespace {

Error unreachable(const std::string& endpoint, const beast::error_code& why) {
  std::string reason = why == beast::error::timeout ? "no answer in time" : why.message();
  const bool is_tls = why.category() == asio::error::get_ssl_category();
  if (is_tls && reason.find("certificate") != std::string::npos)
    reason += "; it asks for one that it knows: etcd.certificate and etcd.key";
  else if (is_tls)
    reason += "; does it speak TLS?";
  return Error(ErrorCode::kUnavailable, endpoint + ": " + reason);
}

}  // namespace

Task<Status> EtcdClient::Impl::connect(std::string endpoint) {
  if (stream && stream_to == endpoint) co_return Status();
  const auto address = address_of(endpoint);
  const auto refuse = [&endpoint](const std::string& why) {
    return Error(ErrorCode::kUnavailable, endpoint + ": " + why);
  };
  if (address->is_secure && !options.tls)
    co_return refuse("it wants TLS, and no authority is known (etcd.authority)");
  stream.emplace(executor, nullptr);
  stream_to = endpoint;
  stream->lower().expires_after(options.timeout);
  Tcp::resolver resolver(executor);
  const auto found = co_await resolver.async_resolve(address->host, address->port, kAwait);
  beast::error_code failed = std::get<0>(found);
  if (!failed) {
    const auto connected = co_await stream->lower().async_connect(std::get<1>(found), kAwait);
    failed = std::get<0>(connected);
  }
  std::string verdict;
  if (!failed && address->is_secure) {
    stream->secure(options.tls->connecting_end(address->host));
    const auto shaken = co_await stream->async_handshake(kAwait);
    failed = std::get<0>(shaken);
    verdict = stream->verdict();
  }
  if (!failed) co_return Status();
  stream.reset();
  if (!verdict.empty())
    co_return refuse("its certificate is not accepted: " + verdict + " (etcd.authority)");
  co_return unreachable(endpoint, failed);
}

Task<Result<Json>> EtcdClient::Impl::exchange(std::string endpoint, std::string path,
                                              std::string body) {
  CENTROID_CO_TRY(co_await connect(endpoint));
  http::request<http::string_body> request(http::verb::post, path, 11);
  request.set(http::field::host, address_of(endpoint)->authority);
  request.set(http::field::user_agent, "centroid-server");
  request.set(http::field::content_type, "application/json");
  if (!token.empty()) request.set(http::field::authorization, token);
  request.body() = std::move(body);
  request.prepare_payload();
  stream->lower().expires_after(options.timeout);
  const auto written = co_await http::async_write(*stream, request, kAwait);
  beast::error_code failed = std::get<0>(written);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswer);
  if (!failed) {
    const auto read = co_await http::async_read(*stream, buffer, parser, kAwait);
    failed = std::get<0>(read);
  }
  if (failed || !parser.keep_alive()) stream.reset();
  if (failed) co_return unreachable(endpoint, failed);
  const auto status = parser.get().result_int();
  Json answer = Json::parse(parser.get().body(), nullptr, false);
  if (status == 200 && answer.is_object()) co_return std::move(answer);
  std::string text = "HTTP status " + std::to_string(status);
  if (answer.is_object())
    for (const char* field : {"message", "error"})
      if (const auto at = answer.find(field); at != answer.end() && at->is_string()) {
        text = at->get<std::string>();
        break;
      }
  const std::string what = endpoint + path + ": etcd says: " + text;
  if (status == 404 && !answer.is_object())
    co_return Error(ErrorCode::kUnavailable,
                    what + "; is this an etcd of version 3.4 or later, on its client port?");
  if (status == 401 || text.find("auth token") != std::string::npos)
    co_return Error(ErrorCode::kCancelled, what);  // of a call that is made again, once
  if (status == 404) co_return Error(ErrorCode::kNotFound, what);
  if (status == 400 || status == 403)
    co_return Error(ErrorCode::kFailedPrecondition,
                    what + " (settings etcd.user and etcd.password)");
  co_return Error(ErrorCode::kUnavailable, what);
}

Task<Status> EtcdClient::Impl::sign_in(std::string endpoint) {
  token.clear();
  Json who;
  who["name"] = options.user;
  who["password"] = options.password;
  const auto answer = co_await exchange(endpoint, "/v3/auth/authenticate", who.dump());
  if (!answer.ok()) co_return answer.error();
  const auto at = answer->find("token");
  if (at != answer->end() && at->is_string()) token = at->get<std::string>();
  co_return Status();
}

Task<Result<Json>> EtcdClient::Impl::call(std::string path, Json body) {
  const std::string text = body.dump();
  std::string reasons;
  const std::size_t count = options.endpoints.size();
  for (std::size_t tried = 0; tried < count; ++tried) {
    const std::string endpoint = options.endpoints[present];
    const bool was_open = stream.has_value();
    if (!options.user.empty() && token.empty()) {
      const Status signed_in = co_await sign_in(endpoint);
      if (!signed_in.ok() && signed_in.error().code() == ErrorCode::kFailedPrecondition)
        co_return signed_in.error();
    }
    auto answer = co_await exchange(endpoint, path, text);
    // An idle connection that etcd closed, or a token that it forgot.
    const bool is_stale = !answer.ok() && was_open && !stream;
    if (!answer.ok() && answer.error().code() == ErrorCode::kCancelled && !options.user.empty()) {
      CENTROID_CO_TRY(co_await sign_in(endpoint));
      answer = co_await exchange(endpoint, path, text);
    } else if (is_stale && answer.error().message().find("in time") == std::string::npos) {
      answer = co_await exchange(endpoint, path, text);
    }
    if (answer.ok()) co_return answer;
    if (answer.error().code() == ErrorCode::kCancelled)
      co_return Error(ErrorCode::kFailedPrecondition,
                      answer.error().message() + " (settings etcd.user and etcd.password)");
    if (answer.error().code() != ErrorCode::kUnavailable) co_return answer;
    reasons += (reasons.empty() ? "" : "; ") + answer.error().message();
    stream.reset();
    present = (present + 1) % count;
  }
  co_return Error(ErrorCode::kUnavailable, "no etcd endpoint answers: " + reasons);
}

Task<Result<EtcdClient::Lease>> EtcdClient::grant(Duration ttl) {
  const auto whole = std::chrono::ceil<std::chrono::seconds>(ttl);
  Json body;
  body["TTL"] = whole.count();
  CENTROID_CO_ASSIGN(const Json answer, co_await impl_->call("/v3/lease/grant", body));
  Lease lease;
  lease.id = integer(answer, "ID");
  lease.ttl = std::chrono::seconds(integer(answer, "TTL"));
  if (lease.id == 0 || lease.ttl <= Duration::zero())
    co_return Error(ErrorCode::kUnavailable, "etcd at " + endpoint() + " granted no lease");
  co_return lease;
}

Task<Result<EtcdClient::Lease>> EtcdClient::keep_alive(std::int64_t id) {
  Json body;
  body["ID"] = std::to_string(id);
  CENTROID_CO_ASSIGN(const Json answer, co_await impl_->call("/v3/lease/keepalive", body));
  Lease lease;
  lease.id = id;
  lease.ttl = std::chrono::seconds(integer(member(answer, "result"), "TTL"));
  if (!answer.contains("result"))
    co_return Error(ErrorCode::kUnavailable, "etcd at " + endpoint() + " did not renew the lease");
  co_return lease;
}

Task<Result<EtcdClient::Lease>> EtcdClient::look(std::int64_t id) {
  Json body;
  body["ID"] = std::to_string(id);
  CENTROID_CO_ASSIGN(const Json answer, co_await impl_->call("/v3/lease/timetolive", body));
  Lease lease;
  lease.id = id;
  lease.ttl = std::chrono::seconds(std::max<std::int64_t>(integer(answer, "TTL"), 0));
  lease.granted = std::chrono::seconds(integer(answer, "grantedTTL"));
  co_return lease;
}

Task<Status> EtcdClient::revoke(std::int64_t id) {
  Json body;
  body["ID"] = std::to_string(id);
  const auto answer = co_await impl_->call("/v3/lease/revoke", body);
  if (!answer.ok() && answer.error().code() != ErrorCode::kNotFound) co_return answer.error();
  co_return Status();
}

Task<Result<std::optional<Holder>>> EtcdClient::get(std::string key) {
  Json body;
  body["key"] = to_base64(key);
  CENTROID_CO_ASSIGN(const Json answer, co_await impl_->call("/v3/kv/range", body));
  co_return first_pair(answer);
}

Task<Status> EtcdClient::put(std::string key, std::string value, std::int64_t lease) {
  Json body;
  body["key"] = to_base64(key);
  body["value"] = to_base64(value);
  body["lease"] = std::to_string(lease);
  const auto answer = co_await impl_->call("/v3/kv/put", body);
  if (!answer.ok()) co_return answer.error();
  co_return Status();
}

Task<Result<std::vector<Holder>>> EtcdClient::list(std::string prefix, std::size_t most) {
  Json body;
  body["key"] = to_base64(prefix);
  body["limit"] = std::to_string(most);
  ++prefix.back();  // the first that does not begin with it
  body["range_end"] = to_base64(prefix);
  CENTROID_CO_ASSIGN(const Json answer, co_await impl_->call("/v3/kv/range", body));
  std::vector<Holder> found;
  const auto pairs = answer.find("kvs");
  if (pairs == answer.end() || !pairs->is_array()) co_return found;
  for (const Json& pair : *pairs) {
    CENTROID_CO_ASSIGN(Holder holder, read_pair(pair));
    found.push_back(std::move(holder));
  }
  co_return found;
}

Task<Result<std::optional<Holder>>> EtcdClient::create(std::string key, std::string value,
                                                       std::int64_t lease) {
  Json compare, put, read, body;
  compare["key"] = to_base64(key);
  compare["target"] = "CREATE";
  compare["result"] = "EQUAL";
  compare["create_revision"] = "0";
  put["request_put"]["key"] = to_base64(key);
  put["request_put"]["value"] = to_base64(value);
  put["request_put"]["lease"] = std::to_string(lease);
  read["request_range"]["key"] = to_base64(key);
  body["compare"] = Json::array({compare});
  body["success"] = Json::array({put, read});
  body["failure"] = Json::array({read});
  CENTROID_CO_ASSIGN(const Json answer, co_await impl_->call("/v3/kv/txn", body));
  const auto responses = answer.find("responses");
  if (responses == answer.end() || !responses->is_array() || responses->empty() ||
      !responses->back().is_object())
    co_return Error(ErrorCode::kUnavailable, "etcd at " + endpoint() + " gave no answer to a txn");
  co_return first_pair(member(responses->back(), "response_range"));
}

}  // namespace centroid::server
