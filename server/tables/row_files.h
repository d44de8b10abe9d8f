#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"

/// Tables of sparse rows as files of a checkpoint; docs/how-to/recover.md#files-of-a-checkpoint has
/// their content.
namespace centroid::server {

/// Gives the frozen rows block by block; false: that was all.
using RowReader = std::function<Result<bool>(RowTable::Block& block)>;

/// Create `path` with what a frozen table holds.
/// fails  as StripedWriter
Result<FileRecord> write_rows(const std::filesystem::path& path, const RowSpec& spec,
                              const RowTable::State& state, const RowReader& read);

/// Takes the rows of a file.
struct RowsSink {
  /// What the table was like; false: that is enough.
  std::function<bool(const RowTable::State&)> begin;
  /// Some rows, or keys that waited; `now` of the state.
  std::function<Status(const RowTable::Block& block, std::uint64_t now)> put;
};

/// Read a table's file. What a row's values depend on must be as it was. Returns the state as it
/// was.
/// fails  failed_precondition: another dim, optimizer, init or seed; data_loss: not such a file; or
///        as `put`.
Result<RowTable::State> read_rows(const std::filesystem::path& path, const RowSpec& spec,
                                  const RowsSink& sink);
/// Fill an empty table. Of rows that were on several servers those without room are left out, and
/// the log says so: how much memory they take depends on where they were.
/// fails  resource_exhausted: max_bytes.
Result<RowTable::State> read_rows(const std::filesystem::path& path, RowTable& table);

/// Put rows, or keys that waited, back into a table. `left_out`: rows that max_bytes has no room
/// for are left out and counted; nullptr: they are an error.
Status restore_block(RowTable& table, const RowTable::Block& block, std::uint64_t now,
                     std::uint64_t* left_out);

/// What the rows of a checkpoint hold, or of several servers those of one.
struct PushedRows {
  std::vector<PushWindows::Entry> clients;
  std::uint64_t journal = 0;  ///< the first segment of the journal behind them
  std::string server;         ///< its name; empty: there was one server
  bool is_followed = false;   ///< several: their journals may have more, which must not be lost
  std::uint64_t route = 0;    ///< several: by which they lay so
  std::string buckets;        ///< several: that lay there (to_ranges)
};
Result<FileRecord> write_pushes(const std::filesystem::path& path, const PushedRows& pushed);
Result<PushedRows> read_pushes(const std::filesystem::path& path);

}  // namespace centroid::server
