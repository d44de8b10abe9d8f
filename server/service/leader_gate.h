#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/async/io_thread.h"
#include "common/async/task.h"
#include "server/election/candidacy.h"
#include "server/service/job_phase.h"

namespace centroid::server {

/// Whether this server may act for the job. Without an election it always may; of several servers
/// only the leader may, while its lease lasts
/// (docs/how-to/high-availability.md#why-two-leaders-cannot-write). Of one thread.
class LeaderGate {
 public:
  /// `changed` wakes those who wait for the lease; `stop` ends their wait.
  LeaderGate(const Clock& clock, Event& changed, JobPhase& phase, const StopRequest& stop)
      : clock_(clock), changed_(changed), phase_(phase), stop_(stop) {}

  /// There are several servers: this one is a standby until the election says otherwise.
  void stand_by(Fence& fence);
  bool has_election() const { return fence_ != nullptr; }
  const Leadership& leadership() const { return leadership_; }
  void set_leadership(Leadership present);

  /// This server has the job, and is not prepared for it yet.
  bool is_beginning() const { return !is_prepared_ && (fence_ == nullptr || has_led_); }
  bool is_prepared() const { return is_prepared_; }
  void set_prepared() { is_prepared_ = true; }

  /// Wait for the lead or a stop: `has_led` says which.
  Task<void> await_lead();
  bool has_led() const { return has_led_; }
  /// Another server leads, or may; this one never may again.
  bool is_deposed() const;
  /// Why the leader may not act now; none: it may, or it is no leader.
  std::optional<Error> held() const;
  /// fails   unavailable: not yet, or another server leads; the text says where
  Status check_lead() const;
  Status holds() const { return fence_ == nullptr ? Status() : fence_->holds(); }
  /// Wait until this server may commit. fails aborted: it never may again, or is told to stop.
  Task<Status> may_commit();
  /// Write the term into the run's folder, on the thread `on`. fails as Fence::take
  Task<Status> take_folder(Executor on);
  /// `act` on the thread `on`, again where the lease was late meanwhile, until it is done.
  Task<Status> act(Executor on, std::function<Status()> act);
  /// Before what failed with a late lease is tried again: the fence's file, which another process
  /// writes, may have been the cause. False: the caller is cancelled.
  Task<bool> pause();
  /// The lease was late: trying again may help.
  bool is_late(const Error& why) const {
    return fence_ != nullptr && why.code() == ErrorCode::kUnavailable;
  }

  /// For who writes into the run's folder: asked on any thread before each file; empty: no need.
  std::function<Status()> may_write() const;
  std::string writer() const { return fence_ == nullptr ? "" : fence_->server(); }
  std::uint64_t term() const { return fence_ == nullptr ? 0 : fence_->term(); }

  /// Read the fence's file while the lease is late, on a thread of its own: a disk that hangs holds
  /// up nothing else. Nothing while it is being read.
  Task<void> look();

 private:
  const Clock& clock_;
  Event& changed_;
  JobPhase& phase_;
  const StopRequest& stop_;
  Fence* fence_ = nullptr;  ///< none: this server is alone
  std::unique_ptr<IoThread> thread_;
  bool is_looking_ = false, has_led_ = false, is_prepared_ = false;
  Leadership leadership_;
};

}  // namespace centroid::server
