#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/async/io_thread.h"
#include "common/async/until.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/proto/servers.h"
#include "common/proto/tables.h"
#include "server/shard/frozen_rows.h"
#include "server/shard/leader_link.h"
#include "server/shard/shard_buckets.h"
#include "server/tables/rows_service.h"
#include "transport/session.h"

namespace centroid::server {

/// The part of a shard server that holds rows of tables: it takes from the leader which keys are
/// its own and what a checkpoint has of them, applies what its journal has behind that, and then
/// serves clients by itself. What lies here belongs to one session with the leader, as everything
/// else of a shard server does.
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
  /// A request of the leader. Answers it; an error ends the session. What the leader cannot mend
  /// (too little memory, a journal of another run) is fatal to the link with it.
  /// `tasks`: of the session
  Task<Status> on_leader(transport::Session& session, const transport::InFrame& frame,
                         TaskGroup& tasks, LeaderLink& leader);
  /// Where clients' requests go; it lives as long as somebody holds it.
  /// fails  unavailable: no tables are here yet.
  Result<std::shared_ptr<RowsService>> service() const;
  /// The leader is lost.
  void forget(const Error& why);
  /// Now and then.
  void tick();

  /// Memory that tables may take, with what their checkpoints and journal need.
  std::uint64_t reserved_bytes() const;
  /// What the model beside them needs, with the server itself.
  void set_beside(std::uint64_t bytes);

 private:
  using Session = transport::Session;
  using InFrame = transport::InFrame;
  using Payload = std::vector<std::byte>;

  // one handler for each message
  Task<Status> on_tables(Session& session, const InFrame& frame, LeaderLink& leader);
  Task<Status> on_rows_load(Session& session, const InFrame& frame, const Payload& in,
                            LeaderLink& leader);
  Task<Status> on_pushes_load(Session& session, const InFrame& frame, const Payload& in);
  Task<Status> on_replay(Session& session, const InFrame& frame, TaskGroup& tasks,
                         LeaderLink& leader);
  Task<Status> on_serve(Session& session, const InFrame& frame, LeaderLink& leader);
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
  Task<void> replay(Session* session, LeaderLink* leader);
  Task<Status> serve(proto::Route route);

  Executor executor_, files_;
  const Options options_;
  const Clock& clock_;
  metrics::Registry registry_;  ///< the leader shows them
  std::shared_ptr<RowsService> service_;
  std::weak_ptr<RowsService> last_;     ///< of an earlier session: its journal must be closed
  const std::shared_ptr<Event> ended_;  ///< that it is
  proto::Tables tables_;
  std::string run_id_;
  std::uint64_t beside_ = 0;
  bool has_journal_ = false, is_replaying_ = false, is_loaded_ = false;
  FrozenRows frozen_;
  ShardBuckets buckets_;
};

}  // namespace centroid::server
