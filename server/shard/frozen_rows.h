#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/proto/tables.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// A snapshot of a shard server's tables, which the leader reads block by block for a checkpoint.
///
/// thread  one executor
class FrozenRows {
 public:
  /// `server`: its name, for errors.
  explicit FrozenRows(std::string server) : server_(std::move(server)) {}

  /// Take a snapshot of the present state. It replaces an earlier one.
  proto::RowsFrozen freeze(RowsService& service, bool is_last);
  /// The next rows of a table, in the order of memory. `service`: that of the freeze
  /// fails  aborted: no such snapshot
  Result<proto::RowsBlock> read(const proto::RowsRead& wanted, const RowsService* service,
                                std::uint64_t max_payload_bytes, std::vector<std::byte>& payload);
  /// The pushes of clients, starting with one client.
  /// fails  aborted: no such snapshot
  Result<proto::PushesBlock> read_pushes(const proto::PushesBlock& wanted,
                                         std::uint64_t max_payload_bytes,
                                         std::vector<std::byte>& payload) const;
  void thaw();

 private:
  void begin_table(std::uint32_t table);

  const std::string server_;
  std::shared_ptr<RowsSnapshot> kept_;
  std::uint32_t table_ = 0;  ///< that is read
  RowTable::Block block_;    ///< of that table
  std::size_t read_ = 0;     ///< rows of the block
};

}  // namespace centroid::server
