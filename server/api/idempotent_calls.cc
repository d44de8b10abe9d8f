#include "server/api/idempotent_calls.h"

#include <algorithm>
#include <utility>

#include "server/api/problem.h"
#include "server/tokens/digest.h"

namespace centroid::server {

namespace {

HttpResponse unknown_outcome(const std::string& instance) {
  return make_problem(409, ErrorCode::kAborted,
                      "the request with this Idempotency-Key had no answer in time: check its "
                      "effect, and use a new key to repeat it",
                      instance);
}

HttpResponse replayed(HttpResponse response) {
  response.fields.emplace_back("Idempotency-Replayed", "true");
  return response;
}

bool is_key(const std::string& key) {
  constexpr std::size_t kLongest = 128;
  const auto is_printable = [](char c) { return c > 0x20 && c < 0x7f; };
  return !key.empty() && key.size() <= kLongest && std::ranges::all_of(key, is_printable);
}

}  // namespace

/// A call with a known Idempotency-Key gets the earlier answer.
Task<HttpResponse> IdempotentCalls::run(Call call, const Act& act) {
  const std::string* const key = call.request.field("idempotency-key");
  if (key == nullptr || call.route->method == "GET") co_return co_await act(std::move(call));
  const std::string instance = call.instance;
  if (!is_key(*key))
    co_return make_problem(400, ErrorCode::kInvalidArgument,
                           "Idempotency-Key: expected 1 to 128 printable characters of ASCII",
                           instance);
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
      co_return make_problem(422, ErrorCode::kInvalidArgument,
                             "another request had this Idempotency-Key: use a new one", instance);
    case IdempotencyTable::Verdict::kFull:
      co_return make_problem(503, ErrorCode::kResourceExhausted,
                             "too many requests with an Idempotency-Key are running", instance);
  }
  HttpResponse response = co_await act(std::move(call));
  // A call that was not executed may be repeated with the same key; the effect of one without an
  // answer in time is unknown.
  if (response.status == 504)
    table_.finish(name, unknown_outcome(instance));
  else if (response.status >= 500 || response.status == 429)
    table_.forget(name);
  else
    table_.finish(name, response);
  co_return response;
}

}  // namespace centroid::server
