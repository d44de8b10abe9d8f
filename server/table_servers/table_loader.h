#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "server/table_servers/table_group.h"

namespace centroid::server {

/// A checkpoint with rows.
struct SavedTables {
  CheckpointEntry entry;
  std::vector<std::string> files;
  std::map<std::string, std::uint64_t> journals;  ///< by server; the leader's by ""
  bool is_followed = false;
  std::uint64_t clock = 0;  ///< when it was made
  std::uint64_t route = 0;  ///< of these buckets; 0: place them anew
  std::map<std::string, std::vector<std::uint16_t>> buckets;  ///< as `journals`
  bool is_there() const;                                      ///< all its files; blocks
};

/// Loads the tables of a checkpoint onto any number of servers.
/// thread  what returns a Status: the blocking one, which returns to the executor for each piece;
///         else the executor
class TableLoader {
 public:
  explicit TableLoader(TableGroup& group) : group_(group) {}

  /// Load the newest of these checkpoints, if there is one.
  void find_saved(const CheckpointDirectory& checkpoints, bool resumes) {
    checkpoints_ = &checkpoints;
    resumes_ = resumes;
  }
  /// From now on there can be one.
  void expect_saved() { resumes_ = true; }

  Task<Result<std::optional<SavedTables>>> find_newest() const;
  std::vector<std::uint16_t> owners_of(const SavedTables& saved) const;
  Status load(const SavedTables& saved, const std::vector<bool>& wanted);
  /// The leader's journal.
  Task<Status> replay_here(std::string& run_id);
  /// Give these servers their keys, from the newest checkpoint and their journals. `saved`: the
  /// checkpoint of the start
  /// fails  when one of them is lost, or refuses its part (it leaves then, or joins again). A bad
  ///        checkpoint ends the job.
  Task<Status> load_onto(std::vector<std::size_t> which, std::optional<SavedTables> saved,
                         std::string& run_id);
  Status put_pushes(std::size_t server, const std::vector<PushWindows::Entry>& clients);

 private:
  Result<std::optional<SavedTables>> newest() const;
  Status load_table(const SavedTables& saved, std::size_t table, const std::string& file,
                    const std::vector<bool>& wanted);
  Status put_rows(std::size_t server, std::size_t table, const RowTable::Block& block,
                  std::uint64_t clock);

  TableGroup& group_;
  const CheckpointDirectory* checkpoints_ = nullptr;
  bool resumes_ = false;  ///< there may be a checkpoint
};

}  // namespace centroid::server
