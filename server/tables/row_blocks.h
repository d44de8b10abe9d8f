#pragma once

#include <vector>

#include "common/proto/tables.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"

/// Rows and records of pushes as payloads between two servers.
namespace centroid::server {

/// Maximum rows of a table per payload: at least 1, at most kMaxRows.
std::uint32_t rows_of_payload(const RowSpec& spec, std::uint64_t max_payload_bytes);

/// The rows [first, first + rows) of a block.
std::vector<std::byte> rows_payload(const RowTable::Block& block, std::size_t first,
                                    std::size_t rows);
/// fails invalid_argument: a payload that does not fit head and dim
Result<RowTable::Block> rows_of(const proto::RowsBlock& head, const RowSpec& spec, Bytes payload);

/// Maximum entries per payload: at least 1.
std::uint32_t clients_of_payload(std::uint64_t max_payload_bytes);
std::vector<std::byte> pushes_payload(const std::vector<PushWindows::Entry>& entries,
                                      std::size_t first, std::size_t clients);
/// fails invalid_argument: a payload that does not fit the head
Result<std::vector<PushWindows::Entry>> pushes_of(const proto::PushesBlock& head, Bytes payload);

}  // namespace centroid::server
