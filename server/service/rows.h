#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/proto/rows.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"
#include "transport/session.h"

namespace centroid::server {

/// The server's tables of sparse rows and the requests of their clients. A session that begins with
/// RowsOpen is a client's: no member of the cluster, without a lease.
///
/// A request that cannot be served is answered with an error that names table and reason, and
/// changes nothing; the session goes on.
/// thread  the service's
class RowsService {
 public:
  /// What one session has said.
  struct Client {
    std::uint64_t id = 0;
    std::vector<std::byte> in, out;  ///< payloads, kept for their memory
  };

  /// `tables` as parse_tables takes it.
  RowsService(const std::string& tables, const Clock& clock, metrics::Registry& registry);

  static bool opens(std::uint16_t kind) {
    return kind == static_cast<std::uint16_t>(proto::RowsKind::kOpen);
  }
  /// A frame of a client's session. An error ends the session.
  Task<Status> on_frame(transport::Session& session, const transport::InFrame& frame,
                        Client& client);

 private:
  struct Table {
    RowTable rows;
    RowCounters told;  ///< in the metrics
    metrics::Counter pulled, pushed, admitted, held_back, evicted, expired;
    metrics::Gauge stored, bytes;
    void tell();
  };

  Result<proto::RowsOpenReply> open(const transport::Session& session, const proto::RowsOpen& head,
                                    Client& client) const;
  Result<Table*> table_of(const Client& client, std::uint32_t number, std::uint32_t rows,
                          std::uint64_t payload_bytes, bool has_gradients);
  Task<Status> pull(transport::Session& session, const transport::InFrame& frame, Client& client);
  Task<Status> push(transport::Session& session, const transport::InFrame& frame, Client& client);
  Result<proto::RowsPushReply> apply(Table& table, const proto::RowsPush& head,
                                     const Client& client);
  std::uint64_t now() const;  ///< seconds since the start

  const Clock& clock_;
  TimePoint started_;
  std::uint64_t incarnation_;
  std::vector<Table> tables_;
  PushWindows windows_;
  metrics::Counter repeated_, refused_;
};

}  // namespace centroid::server
