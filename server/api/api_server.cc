#include "server/api/api_server.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <list>
#include <optional>
#include <utility>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>

#include "common/async/task_group.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "server/api/api_metrics.h"
#include "server/api/audit_log.h"
#include "server/api/audit_trail.h"
#include "server/api/event_feed.h"
#include "server/api/idempotent_calls.h"
#include "server/api/pending_answers.h"
#include "server/api/problem.h"
#include "server/api/rate_table.h"
#include "server/api/routes.h"

namespace centroid::server {

namespace {

namespace asio = boost::asio;

/// Of one address's refused requests, at most this many a second are logged.
constexpr double kRefusalsPerSecond = 1.0 / 60;
constexpr double kHandshakes = 0.2;  ///< share of an address's request rate
/// Between two checks for tokens that other servers made or revoked.
constexpr std::chrono::seconds kFollow{1};

/// One call of the ControlPlane; outlives its connection if the deadline passes first.
struct Running {
  Running(const Executor& executor, TimePoint deadline) : done(executor, deadline) {}
  asio::cancellation_signal cancel;
  Timer done;
  std::optional<HttpResponse> response;
  bool is_abandoned = false;
};

std::string path_of(const HttpRequest& request) {
  return request.target.substr(0, request.target.find('?'));
}

/// Prefix of request ids; another one for each start of the server.
std::string draw_prefix() {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(random_seed()));
  return text;
}

}  // namespace

struct ApiServer::Impl final : transport::HttpService {
  Impl(Executor executor_, ApiOptions options_, ControlPlane& control, metrics::Registry& registry,
       std::unique_ptr<TokenStore> tokens_, std::unique_ptr<AuditLog> audit_)
      : executor(std::move(executor_)),
        options(std::move(options_)),
        metrics(registry),
        feed(executor, control.events(), metrics.dropped_lagging, options.heartbeat),
        tokens(std::move(tokens_)),
        audit(std::move(audit_)),
        control_plane(control),
        services{control,          registry,   feed,  *tokens,   *audit,
                 options.blocking, is_tracing, pulse, host_files},
        answers(options.max_pending_bytes, metrics),
        group(executor),
        trail(executor, group, options.blocking, *audit, feed, metrics),
        changed(executor),
        server(executor, *this, options, options.tls, "centroid", metrics.http) {}

  Task<HttpResponse> answer(HttpRequest request) override;
  std::optional<HttpResponse> refuse_body(const HttpRequest& head) override;
  HttpResponse refuse(unsigned status, const std::string& detail, const std::string& path) override;
  bool may_shake_hands(const std::string& address) override;

  void show();
  double handshakes_per_second() const {
    return std::max(kHandshakes * options.requests_per_second, 2.0);
  }
  Status listen();
  Task<void> follow_tokens();
  std::optional<HttpResponse> check_rate(const HttpRequest& request);
  Task<HttpResponse> run_bounded(Call call);
  Task<void> ping(Pulse::Answered answered);
  void note_refusal(const HttpRequest& request, const CheckedRequest& checked);
  void hold(HttpResponse& response, const Caller& caller, const HttpRequest& request);
  Task<void> stop();

  Executor executor;
  ApiOptions options;
  AccessPolicy policy;
  ApiMetrics metrics;
  EventFeed feed;
  std::unique_ptr<TokenStore> tokens;
  std::unique_ptr<AuditLog> audit;
  RateTable rates, handshakes, logged_refusals;
  transport::LineBudget lines;  ///< about strangers
  IdempotentCalls repeated{options.max_idempotency_keys, options.idempotency_lifetime};
  const IdempotentCalls::Act act = [this](Call call) { return run_bounded(std::move(call)); };
  bool is_tracing = false;
  ControlPlane& control_plane;
  Pulse pulse{[this](Pulse::Answered answered) { group.spawn(ping(std::move(answered))); },
              options.hang_after};
  const HostFiles host_files{options.state_dir, options.certificates};
  Services services;
  PendingAnswers answers;  ///< outlives connections and calls
  transport::Endpoint bound;
  TaskGroup group;
  AuditTrail trail;
  std::list<std::shared_ptr<Running>> running;
  std::size_t abandoned = 0;
  const std::string request_prefix = draw_prefix();
  std::uint64_t requests = 0;
  Event changed;               ///< a call ended, or the server stops
  bool is_stopping = false;    ///< nothing new is accepted
  bool is_cancelling = false;  ///< the grace is over
  bool is_stopped = false;
  transport::HttpServer server;
};

