#pragma once

#include <optional>
#include <utility>

#include "common/async/until.h"
#include "common/proto/servers.h"
#include "transport/session.h"

namespace centroid::server {

/// The session with the leader, for the parts of a shard server.
///
/// thread  one executor
class LeaderSession {
 public:
  explicit LeaderSession(Executor executor) : joined_(executor) {}

  /// `tasks` are joined before the session is destroyed.
  void begin(transport::Session& session, TaskGroup& tasks) {
    session_ = &session;
    tasks_ = &tasks;
  }
  /// Call before the tasks are cancelled, so that running tasks see that the leader is lost.
  void end() {
    session_ = nullptr;
    tasks_ = nullptr;
  }
  bool is_open() const { return session_ != nullptr; }
  /// Valid only while it is open.
  transport::Session& session() const { return *session_; }
  TaskGroup& tasks() const { return *tasks_; }

  /// The leader has accepted this server.
  void join(proto::ServerTerms terms) {
    terms_ = std::move(terms);
    is_joined_ = true;
    joined_.notify_all();
  }
  bool is_joined() const { return is_joined_; }
  void leave() { is_joined_ = false; }
  /// Wait until the leader has accepted this server. False: not by `limit`.
  Task<bool> await_joined(TimePoint limit) {
    const auto is_joined = [this] { return is_joined_; };
    co_return co_await until(joined_, is_joined, limit);
  }
  /// Terms of the last leader that accepted this server.
  const proto::ServerTerms& terms() const { return terms_; }

  /// Set why this server cannot serve the leader in any session.
  void set_fatal(const Error& why) { fatal_ = why; }
  const std::optional<Error>& fatal() const { return fatal_; }

 private:
  transport::Session* session_ = nullptr;
  TaskGroup* tasks_ = nullptr;
  Event joined_;
  bool is_joined_ = false;
  proto::ServerTerms terms_;
  std::optional<Error> fatal_;
};

}  // namespace centroid::server
