#pragma once

#include <optional>
#include <utility>

#include "common/async/until.h"
#include "common/proto/servers.h"
#include "transport/session.h"

namespace centroid::server {

/// The session with the leader, as the parts of a shard server use it.
///
/// thread  one executor
class LeaderLink {
 public:
  explicit LeaderLink(Executor executor) : joined_(executor) {}

  /// `tasks` are joined before the session is destroyed.
  void begin(transport::Session& session, TaskGroup& tasks) {
    session_ = &session;
    tasks_ = &tasks;
  }
  /// Before the tasks are cancelled: those that still run see that the leader is lost.
  void end() {
    session_ = nullptr;
    tasks_ = nullptr;
  }
  bool is_open() const { return session_ != nullptr; }
  /// While it is open.
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
  /// False: it was not joined in time.
  Task<bool> await_joined(TimePoint limit) {
    const auto is_joined = [this] { return is_joined_; };
    co_return co_await until(joined_, is_joined, limit);
  }
  /// Of the leader that was joined last.
  const proto::ServerTerms& terms() const { return terms_; }

  /// Why this server cannot serve that leader, also in a later session.
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