/// Budgets, where nothing else shows them.
void ApiServer::Impl::show() {
  metrics.requests.limit.set(options.requests_per_second);
  metrics.handshakes.limit.set(options.requests_per_second <= 0 ? 0 : handshakes_per_second());
  metrics.lines.show(lines.used(centroid::now()), lines.burst());
  metrics.audit_lines.limit.set(transport::LineBudget::kBurst);
  metrics.audit_bytes.show(audit->bytes(), audit->limit_bytes());
}

Status ApiServer::Impl::listen() {
  auto found = server.listen(options.endpoint);
  if (!found.ok()) return std::move(found).error().with_context("--api.listen");
  bound = std::move(found).value();
  policy.is_loopback = bound.is_loopback();
  if (!policy.is_loopback && options.token.empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "--api.listen " + options.endpoint.to_string() +
                     " is reachable from other machines and there is no token: set "
                     "--api.token-file FILE, or listen on 127.0.0.1");
  policy.token = options.token;
  policy.viewer_token = options.viewer_token;
  policy.host = options.endpoint.host;
  policy.tokens = tokens.get();
  return {};
}

/// For several servers with one folder.
Task<void> ApiServer::Impl::follow_tokens() {
  std::string trouble;
  while (!is_stopping) {
    const TimePoint next = centroid::now() + kFollow;
    while (!is_stopping && centroid::now() < next) co_await changed.wait(next);
    auto look = [store = tokens.get()] { return store->refresh(); };
    const Status seen = co_await run_on(options.blocking, std::move(look));
    const std::string now = seen.ok() ? "" : seen.error().message();
    if (now != trouble && !now.empty())
      log::error("tokens.read_failed",
                 {{"why", now}, {"action", "the tokens read before stay valid"}});
    trouble = now;
  }
}

bool ApiServer::Impl::may_shake_hands(const std::string& address) {
  if (options.requests_per_second <= 0) return true;
  // Probes share an address with other clients behind the same node.
  const double most = handshakes_per_second();
  const Duration wait = handshakes.take(client_of(address), centroid::now(), most);
  if (wait > Duration::zero()) metrics.handshakes.refused.add();
  return wait == Duration::zero();
}

HttpResponse ApiServer::Impl::refuse(unsigned status, const std::string& detail,
                                     const std::string& path) {
  metrics.count(nullptr, status, 0);
  if (status == 503)
    return make_problem(status, ErrorCode::kResourceExhausted,
                        detail + ", or raise api.max_connections", path);
  return make_problem(status, ErrorCode::kInvalidArgument, detail, path);
}

/// Nobody without a token has a body read: it would cost memory before anything is known of its
/// sender.
std::optional<HttpResponse> ApiServer::Impl::refuse_body(const HttpRequest& head) {
  CheckedRequest checked = admit(policy, head);
  if (checked.caller.role != Role::kAnyone) return std::nullopt;
  if (auto refused = check_rate(head)) {
    metrics.count(nullptr, refused->status, 0);
    return refused;
  }
  if (!checked.response)  // of a probe, which is a GET
    checked.response = make_problem(400, ErrorCode::kInvalidArgument,
                                    head.method + " takes no body", path_of(head));
  note_refusal(head, checked);
  HttpResponse response = std::move(*checked.response);
  response.fields.emplace_back("X-Request-Id", request_prefix + "-" + std::to_string(++requests));
  metrics.count(checked.route, response.status, 0);
  return response;
}

Task<HttpResponse> ApiServer::Impl::answer(HttpRequest request) {
  const auto begun = centroid::now();
  show();
  if (auto refused = check_rate(request)) {
    metrics.count(nullptr, refused->status, 0);
    co_return std::move(*refused);
  }
  CheckedRequest checked = admit(policy, request);
  if (checked.response) note_refusal(request, checked);
  HttpResponse response;
  std::string id = checked.call ? checked.call->request_id : std::string();
  if (id.empty()) id = request_prefix + "-" + std::to_string(++requests);
  if (checked.call) checked.call->request_id = id;
  const bool is_safe =
      request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS";
  if (checked.response)
    response = std::move(*checked.response);
  else
    response = co_await repeated.run(std::move(*checked.call), act);
  // Every change that an authenticated caller requests is in the audit log, also a refused one.
  if (!is_safe && checked.caller.role != Role::kAnyone)
    co_await trail.record(request, checked.caller, id, response);
  hold(response, checked.caller, request);
  response.fields.emplace_back("X-Request-Id", id);
  metrics.count(checked.route, response.status,
                std::chrono::duration<double>(centroid::now() - begun).count());
  co_return response;
}

