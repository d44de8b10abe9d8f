#pragma once

#include <cstdint>

#include "common/async/task_group.h"
#include "common/proto/rows.h"
#include "server/tables/bucket_moves.h"
#include "server/tables/bucket_route.h"
#include "server/tables/rows_gate.h"
#include "server/tables/rows_journal.h"
#include "server/tables/rows_sessions.h"
#include "server/tables/table_room.h"
#include "server/tables/table_store.h"
#include "transport/session.h"

namespace centroid::server {

/// The requests of clients of rows. One that cannot be served is answered with an error that names
/// table and reason, and changes nothing; the session goes on.
///
/// thread  the service's
class RowsRequests {
 public:
  struct Parts {
    TableStore& store;
    TableRoom& room;
    const BucketRoute& route;
    const BucketMoves& moves;
    RowsJournal& journal;
    const RowsSessions& sessions;
    const RowsGate& gate;
  };
  explicit RowsRequests(const Parts& parts);

  /// Of a question and of an answer; the session's limit holds, too.
  void bound_payload(std::uint64_t bytes) { max_payload_ = bytes; }
  /// A frame of a client's session. An error ends the session.
  Task<Status> on_frame(transport::Session& session, const transport::InFrame& frame,
                        RowsSession& client);

 private:
  using Session = transport::Session;
  using InFrame = transport::InFrame;

  Task<Status> on_open(Session& session, const InFrame& frame, RowsSession& client);
  Task<Status> on_pull(Session& session, const InFrame& frame, RowsSession& client);
  Task<Status> on_push(Session& session, const InFrame& frame, RowsSession& client);
  Task<Status> refuse(Session& session, const InFrame& frame, Error why) const;

  Result<proto::RowsOpenReply> open(const Session& session, const proto::RowsOpen& head,
                                    RowsSession& client) const;
  Result<proto::RowsPushReply> apply(const proto::RowsPush& head, const RowsSession& client);
  void read(const proto::RowsPull& head, RowsSession& client);
  Task<Status> await_room(std::uint32_t table, std::uint32_t pushed_keys, std::uint32_t keys,
                          RowsSession& client);
  Status check_size(const RowsSession& client, std::uint32_t number, std::uint32_t rows,
                    std::uint64_t payload_bytes, bool has_gradients) const;
  Status check_answer(const Session& session, const proto::RowsPull& head) const;
  std::uint64_t max_payload_of(const Session& session) const;

  const Parts parts_;
  const std::uint64_t incarnation_;
  std::uint64_t max_payload_ = ~std::uint64_t{0};
};

}  // namespace centroid::server
