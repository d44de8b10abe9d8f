#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/async/io_thread.h"
#include "common/async/until.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "common/proto/servers.h"
#include "common/proto/tables.h"
#include "server/shard/frozen_rows.h"
#include "server/shard/leader_session.h"
#include "server/shard/shard_buckets.h"
#include "server/tables/rows_service.h"
#include "transport/session.h"

namespace centroid::server {

/// The rows of tables on a shard server. The leader sends its keys and their rows from a
/// checkpoint; then it replays the later part of its journal and serves clients by itself. All
/// state belongs to one session with the leader.
///
/// thread  one executor
class ShardRows {
 public:
  struct Options {
    std::string name, journal_dir;
    std::uint64_t memory_limit = 0;
  };
  /// `files`: of a thread that waits for the disk.
  ShardRows(Executor executor, Executor files, Options options, const Clock& clock);

  static bool is_for_rows(std::uint16_t kind);
  /// A request of the leader. Answers it; an error ends the session. An error that the leader
  /// cannot resolve (too little memory, a journal of another run) is fatal to the session. `tasks`:
  /// of the session
  Task<Status> on_leader(transport::Session& session, const transport::InFrame& frame,
                         TaskGroup& tasks, LeaderSession& leader);
  /// The service for clients' requests; shared.
  /// fails  unavailable: no tables are loaded yet.
  Result<std::shared_ptr<RowsService>> service() const;
  /// The leader is lost: drop all state.
  void forget(const Error& why);
  /// Call periodically.
  void tick();

  /// Maximum memory of the tables, with their checkpoints and journal.
  std::uint64_t reserved_bytes() const;
  /// Set the memory of the model and of the server itself.
  void set_beside(std::uint64_t bytes);

 private:
  using Session = transport::Session;
  using InFrame = transport::InFrame;
  using Payload = std::vector<std::byte>;

  // one handler for each message
  Task<Status> on_tables(Session& session, const InFrame& frame, LeaderSession& leader);
  Task<Status> on_rows_load(Session& session, const InFrame& frame, const Payload& in,
                            LeaderSession& leader);
  Task<Status> on_pushes_load(Session& session, const InFrame& frame, const Payload& in);
  Task<Status> on_replay(Session& session, const InFrame& frame, TaskGroup& tasks,
                         LeaderSession& leader);
  Task<Status> on_serve(Session& session, const InFrame& frame, LeaderSession& leader);
  Task<Status> on_freeze(Session& session, const InFrame& frame);
  Task<Status> on_rows_read(Session& session, const InFrame& frame);
  Task<Status> on_pushes_read(Session& session, const InFrame& frame);
  Task<Status> on_thaw(Session& session, const InFrame& frame);
  Task<Status> on_report(Session& session, const InFrame& frame);
  Task<Status> on_buckets(Session& session, const InFrame& frame, const Payload& in,
                          TaskGroup& tasks);

  Status take_tables(const proto::Tables& tables, const proto::ServerTerms& terms);
  Status load_rows(const proto::RowsBlock& head, const Payload& in);
  Status load_pushes(const proto::PushesBlock& head, const Payload& in);
  Status check_room() const;
  static Result<std::uint64_t> pass_over_journal(const std::filesystem::path& folder,
                                                 const std::string& run_id,
                                                 const std::string& restored_from);
  Task<void> replay(Session* session, LeaderSession* leader);
  Task<Status> serve(proto::Route route);

  Executor executor_, files_;
  const Options options_;
  const Clock& clock_;
  metrics::PrometheusRegistry registry_;  ///< exported by the leader
  std::shared_ptr<RowsService> service_;
  std::weak_ptr<RowsService> last_;  ///< of the previous session: its journal must be closed first
  const std::shared_ptr<Event> ended_;  ///< signals that it is closed
  proto::Tables tables_;
  std::string run_id_;
  std::uint64_t beside_ = 0;
  bool has_journal_ = false, is_replaying_ = false, is_loaded_ = false;
  FrozenRows frozen_;
  ShardBuckets buckets_;
};

}  // namespace centroid::server