Task<void> ApiServer::Impl::ping(Pulse::Answered answered) {
  co_await control_plane.ping();
  answered();
}

/// Count refused requests, and warn, but not about each of a caller's guesses.
void ApiServer::Impl::note_refusal(const HttpRequest& request, const CheckedRequest& checked) {
  const unsigned status = checked.response->status;
  const bool is_role = status == 403 && checked.caller.role != Role::kAnyone;
  if (status != 401 && !is_role) return;
  const bool has_token = request.field("authorization") != nullptr;
  (is_role     ? metrics.refused_role
   : has_token ? metrics.refused_unknown_token
               : metrics.refused_no_token)
      .add();
  const std::string client = client_of(request.address);
  const TimePoint now = centroid::now();
  const bool is_due = logged_refusals.take(client, now, kRefusalsPerSecond) == Duration::zero();
  if (!is_due) lines.leave_out();
  const auto why = !is_due ? std::nullopt
                           : lines.take(is_role ? "the token '" + checked.caller.name + "' may not"
                                        : has_token ? "the token is unknown or expired"
                                                    : "the request has no token",
                                        now);
  if (!why) {
    metrics.lines.refused.add();
    return;
  }
  log::warn("api.refused", {{"address", request.address},
                            {"method", transport::shortened(request.method, 16)},
                            {"path", transport::shortened(path_of(request), 128)},
                            {"status", status},
                            {"why", *why}});
}

/// Bound the memory of an answer while its client reads it; a stream ends with its token.
void ApiServer::Impl::hold(HttpResponse& response, const Caller& caller,
                           const HttpRequest& request) {
  if (request.method == "HEAD") return;
  HttpRequest credentials;
  if (const std::string* sent = request.field("authorization"))
    credentials.fields.emplace_back("authorization", *sent);
  auto is_allowed = [this, caller, credentials] {
    const Identity now = identify(policy, credentials, "/");
    return !now.problem && now.caller.name == caller.name && now.caller.role >= caller.role;
  };
  answers.take(response, caller, options.max_streams,
               std::string_view(request.target).substr(0, request.target.find('?')),
               std::move(is_allowed));
}

/// Liveness only: a supervisor that received 429 instead would end the server, and many clients may
/// share one address.
bool is_liveness_probe(const HttpRequest& request) {
  const auto path = std::string_view(request.target).substr(0, request.target.find('?'));
  return path == "/livez" || path == "/healthz";
}

/// 429 for an address with too many requests.
std::optional<HttpResponse> ApiServer::Impl::check_rate(const HttpRequest& request) {
  if (options.requests_per_second <= 0 || is_liveness_probe(request)) return std::nullopt;
  const std::string client = client_of(request.address);
  const Duration wait = rates.take(client, centroid::now(), options.requests_per_second);
  if (wait == Duration::zero()) return std::nullopt;
  metrics.requests.refused.add();
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(wait).count();
  char most[32];
  std::snprintf(most, sizeof most, "%g", options.requests_per_second);
  auto response = make_problem(429, ErrorCode::kResourceExhausted,
                               client + " sent more than " + most + " requests a second (api.rate)",
                               request.target.substr(0, request.target.find('?')));
  for (auto& [name, value] : response.fields)
    if (name == "Retry-After") value = std::to_string(seconds);
  response.fields.emplace_back("X-Request-Id", request_prefix + "-" + std::to_string(++requests));
  return response;
}

/// Whether a route calls the ControlPlane: probes and metrics are answered from memory, at any
/// time.
bool waits(const Route& route) {
  return route.path != "/livez" && route.path != "/healthz" && route.path != "/metrics";
}

