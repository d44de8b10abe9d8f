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

/// The shard servers as their leader sees them: who is here, and requests to one or to all that the
/// route names.
///
/// thread  one executor
class ShardGroup {
 public:
  /// One shard server, from its ServerJoin to the end of its session.
  struct Link {
    std::string name, endpoint, address;
    transport::Session* session = nullptr;  ///< nullptr: it is gone
    TaskGroup* tasks = nullptr;
    bool has_model = false, is_draining = false;
    proto::MemoryPlan memory_plan;  ///< for which it has memory; no workers: it has no model
    proto::ServerReport report;     ///< the last
    TimePoint moved;                ///< when its `progress` last grew
    /// Requests that may take as long as it gets on with them.
    struct Work {
      proto::ServersKind kind;
      TimePoint since;
    };
    std::list<Work> work;
    std::vector<std::byte> tokens;  ///< told last
    bool has_tokens = false;        ///< has said that it has those
    std::vector<std::byte> opened;  ///< what it is to know (Opened), or is being told
    bool is_being_sent = false;
    double joined_unix_seconds = 0;
    ClockWatch clock;     ///< of its machine
    std::string version;  ///< of its program; empty: it has not said
    bool is_gone() const { return session == nullptr; }
  };
  struct Hooks {
    std::function<void()> changed;  ///< a server came or went
    std::function<void(Link&)> reported;
    std::function<void(const Link&)> gone;
    /// All of a contribution's chunks that lie on this server have come.
    std::function<void(const Link&, const proto::Whole&)> whole;
    /// A worker's session with this server has ended, and it has not come back.
    std::function<void(const Link&, const proto::Refused&)> refused;
    std::function<void(Link&)> leaving;  ///< a server wants to go (Leave)
  };
  /// `reply_timeout`: a server that leaves a request unanswered for so long is given up; with what
  /// takes time there (sums, steps, chunks), when it has told of no progress for so long.
  ShardGroup(Executor executor, const Clock& clock, std::chrono::milliseconds reply_timeout,
             Hooks hooks);

  /// First message of a shard server's session.
  /// fails  failed_precondition: the name is the leader's; a server of this name that is here
  ///        already is superseded.
  Result<std::shared_ptr<Link>> join(transport::Session& session, TaskGroup& tasks,
                                     const proto::ServerJoin& join);
  /// Later messages.
  Task<Status> on_frame(transport::Session& session, transport::InFrame frame,
                        std::shared_ptr<Link> link);
  /// The session has ended.
  void left(const std::shared_ptr<Link>& link, const Error& why);
  /// End the sessions of those who are silent for longer, or do not get on; several times a lease.
  void expire(std::chrono::milliseconds lease);
  /// End all sessions, so that the servers end too (kCancelled) or look for a leader (others).
  Task<void> dismiss_all(Error why);
  void dismiss(Link& link, const Error& why);
  /// At once: it is not what its leader takes it to be.
  void give_up(const std::shared_ptr<Link>& link, const Error& why);

  /// Who is here, in the order of names.
  const std::map<std::string, std::shared_ptr<Link>>& present() const { return present_; }
  std::shared_ptr<Link> find(const std::string& name) const;
  /// Servers with the leader, but for those that drain.
  std::uint32_t count_of_staying() const;

  /// Ask one server; its error names it. A server that does not answer in time, or refuses anything
  /// but Fetch, Freeze and Recall, is given up: its state is not what its leader takes it to be.
  /// With a `limit` of the caller's nobody is given up.
  Task<Result<transport::Reply>> ask(std::shared_ptr<Link> link, proto::ServersKind kind,
                                     std::vector<std::byte> head, Bytes payload = {},
                                     std::optional<TimePoint> limit = {});
  /// Ask all of them the same at once. The answers, in the order of `links`; the first error.
  Task<Result<std::vector<transport::Reply>>> ask_all(std::vector<std::shared_ptr<Link>> links,
                                                      proto::ServersKind kind,
                                                      std::vector<std::byte> head,
                                                      std::optional<TimePoint> limit = {});
  /// Who may bring what. Each server hears the newest, whatever it had no time to hear between.
  void tell_opened(const proto::Opened& opened);
  /// Ask servers until each has memory for what `wanted` says of it then; of one that has no model
  /// nothing is. When one refuses, those that agreed return to their earlier plan.
  /// fails  failed_precondition: with the numbers of the server that refuses; else: that one does
  ///        not answer
  using Wanted = std::function<std::optional<proto::MemoryPlan>(const Link&)>;
  Task<Status> plan_memory(Wanted wanted, TimePoint limit);
  /// A worker is gone.
  void forget(MemberId member, const std::string& reason);

 private:
  static Task<void> send_opened(std::shared_ptr<Link> link);

  Executor executor_;
  const Clock& clock_;
  const std::chrono::milliseconds reply_timeout_;
  Hooks hooks_;
  std::map<std::string, std::shared_ptr<Link>> present_;
  Standstill standstill_;
};

}  // namespace centroid::server
