#include "server/api/idempotent_calls.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/api/problem.h"
#include "server/api/when_free.h"
#include "server/tokens/digest.h"

namespace centroid::server {

namespace {

/// What of an answer may lie on the disk: no secret, which is shown once.
HttpResponse kept_form(const Route& route, const HttpResponse& response) {
  if (!route.has_secret || response.status >= 300) return response;
  return make_problem(409, ErrorCode::kAlreadyExists,
                      "the request with this Idempotency-Key was done before the server was "
                      "restarted, and its secret is not kept: revoke it, and take a new key",
                      route.path);
}

HttpResponse unknown_outcome(const std::string& what, const std::string& instance) {
  return make_problem(409, ErrorCode::kAborted,
                      what + ": look whether it was done, and take a new key if not", instance);
}

HttpResponse of_another_request(const std::string& instance) {
  return make_problem(422, ErrorCode::kInvalidArgument,
                      "this Idempotency-Key came with another request before: take a new one",
                      instance);
}

constexpr const char* kReplayed = "Idempotency-Replayed";

HttpResponse replayed(HttpResponse response) {
  response.fields.emplace_back(kReplayed, "true");
  return response;
}

bool is_key(const std::string& key) {
  constexpr std::size_t kLongest = 128;
  const auto is_printable = [](char c) { return c > 0x20 && c < 0x7f; };
  return !key.empty() && key.size() <= kLongest && std::ranges::all_of(key, is_printable);
}

}  // namespace

Result<std::unique_ptr<IdempotentCalls>> IdempotentCalls::open(std::string path, Executor blocking,
                                                               std::size_t most,
                                                               std::chrono::milliseconds lifetime) {
  CENTROID_ASSIGN(auto log, IdempotencyLog::open(std::move(path), SystemClock().unix_seconds(),
                                                 std::chrono::duration<double>(lifetime).count()));
  return std::unique_ptr<IdempotentCalls>(
      new IdempotentCalls(std::move(blocking), most, lifetime, std::move(log)));
}

/// Keys of an earlier life of this server. A request that had no answer then may have been done.
IdempotentCalls::IdempotentCalls(Executor blocking, std::size_t most, Duration lifetime,
                                 std::unique_ptr<IdempotencyLog> log)
    : blocking_(std::move(blocking)), log_(std::move(log)), table_(most, lifetime) {
  const TimePoint now = centroid::now();
  const double now_unix = SystemClock().unix_seconds();
  for (IdempotencyLog::Kept& one : log_->take_kept()) {
    const std::chrono::duration<double> age(std::max(0.0, now_unix - one.begun_unix_seconds));
    const TimePoint begun = now - std::chrono::duration_cast<Duration>(age);
    if (!one.response)
      one.response = unknown_outcome(
          "the server ended before it had answered the request with this Idempotency-Key", "/");
    table_.restore(one.key, one.request, begun, std::move(*one.response));
  }
}

Task<void> IdempotentCalls::keep(std::function<Status()> write) {
  const Status written = co_await run_on(blocking_, std::move(write));
  if (!written.ok()) log::error("idempotency.failed", {{"error", written.error()}});
}

/// Make a key that this server does not know its own, or take over what another one answered to it.
/// An answer: it is not to be done here.
Task<std::optional<HttpResponse>> IdempotentCalls::claim(std::string key, std::string same,
                                                         std::string instance) {
  using Kept = std::optional<IdempotencyLog::Kept>;
  const double now = SystemClock().unix_seconds();
  std::function<Result<Kept>()> take = [log = log_.get(), key, same, now] {
    return log->claim(key, same, now);
  };
  auto taken = co_await when_free(blocking_, std::move(take));
  if (!taken->ok() && taken->error().code() == ErrorCode::kUnavailable) {
    table_.forget(key);
    co_return make_problem(taken->error(), instance);
  }
  if (!taken->ok()) log::error("idempotency.failed", {{"error", taken->error()}});
  if (!taken->ok() || !**taken) co_return std::nullopt;
  IdempotencyLog::Kept& found = ***taken;
  table_.forget(key);
  if (!found.response)
    co_return make_problem(
        409, ErrorCode::kAborted,
        "another server has begun the request with this Idempotency-Key and not answered it: "
        "repeat it; if that server is gone look whether it was done, and take a new key if not",
        instance);
  const std::chrono::duration<double> age(std::max(0.0, now - found.begun_unix_seconds));
  const TimePoint begun = centroid::now() - std::chrono::duration_cast<Duration>(age);
  table_.restore(key, found.request, begun, std::move(*found.response));
  const auto again = table_.begin(key, same, centroid::now());
  if (again.verdict == IdempotencyTable::Verdict::kReplay) co_return replayed(*again.response);
  co_return of_another_request(instance);
}

/// A call with an Idempotency-Key that was run before gets the answer of then.
Task<HttpResponse> IdempotentCalls::run(Call call, const Act& act) {
  const std::string* const key = call.request.field("idempotency-key");
  if (key == nullptr || call.route->method == "GET") co_return co_await act(std::move(call));
  const std::string instance = call.instance;
  if (!is_key(*key))
    co_return make_problem(400, ErrorCode::kInvalidArgument,
                           "Idempotency-Key: expected 1 to 128 printable characters of ASCII",
                           instance);
  const Route& route = *call.route;
  const std::string name = call.caller.name + " " + *key;
  const std::string same =
      call.request.method + " " + call.request.target + " " + sha256(call.request.body);
  auto found = table_.begin(name, same, centroid::now());
  switch (found.verdict) {
    case IdempotencyTable::Verdict::kNew:
      break;
    case IdempotencyTable::Verdict::kReplay:
      co_return replayed(*found.response);
    case IdempotencyTable::Verdict::kRunning:
      co_return make_problem(409, ErrorCode::kAborted,
                             "the request with this Idempotency-Key has no answer yet: repeat it",
                             instance);
    case IdempotencyTable::Verdict::kOther:
      co_return of_another_request(instance);
    case IdempotencyTable::Verdict::kFull:
      co_return make_problem(503, ErrorCode::kResourceExhausted,
                             "too many requests with an Idempotency-Key are running", instance);
  }
  auto elsewhere = co_await claim(name, same, instance);
  if (elsewhere) co_return std::move(*elsewhere);
  HttpResponse response = co_await act(std::move(call));
  // What was not done may be tried again with the same key; of what had no answer in time nobody
  // knows.
  if (response.status == 504) {
    HttpResponse unknown = unknown_outcome(
        "the request with this Idempotency-Key had no answer in "
        "time",
        instance);
    table_.finish(name, unknown);
    auto finish = [this, name, unknown] { return log_->finish(name, unknown); };
    co_await keep(std::move(finish));
  } else if (response.status >= 500 || response.status == 429) {
    table_.forget(name);
    auto forget = [this, name] { return log_->forget(name); };
    co_await keep(std::move(forget));
  } else {
    table_.finish(name, response);
    auto finish = [this, name, kept = kept_form(route, response)] {
      return log_->finish(name, kept);
    };
    co_await keep(std::move(finish));
  }
  co_return response;
}

}  // namespace centroid::server