/// Run a call under its deadline. A call that does not end then is cancelled and abandoned, in
/// bounded number.
Task<HttpResponse> ApiServer::Impl::run_bounded(Call call) {
  const std::string instance = call.instance;
  if (waits(*call.route) && abandoned >= options.max_abandoned)
    co_return make_problem(503, ErrorCode::kResourceExhausted,
                           std::to_string(abandoned) +
                               " earlier requests passed their deadline and have not ended: "
                               "api.deadline_passed in the "
                               "log names them; mostly the disk of run_dir does not answer",
                           instance);
  const auto limit =
      call.route->span == Span::kCheckpoint ? options.checkpoint_timeout : options.call_timeout;
  const auto self = std::make_shared<Running>(executor, centroid::now() + limit);
  const auto at = running.insert(running.end(), self);
  auto ended = [this, at, self, instance](std::exception_ptr failure, HttpResponse response) {
    if (failure)
      response = make_problem(500, ErrorCode::kInternal, "the server failed to answer", instance);
    self->response = std::move(response);
    self->done.cancel();
    if (self->is_abandoned) --abandoned;
    running.erase(at);
    changed.notify_all();
  };
  asio::co_spawn(executor, run_call(services, std::move(call)),
                 asio::bind_cancellation_slot(self->cancel.slot(), std::move(ended)));
  while (!self->response && !is_cancelling && centroid::now() < self->done.expiry()) {
    const auto [ec] = co_await self->done.async_wait(kAwait);
    (void)ec;
  }
  if (self->response) co_return std::move(*self->response);
  self->is_abandoned = true;
  ++abandoned;
  self->cancel.emit(asio::cancellation_type::terminal);
  if (is_cancelling)
    co_return make_problem(503, ErrorCode::kCancelled, "the server is stopping", instance);
  log::warn("api.deadline_passed", {{"path", instance}, {"limit_ms", limit.count()}});
  const std::string detail =
      "no answer within " + std::to_string(limit.count()) +
      " ms; the action may still happen: see `centroidctl audit` and `status` (GET /v1/audit, "
      "/v1/cluster); `centroidctl waits` (GET /v1/waits) shows what the job waits for";
  co_return make_problem(504, ErrorCode::kDeadlineExceeded, detail, instance);
}

Task<void> ApiServer::Impl::stop() {
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  if (is_stopping) {
    while (!is_stopped) co_await changed.wait(TimePoint::max());  // lint-ok: cancellation is off
    co_return;
  }
  is_stopping = true;
  changed.notify_all();
  feed.close();
  co_await server.close(options.stop_grace);
  is_cancelling = true;
  for (const auto& call : running) call->done.cancel();
  co_await server.join();
  co_await group.join();
  // Abandoned calls still use the ControlPlane.
  while (!running.empty()) co_await changed.wait(TimePoint::max());  // lint-ok: cancellation is off
  is_stopped = true;
  changed.notify_all();
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ApiServer::~ApiServer() { CENTROID_CHECK(impl_->group.size() == 0 && impl_->running.empty()); }

Result<std::unique_ptr<ApiServer>> ApiServer::start(Executor executor, ApiOptions options,
                                                    ControlPlane& control,
                                                    metrics::Registry& registry) {
  if (!options.viewer_token.empty() &&
      (options.token.empty() || options.token == options.viewer_token))
    return Error(
        ErrorCode::kInvalidArgument,
        "api.viewer_token may only read: it needs an api.token beside it, and another one");
  for (const char c : options.token + options.viewer_token)
    if (c <= 0x20 || c >= 0x7f)
      return Error(ErrorCode::kInvalidArgument,
                   "API token: expected printable ASCII without spaces");
  if (options.header_limit_bytes == 0 || options.max_connections == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "API limits: expected at least 1 connection and 1 byte of header");
  if (!options.blocking) options.blocking = executor;
  const std::string& state = options.state_dir;
  CENTROID_ASSIGN(auto tokens, TokenStore::open(state.empty() ? "" : state + "/tokens.json"));
  CENTROID_ASSIGN(auto audit,
                  AuditLog::open(state.empty() ? "" : state + "/audit.jsonl", options.state_name));
  auto impl = std::make_unique<Impl>(std::move(executor), std::move(options), control, registry,
                                     std::move(tokens), std::move(audit));
  CENTROID_TRY(impl->listen());
  log::info("api.opened", {{"host", impl->bound.host},
                           {"port", impl->bound.port},
                           {"token", !impl->policy.token.empty()}});
  impl->server.start();
  if (!impl->options.state_name.empty()) impl->group.spawn(impl->follow_tokens());
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

bool ApiServer::may_join(std::string_view secret) const {
  const auto found = impl_->tokens->find(secret);
  return found && found->role >= Role::kWorker;
}

std::vector<TokenDigest> ApiServer::joining_tokens() const {
  return impl_->tokens->digests(Role::kWorker);
}

void ApiServer::set_limits(const ApiLimits& limits) {
  asio::post(impl_->executor,
             [impl = impl_.get(), limits] { static_cast<ApiLimits&>(impl->options) = limits; });
}

transport::Endpoint ApiServer::endpoint() const { return impl_->bound; }

Task<void> ApiServer::stop() {
  co_await asio::co_spawn(impl_->executor, impl_->stop(), asio::use_awaitable);
}

}  // namespace centroid::server
