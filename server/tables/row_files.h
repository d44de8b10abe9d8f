#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"

/// Tables of sparse rows as files of a checkpoint; docs/how-to/recover.md#files-of-a-checkpoint
/// describes their content.
namespace centroid::server {

/// Returns the frozen rows block by block; false: no more.
using RowReader = std::function<Result<bool>(RowTable::Block& block)>;

/// Write a frozen table to the new file `path`.
/// fails  as SafetensorsWriter
Result<FileRecord> write_rows(const std::filesystem::path& path, const RowSpec& spec,
                              const RowTable::State& state, const RowReader& read);

/// Receives the rows of a file.
struct RowsSink {
  /// The table's state; false: skip the rows.
  std::function<bool(const RowTable::State&)> begin;
  /// Some rows, or keys that wait for admission; `now` of the state.
  std::function<Status(const RowTable::Block& block, std::uint64_t now)> put;
};

/// Read a table's file. The settings that rows depend on must be unchanged. Returns the stored
/// state.
/// fails  failed_precondition: another dim, optimizer, init or seed; data_loss: not a valid file;
///        or as `put`.
Result<RowTable::State> read_rows(const std::filesystem::path& path, const RowSpec& spec,
                                  const RowsSink& sink);
/// Fill an empty table. Rows from several servers that exceed max_bytes are skipped and logged,
/// because their memory depends on their distribution.
/// fails  resource_exhausted: max_bytes.
Result<RowTable::State> read_rows(const std::filesystem::path& path, RowTable& table);

/// Restore rows, or keys that wait for admission. `left_out` counts rows that exceed max_bytes and
/// are skipped; nullptr: they are an error.
Status restore_block(RowTable& table, const RowTable::Block& block, std::uint64_t now,
                     std::uint64_t* left_out);

/// The record of pushes of a checkpoint; with several servers, of one of them.
struct PushedRows {
  std::vector<PushWindows::Entry> clients;
  std::uint64_t journal = 0;  ///< first segment of the journal after them
  std::string server;         ///< its name; empty: a single server
  bool is_followed = false;   ///< several servers: their journals may have needed pushes
  std::uint64_t route = 0;    ///< several servers: the route at that time
  std::string buckets;        ///< several servers: the buckets of this one (to_ranges)
};
Result<FileRecord> write_pushes(const std::filesystem::path& path, const PushedRows& pushed);
Result<PushedRows> read_pushes(const std::filesystem::path& path);

}  // namespace centroid::server
