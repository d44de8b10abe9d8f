#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"

/// Tables of sparse rows as files of a checkpoint; docs/durability.md has their content.
namespace centroid::server {

/// Gives the frozen rows block by block; false: that was all.
using RowReader = std::function<Result<bool>(RowTable::Block& block)>;

/// Create `path` with what a frozen table holds. fails as StripedWriter
Result<FileRecord> write_rows(const std::filesystem::path& path, const RowSpec& spec,
                              const RowTable::State& state, const RowReader& read);

/// Fill an empty table. What a row's values depend on must be as it was. fails failed_precondition:
/// another dim, optimizer, init or seed; data_loss: not such a file; resource_exhausted: max_bytes.
/// Returns the state as it was.
Result<RowTable::State> read_rows(const std::filesystem::path& path, RowTable& table);

/// What the rows of a checkpoint hold.
struct PushedRows {
  std::vector<PushWindows::Entry> clients;  ///< who pushed last first
  std::uint64_t journal = 0;                ///< the first segment of the journal behind them
};
Result<FileRecord> write_pushes(const std::filesystem::path& path, const PushedRows& pushed);
Result<PushedRows> read_pushes(const std::filesystem::path& path);

}  // namespace centroid::server
