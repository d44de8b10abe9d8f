#include "server/api/audit_trail.h"

#include <algorithm>

#include <boost/asio/this_coro.hpp>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "server/api/when_free.h"

namespace centroid::server {

namespace {

constexpr std::chrono::seconds kPatience{1};
constexpr std::size_t kMaxWriting = 1000, kMaxCallers = 1000;

/// The detail of a problem, or "ok".
std::string outcome_of(const HttpResponse& response) {
  if (response.status < 400) return "ok";
  const auto problem = nlohmann::json::parse(response.body, nullptr, false);
  return problem.is_object() ? problem.value("detail", "") : "";
}

/// A setting that may be changed is no secret. A refused one may be, also by a misspelt name.
std::string body_of(const HttpRequest& request, const HttpResponse& response) {
  const bool is_config =
      request.method == "PATCH" || request.target.find("config") != std::string::npos;
  if (!is_config || response.status < 400 || request.body.empty()) return request.body;
  // The value of a setting may be nested; recursing into it could overflow the stack, and it is not
  // recorded.
  const auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return depth <= 1;
  };
  auto body = nlohmann::json::parse(request.body, shallow, false);
  if (!body.is_object()) return "(" + std::to_string(request.body.size()) + " bytes)";
  for (auto& value : body) value = "***";
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

AuditTrail::AuditTrail(Executor executor, TaskGroup& group, Executor blocking, AuditLog& log,
                       EventFeed& feed, ApiMetrics& metrics)
    : group_(group),
      blocking_(std::move(blocking)),
      log_(log),
      feed_(feed),
      metrics_(metrics),
      written_(std::move(executor)) {}

Task<void> AuditTrail::record(HttpRequest request, Caller caller, std::string id,
                              HttpResponse response) {
  std::string outcome = outcome_of(response);
  if (response.status >= 400) {
    if (refused_.size() >= kMaxCallers && !refused_.contains(caller.name)) refused_.clear();
    auto text = refused_[caller.name].take(outcome, centroid::now());
    if (!text) {
      metrics_.audit_lines.refused.add();
      co_return;
    }
    outcome = std::move(*text);
  }
  AuditEntry entry;
  entry.unix_seconds = SystemClock().unix_seconds();
  entry.caller = caller.name;
  entry.role = to_string(caller.role);
  entry.address = request.address;
  entry.method = transport::shortened(request.method, 16);
  entry.path = transport::shortened(request.target, 256);
  entry.body = body_of(request, response);
  entry.request_id = id;
  entry.status = response.status;
  entry.outcome = std::move(outcome);
  tell(feed_.events(), log::Level::kInfo, "audit.recorded",
       {{"caller", entry.caller},
        {"role", entry.role},
        {"address", entry.address},
        {"method", entry.method},
        {"path", entry.path},
        {"request_id", entry.request_id},
        {"status", entry.status},
        {"outcome", entry.outcome}});
  const auto mine = std::make_shared<const AuditEntry>(std::move(entry));
  const auto is_written = std::make_shared<bool>(false);
  ++writing_;
  group_.spawn(append(mine, is_written));
  const TimePoint limit = centroid::now() + kPatience;
  while (!*is_written && (centroid::now() < limit || writing_ > kMaxWriting))
    co_await written_.wait(std::max(limit, centroid::now() + std::chrono::milliseconds(100)));
  if (!*is_written)
    log::warn("audit.stalled", {{"request_id", id}, {"why", "the disk of run_dir"}});
}

/// Continues until it is written, whatever happens to the request.
Task<void> AuditTrail::append(std::shared_ptr<const AuditEntry> entry,
                              std::shared_ptr<bool> is_written) {
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  std::function<Status()> append = [this, entry] { return log_.append(*entry, true); };
  Status written = co_await when_free(blocking_, std::move(append));
  if (!written.ok() && written.error().code() == ErrorCode::kUnavailable) {
    auto anyhow = [this, entry] { return log_.append(*entry); };
    written = co_await run_on(blocking_, std::move(anyhow));
  }
  if (!written.ok()) {
    metrics_.audit_failures.add();
    log::error("audit.failed", {{"error", written.error()}, {"request_id", entry->request_id}});
  }
  --writing_;
  *is_written = true;
  written_.notify_all();
}

}  // namespace centroid::server
