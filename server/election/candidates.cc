#include "server/election/candidates.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/log.h"

namespace centroid::server {

namespace {
/// More servers than any cluster has; other keys there are not ours.
constexpr std::size_t kMost = 64;

}  // namespace

std::string encode_candidate(const Candidate& candidate) {
  nlohmann::json value;
  value["name"] = candidate.name;
  value["data"] = candidate.data;
  value["api"] = candidate.api;
  value["version"] = candidate.version;
  return value.dump();
}

std::optional<Candidate> decode_candidate(const std::string& text) {
  const auto value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_object()) return {};
  const auto field = [&](const char* name) {
    const auto at = value.find(name);
    return at != value.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  Candidate out;
  out.name = field("name");
  out.data = field("data");
  out.api = field("api");
  out.version = field("version");
  if (out.name.empty()) return {};
  return out;
}

Candidates::Candidates(Executor executor, Options options,
                       std::function<void(std::vector<Candidate>)> publish)
    : options_(std::move(options)),
      publish_(std::move(publish)),
      etcd_(options_.connect(executor)),
      stop_(executor) {}

void Candidates::stop() {
  stopping_ = true;
  stop_.notify_all();
}

Task<Status> Candidates::announce() {
  if (lease_ != 0) {
    CENTROID_CO_ASSIGN(const auto renewed, co_await etcd_->keep_alive(lease_));
    if (renewed.ttl > Duration::zero()) co_return Status();
  }
  CENTROID_CO_ASSIGN(const auto granted, co_await etcd_->grant(options_.entry_ttl));
  const Status added = co_await etcd_->put(options_.prefix + options_.self.name,
                                           encode_candidate(options_.self), granted.id);
  if (added.ok()) lease_ = granted.id;
  co_return added;
}

Task<Result<std::vector<Candidate>>> Candidates::list_live() {
  CENTROID_CO_ASSIGN(const auto held, co_await etcd_->list(options_.prefix, kMost));
  std::vector<Candidate> found;
  bool is_there = false;
  for (const Holder& one : held) {
    auto candidate = decode_candidate(one.value);
    if (!candidate) continue;
    is_there = is_there || one.lease == lease_;
    if (stopping_) co_return Error(ErrorCode::kCancelled, "this server ends");
    CENTROID_CO_ASSIGN(const auto lease, co_await etcd_->time_to_live(one.lease));
    if (lease.ttl <= Duration::zero()) continue;
    const auto ago = std::max(Duration::zero(), lease.granted - lease.ttl);
    candidate->seen_unix_seconds =
        SystemClock().unix_seconds() - std::chrono::duration<double>(ago).count();
    found.push_back(std::move(*candidate));
  }
  if (!is_there) lease_ = 0;  // the key was deleted: create it again
  std::ranges::sort(found, {}, &Candidate::name);
  co_return found;
}

Task<void> Candidates::run() {
  while (!stopping_) {
    Status status = co_await announce();
    if (status.ok() && !stopping_) {
      auto found = co_await list_live();
      if (found.ok())
        publish_(std::move(found).value());
      else
        status = found.error();
    }
    if (!status.ok() && is_listed_ && !stopping_)
      log::warn("candidates.update_failed", {{"why", status.error()},
                                             {"action",
                                              "this server is not listed as a standby until etcd "
                                              "accepts the entry; it may still become leader"}});
    is_listed_ = status.ok();
    const TimePoint next = now() + options_.every;
    while (!stopping_ && now() < next) co_await stop_.wait(next);
  }
  if (lease_ != 0 && is_listed_) (void)co_await etcd_->revoke(lease_);
}

}  // namespace centroid::server
