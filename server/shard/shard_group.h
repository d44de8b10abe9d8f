#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/clock_watch.h"
#include "common/base/standstill.h"
#include "common/proto/servers.h"
#include "transport/session.h"

namespace centroid::server {

/// One shard server, from its ServerJoin to the end of its session.
struct ShardSession {
  std::string name, endpoint, address;
  transport::Session* session = nullptr;  ///< nullptr: the session has ended
  TaskGroup* tasks = nullptr;
  bool has_model = false, is_draining = false;
  proto::MemoryPlan memory_plan;  ///< that it has memory for; 0 workers: it has no model
  proto::ServerReport report;     ///< the last
  TimePoint moved;                ///< when its `progress` last grew
  /// A pending request.
  struct Work {
    proto::ServersKind kind;
    TimePoint since;
    bool has_deadline;  ///< no: only the server's progress limits it
  };
  std::list<Work> work;
  std::vector<std::byte> tokens;  ///< last sent
  bool has_tokens = false;        ///< has confirmed them
  std::vector<std::byte> opened;  ///< the newest Opened, sent or being sent
  bool is_being_sent = false;
  double joined_unix_seconds = 0;
  ClockWatch clock;     ///< of its machine
  std::string version;  ///< of its program; empty: unknown
  bool is_gone() const { return session == nullptr; }
};

/// The leader's view of the shard servers: the connected servers, and requests to one or several.
///
/// thread  one executor
class ShardGroup {
 public:
  struct Hooks {
    std::function<void()> changed;  ///< a server joined or left
    std::function<void(ShardSession&)> reported;
    std::function<void(const ShardSession&)> gone;
    /// All of a contribution's chunks for this server have arrived.
    std::function<void(const ShardSession&, const proto::Whole&)> whole;
    /// A worker's session with this server has ended, and the worker has not returned.
    std::function<void(const ShardSession&, const proto::Refused&)> refused;
    std::function<void(ShardSession&)> leaving;  ///< a server requests to leave (Leave)
  };
  /// `reply_timeout`: a server that does not answer a request within this time is dropped; for long
  /// requests (sums, steps, chunks), if it reports no progress for this time.
  ShardGroup(Executor executor, const Clock& clock, std::chrono::milliseconds reply_timeout,
             Hooks hooks);

  /// First message of a shard server's session.
  /// fails  failed_precondition: the name is the leader's; a connected server of the same name is
  ///        superseded.
  Result<std::shared_ptr<ShardSession>> join(transport::Session& session, TaskGroup& tasks,
                                             const proto::ServerJoin& join);
  /// Later messages.
  Task<Status> on_frame(transport::Session& session, transport::InFrame frame,
                        std::shared_ptr<ShardSession> shard);
  /// The session has ended.
  void left(const std::shared_ptr<ShardSession>& shard, const Error& why);
  /// End the sessions of servers that were silent for longer than `lease` or make no progress. Call
  /// several times per lease.
  void expire(std::chrono::milliseconds lease);
  /// End all sessions, so that the servers end too (kCancelled) or search for a leader (other
  /// codes).
  Task<void> dismiss_all(Error why);
  void dismiss(ShardSession& shard, const Error& why);
  /// Drop a server at once, because its state differs from what the leader assumes.
  void give_up(const std::shared_ptr<ShardSession>& shard, const Error& why);

  /// Connected servers, ordered by name.
  const std::map<std::string, std::shared_ptr<ShardSession>>& present() const { return present_; }
  std::shared_ptr<ShardSession> find(const std::string& name) const;
  /// Number of servers that do not drain, including the leader.
  std::uint32_t count_of_staying() const;

  /// Send a request to one server; an error names the server. A server that does not answer in
  /// time, or refuses a request other than Fetch, Freeze and Recall, is dropped (give_up). With a
  /// `limit` no server is dropped.
  Task<Result<transport::Reply>> ask(std::shared_ptr<ShardSession> shard, proto::ServersKind kind,
                                     std::vector<std::byte> head, Bytes payload = {},
                                     std::optional<TimePoint> limit = {});
  /// Send the same request to several servers concurrently. Returns the answers in the order of
  /// `shards`, or the first error.
  Task<Result<std::vector<transport::Reply>>> ask_all(
      std::vector<std::shared_ptr<ShardSession>> shards, proto::ServersKind kind,
      std::vector<std::byte> head, std::optional<TimePoint> limit = {});
  /// Send Opened to all servers. A slow server gets only the newest one.
  void tell_opened(const proto::Opened& opened);
  /// Request memory plans until each server has memory for its `wanted` plan, which is computed
  /// again for every request. Servers without a model are skipped. If one refuses, the others
  /// return to their earlier plans.
  /// fails  failed_precondition: with the numbers of the server that refuses; other codes: a server
  ///        does not answer
  using Wanted = std::function<std::optional<proto::MemoryPlan>(const ShardSession&)>;
  Task<Status> plan_memory(Wanted wanted, TimePoint limit);
  /// Tell all servers that a worker left.
  void forget(MemberId member, const std::string& reason);

 private:
  static Task<void> send_opened(std::shared_ptr<ShardSession> shard);

  Executor executor_;
  const Clock& clock_;
  const std::chrono::milliseconds reply_timeout_;
  Hooks hooks_;
  std::map<std::string, std::shared_ptr<ShardSession>> present_;
  Standstill standstill_;
};

}  // namespace centroid::server
