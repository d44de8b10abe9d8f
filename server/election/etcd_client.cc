#include "server/election/etcd_client.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <nlohmann/json.hpp>

#include "transport/http/http_client.h"

namespace centroid::server {

namespace {

using Json = nlohmann::json;
using transport::HttpOrigin;

constexpr std::uint64_t kMaxAnswer = 1u << 20;

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// source  RFC 4648, section 4
std::string to_base64(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;  // of bits that are not written yet
  for (const char c : text) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6;) out += kDigits[bits >> (count -= 6) & 63];
  }
  if (count > 0) out += kDigits[bits << (6 - count) & 63];
  while (out.size() % 4 != 0) out += '=';
  return out;
}

Result<std::string> from_base64(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const auto digit = kDigits.find(c);
    if (digit == std::string_view::npos)
      return Error(ErrorCode::kDataLoss, "etcd sent a value that is not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    out += static_cast<char>(bits >> (count -= 8) & 255);
  }
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

}  // namespace

Result<std::vector<std::string>> parse_etcd_endpoints(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    std::string one = list.substr(at, end - at);
    at = end + 1;
    while (!one.empty() && one.back() == '/') one.pop_back();
    const auto origin = HttpOrigin::parse(one);
    if (!origin.ok() || origin->endpoint.port == 0 || one.find('@') != std::string::npos)
      return Error(ErrorCode::kInvalidArgument,
                   "etcd: '" + one +
                       "' is no endpoint: expected http://HOST:PORT or https://HOST:PORT, several "
                       "separated by commas");
    out.push_back(origin->to_string());
  }
  return out;
}

struct EtcdClient::Impl {
  Impl(Executor of, EtcdOptions with) : executor(std::move(of)), options(std::move(with)) {}

  Task<Result<Json>> call(std::string path, Json body);
  Task<Status> connect(std::string endpoint);
  Task<Result<Json>> exchange(std::string endpoint, std::string path, std::string body);
  Task<Status> sign_in(std::string endpoint);
  bool is_open() const { return http && http->is_open(); }

  Executor executor;
  EtcdOptions options;
  std::size_t present = 0;  // index of the endpoint that answered last
  std::optional<transport::HttpClient> http;
  std::string token;
};

EtcdClient::EtcdClient(Executor executor, EtcdOptions options)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(options))) {}
EtcdClient::~EtcdClient() = default;

const std::string& EtcdClient::endpoint() const { return impl_->options.endpoints[impl_->present]; }

namespace {

/// `why`: as of HttpClient.
Error unreachable(const std::string& endpoint, const Error& why) {
  std::string reason = why.message();
  if (why.code() == ErrorCode::kFailedPrecondition)
    reason = "its certificate is not accepted: " + reason + " (etcd.authority)";
  else if (why.code() == ErrorCode::kAborted && reason.find("certificate") != std::string::npos)
    reason += "; it requires a client certificate that it trusts: etcd.certificate and etcd.key";
  else if (why.code() == ErrorCode::kAborted)
    reason += "; does it speak TLS?";
  return Error(ErrorCode::kUnavailable, endpoint + ": " + reason);
}

}  // namespace

Task<Status> EtcdClient::Impl::connect(std::string endpoint) {
  const auto origin = HttpOrigin::parse(endpoint);
  if (is_open() && http->origin() == *origin) co_return Status();
  if (origin->is_secure && !options.tls)
    co_return Error(ErrorCode::kUnavailable,
                    endpoint + ": it requires TLS, and etcd.authority is not set");
  http.emplace(executor, *origin);
  const auto tls = origin->is_secure ? options.tls : nullptr;
  const Status opened = co_await http->open(tls, centroid::now() + options.timeout);
  co_return opened.ok() ? opened : unreachable(endpoint, opened.error());
}

Task<Result<Json>> EtcdClient::Impl::exchange(std::string endpoint, std::string path,
                                              std::string body) {
  CENTROID_CO_TRY(co_await connect(endpoint));
  transport::HttpRequest request;
  request.method = "POST";
  request.target = path;
  request.body = std::move(body);
  request.fields.emplace_back("User-Agent", "centroid-server");
  request.fields.emplace_back("Content-Type", "application/json");
  if (!token.empty()) request.fields.emplace_back("Authorization", token);
  transport::HttpReading reading;
  reading.most_bytes = kMaxAnswer;
  const auto got = co_await http->ask(request, reading, centroid::now() + options.timeout);
  if (!got.ok()) co_return unreachable(endpoint, got.error());
  const unsigned status = got->status;
  Json answer = Json::parse(got->body, nullptr, false);
  if (status == 200 && answer.is_object()) co_return std::move(answer);
  std::string text = "HTTP status " + std::to_string(status);
  if (answer.is_object())
    for (const char* field : {"message", "error"})
      if (const auto at = answer.find(field); at != answer.end() && at->is_string()) {
        text = at->get<std::string>();
        break;
      }
  const std::string what = endpoint + path + ": etcd reports: " + text;
  if (status == 404 && !answer.is_object())
    co_return Error(ErrorCode::kUnavailable,
                    what + "; is this an etcd of version 3.4 or later, on its client port?");
  if (status == 401 || text.find("auth token") != std::string::npos)
    co_return Error(ErrorCode::kCancelled, what);  // of a call that is repeated, once
  if (status == 404) co_return Error(ErrorCode::kNotFound, what);
  if (status == 400 || status == 403)
    co_return Error(ErrorCode::kFailedPrecondition,
                    what + " (settings etcd.user and etcd.password)");
  co_return Error(ErrorCode::kUnavailable, what);
}

Task<Status> EtcdClient::Impl::sign_in(std::string endpoint) {
  token.clear();
  Json login;
  login["name"] = options.user;
  login["password"] = options.password;
  const auto answer = co_await exchange(endpoint, "/v3/auth/authenticate", login.dump());
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
    const bool was_open = is_open();
    if (!options.user.empty() && token.empty()) {
      const Status signed_in = co_await sign_in(endpoint);
      if (!signed_in.ok() && signed_in.error().code() == ErrorCode::kFailedPrecondition)
        co_return signed_in.error();
    }
    auto answer = co_await exchange(endpoint, path, text);
    // An idle connection that etcd closed, or a token that it dropped.
    const bool is_stale = !answer.ok() && was_open && !is_open();
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
    http.reset();
    present = (present + 1) % count;
  }
  co_return Error(ErrorCode::kUnavailable, "no etcd endpoint answers: " + reasons);
}

Task<Result<EtcdClient::Lease>> EtcdClient::grant(Duration ttl) {
  const auto ceiled = std::chrono::ceil<std::chrono::seconds>(ttl);
  Json body;
  body["TTL"] = ceiled.count();
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

Task<Result<EtcdClient::Lease>> EtcdClient::time_to_live(std::int64_t id) {
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
  ++prefix.back();  // the first key after the prefix
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
    co_return Error(ErrorCode::kUnavailable, "etcd at " + endpoint() + " did not answer a txn");
  co_return first_pair(member(responses->back(), "response_range"));
}

}  // namespace centroid::server
