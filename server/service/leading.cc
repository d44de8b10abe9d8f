#include "common/base/log.h"
#include "common/proto/standby.h"
#include "server/service/cluster.h"

/// One server of several: who may lead, and what this one does when it may not
/// (docs/high-availability.md).
namespace centroid::server {

namespace {
/// Between two looks at the fence while it is closed.
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kGoodbye{2};
/// Of what fails as if the lease were late although it is not: its file cannot be read.
constexpr int kTries = 5;
}  // namespace

void Cluster::stand_by(Fence& fence) {
  fence_ = &fence;
  rows_.lead_by([&fence] { return fence.holds(); });
  fence_thread_ = std::make_unique<IoThread>("fence");
  set_phase(Phase::kStandby, leadership_.to_string());
}

bool Cluster::is_deposed() const {
  if (fence_ == nullptr) return false;
  const Status open = fence_->holds();
  return !open.ok() && open.error().code() == ErrorCode::kAborted;
}

void Cluster::set_leadership(Leadership present) {
  if (!fence_) return;
  const auto old = leadership_.role;
  leadership_ = std::move(present);
  if (leadership_.role == Election::Role::kHeld && old == Election::Role::kLeader)
    log::error("leader.held",
               {{"term", leadership_.term},
                {"why", "the lease could not be renewed in etcd: " + leadership_.trouble},
                {"action", "no round is committed until it can"}});
  if (leadership_.role == Election::Role::kLeader && old == Election::Role::kHeld)
    log::info("leader.goes_on", {{"term", leadership_.term}});
  if (phase_ == Phase::kStandby && !is_beginning()) phase_reason_ = leadership_.to_string();
  changed_.notify_all();
}

/// Wait for the lead, if there is an election, then take up the state of before: the ports are open
/// meanwhile, and who comes is told what is waited for. Returns without the lead when a stop was
/// requested.
Task<Status> Cluster::take_the_lead() {
  if (!fence_) {
    if (!is_prepared_) CENTROID_CO_TRY(co_await prepare());
    const double age = std::chrono::duration<double>(clock_.now() - started_).count();
    log::info("server.ready", {{"round", job_.round.value}, {"seconds", age}});
    co_return Status();
  }
  while (leadership_.role == Election::Role::kStandby && !stop_requested_)
    if (!co_await changed_.wait(TimePoint::max())) co_return Status();
  if (stop_requested_) co_return Status();
  has_led_ = true;
  const TimePoint begin = clock_.now();
  log::info("leader.elected", {{"term", leadership_.term}});
  set_phase(phase_, "the state of the leader before is taken up");
  auto take = [fence = fence_]() { return fence->take(); };
  Status taken = co_await act_as_leader(std::move(take));
  if (!taken.ok() && stop_requested_ && !is_deposed()) co_return Status();
  CENTROID_CO_TRY(std::move(taken));
  CENTROID_CO_TRY(co_await prepare());
  set_phase(Phase::kWaiting, "workers come back to this server");
  log::info("leader.began",
            {{"term", leadership_.term},
             {"round", job_.round.value},
             {"seconds", std::chrono::duration<double>(clock_.now() - begin).count()}});
  co_return Status();
}

/// Wait until this server may commit. fails aborted: it never may again, or it is told to stop.
Task<Status> Cluster::may_commit() {
  while (fence_) {
    const Status open = fence_->holds();
    if (open.ok()) co_return open;
    if (open.error().code() == ErrorCode::kAborted) co_return open;
    if (stop_requested_)
      co_return Error(ErrorCode::kAborted, "stopping, and " + open.error().message());
    co_await changed_.wait(clock_.now() + kLook);
  }
  co_return Status();
}

/// On the thread of files, again where the lease was late meanwhile, until it is done.
Task<Status> Cluster::act_as_leader(std::function<Status()> act) {
  for (int tries = 0;;) {
    CENTROID_CO_TRY(co_await may_commit());
    auto next = act;
    Status done = co_await run_on(blocking(), std::move(next));
    const bool is_held =
        fence_ != nullptr && !done.ok() && done.error().code() == ErrorCode::kUnavailable;
    if (!is_held || stop_requested_) co_return done;
    if (fence_->holds().ok() && ++tries > kTries) co_return done;
    if (is_beginning()) set_phase(phase_, done.error().message());
    if (!co_await sleep_until(clock_.now() + kLook)) co_return done;
  }
}

/// Why this leader may not act now; nothing when it may, or is no leader.
std::optional<Error> Cluster::held() const {
  if (fence_ == nullptr || phase_ == Phase::kStandby) return std::nullopt;
  const Status open = fence_->holds();
  if (open.ok()) return std::nullopt;
  return open.error();
}

/// Of a deposed server: to the leader, where it is known.
Task<void> Cluster::send_workers_away() {
  const bool is_known = leadership_.role == Election::Role::kDeposed;
  const Error where =
      proto::standby_error(is_known ? leadership_.leader : "", is_known ? leadership_.data : "");
  for (const auto& [id, link] : links_) link->tasks->spawn(link->session->goodbye(where));
  const TimePoint limit = clock_.now() + kGoodbye;
  while (!links_.empty() && clock_.now() < limit) co_await changed_.wait(limit);
}

/// Where the lease is late it is waited for, after a stop not for long.
Task<void> Cluster::write_last_checkpoint() {
  std::optional<TimePoint> limit;
  const auto may_wait = [&] {
    if (stop_requested_ && !limit) limit = clock_.now() + config_.drain_timeout;
    return clock_.now() < limit.value_or(TimePoint::max());
  };
  int tries = 0;
  while (needs_checkpoint() && !is_deposed()) {
    const auto written = co_await write_checkpoint(false);
    if (written.ok()) co_return;
    const bool is_held = fence_ != nullptr && written.error().code() == ErrorCode::kUnavailable;
    if (!is_held || !may_wait() || (fence_->holds().ok() && ++tries > kTries)) {
      tell(events_, log::Level::kError, "checkpoint.failed",
           {{"why", written.error()}, {"when", "at the end"}});
      co_return;
    }
    log::warn("checkpoint.waits", {{"why", written.error()}, {"action", "it is tried again"}});
    do {
      co_await changed_.wait(clock_.now() + kLook);
    } while (!fence_->holds().ok() && !is_deposed() && may_wait());
  }
}

bool Cluster::is_beginning() const { return !is_prepared_ && (fence_ == nullptr || has_led_); }

Status Cluster::check_lead() const {
  if (is_beginning()) return proto::not_yet_error("the server begins: " + phase_reason_);
  if (phase_ != Phase::kStandby) return {};
  return proto::standby_error(leadership_.leader, leadership_.data);
}

}  // namespace centroid::server
