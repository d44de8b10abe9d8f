#include "server/service/leader_gate.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/refusal.h"
#include "server/service/waits.h"

namespace centroid::server {

namespace {
/// Of what fails as if the lease were late although it is not: its file cannot be read.
constexpr int kGateTries = 5;
}  // namespace

void LeaderGate::stand_by(Fence& fence) {
  fence_ = &fence;
  thread_ = std::make_unique<IoThread>("fence");
  phase_.set(Phase::kStandby, leadership_.to_string());
}

void LeaderGate::set_leadership(Leadership present) {
  if (!fence_) return;
  const auto old = leadership_.role;
  leadership_ = std::move(present);
  if (leadership_.role == Election::Role::kSuspended && old == Election::Role::kLeader)
    log::error("leader.suspended",
               {{"term", leadership_.term},
                {"why", "the lease could not be renewed in etcd: " + leadership_.trouble},
                {"action", "no round is committed until it can"}});
  if (leadership_.role == Election::Role::kLeader && old == Election::Role::kSuspended)
    log::info("leader.resumed", {{"term", leadership_.term}});
  if (phase_.is(Phase::kStandby) && !is_beginning()) phase_.explain(leadership_.to_string());
  changed_.notify_all();
}

Task<void> LeaderGate::await_lead() {
  const auto is_over = [this] {
    return leadership_.role != Election::Role::kStandby || stop_.is_requested;
  };
  const bool goes_on = co_await until(changed_, is_over);
  if (!goes_on || stop_.is_requested) co_return;
  has_led_ = true;
  log::info("leader.elected", {{"term", leadership_.term}});
}

bool LeaderGate::is_deposed() const {
  const Status open = holds();
  return !open.ok() && open.error().code() == ErrorCode::kAborted;
}

std::optional<Error> LeaderGate::held() const {
  if (fence_ == nullptr || phase_.is(Phase::kStandby)) return std::nullopt;
  const Status open = fence_->holds();
  if (open.ok()) return std::nullopt;
  return open.error();
}

Status LeaderGate::check_lead() const {
  if (is_beginning()) return not_ready("the server begins: " + phase_.reason());
  if (!phase_.is(Phase::kStandby) && !is_deposed()) return {};
  return not_leader(leadership_.leader, leadership_.data);
}

Task<Status> LeaderGate::may_commit() {
  if (!fence_) co_return Status();
  Status open;
  const auto is_over = [this, &open] {
    open = fence_->holds();
    return open.ok() || open.error().code() == ErrorCode::kAborted || stop_.is_requested;
  };
  (void)co_await until(changed_, is_over);
  if (open.ok() || open.error().code() == ErrorCode::kAborted) co_return open;
  co_return Error(ErrorCode::kAborted, "stopping, and " + open.error().message());
}

Task<Status> LeaderGate::take_folder(Executor on) {
  auto take = [fence = fence_] { return fence->take(); };
  co_return co_await act(std::move(on), std::move(take));
}

Task<Status> LeaderGate::act(Executor on, std::function<Status()> act) {
  for (int tries = 0;;) {
    CENTROID_CO_TRY(co_await may_commit());
    auto next = act;
    Status done = co_await run_on(on, std::move(next));
    const bool is_held = !done.ok() && is_late(done.error());
    if (!is_held || stop_.is_requested) co_return done;
    if (fence_->holds().ok() && ++tries > kGateTries) co_return done;
    if (is_beginning()) phase_.explain(done.error().message());
    const bool goes_on = co_await pause();
    if (!goes_on) co_return done;
  }
}

Task<bool> LeaderGate::pause() {
  co_return co_await sleep_until(clock_.now() + kSlowPoll);  // lint-ok: another process's file
}

std::function<Status()> LeaderGate::may_write() const {
  if (fence_ == nullptr) return {};
  return [fence = fence_] { return fence->check(); };
}

Task<void> LeaderGate::look() {
  if (std::exchange(is_looking_, true)) co_return;
  auto look = [fence = fence_] { fence->look(); };
  co_await run_on(thread_->executor(), std::move(look));
  is_looking_ = false;
  if (is_deposed()) changed_.notify_all();
}

}  // namespace centroid::server
