#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/proto/tables.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// One state of the tables on a shard server, which its leader reads piece by piece for a
/// checkpoint.
///
/// thread  one executor
class FrozenRows {
 public:
  /// `server`: its name, for errors.
  explicit FrozenRows(std::string server) : server_(std::move(server)) {}

  /// Keep the present state, instead of an earlier one.
  proto::RowsFrozen freeze(RowsService& service, bool is_last);
  /// The next rows of a table, in the order of its memory. `service`: that of the freeze
  /// fails  aborted: it is not kept
  Result<proto::RowsBlock> read(const proto::RowsRead& wanted, const RowsService* service,
                                std::uint64_t max_payload_bytes, std::vector<std::byte>& payload);
  /// What clients have pushed, from one of them on.
  /// fails  aborted: it is not kept
  Result<proto::PushesBlock> read_pushes(const proto::PushesBlock& wanted,
                                         std::uint64_t max_payload_bytes,
                                         std::vector<std::byte>& payload) const;
  void thaw();

 private:
  void begin_table(std::uint32_t table);

  const std::string server_;
  std::shared_ptr<RowsSnapshot> kept_;
  std::uint32_t table_ = 0;  ///< that is read
  RowTable::Block block_;    ///< of it
  std::size_t read_ = 0;     ///< rows of the block
};

}  // namespace centroid::server
