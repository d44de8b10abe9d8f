#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "server/service/rows_group.h"

namespace centroid::server {

/// A checkpoint with rows.
struct SavedRows {
  CheckpointEntry entry;
  std::vector<std::string> files;
  std::map<std::string, std::uint64_t> journals;  ///< by server; the leader's by ""
  bool is_followed = false;
  std::uint64_t clock = 0;  ///< when it was made
  std::uint64_t route = 0;  ///< by which rows lay so; 0: as they are placed anew
  std::map<std::string, std::vector<std::uint16_t>> buckets;  ///< as `journals`
  bool is_there() const;                                      ///< all its files; blocks
};

/// What a checkpoint has of tables is handed out to any number of servers.
/// thread  what returns a Status: the blocking one, which comes back to the executor for each
///         piece; else the executor
class RowsLoader {
 public:
  explicit RowsLoader(RowsGroup& group) : group_(group) {}

  /// Of these checkpoints there may be one to begin with, or not.
  void find_saved(const CheckpointDirectory& checkpoints, bool resumes) {
    checkpoints_ = &checkpoints;
    resumes_ = resumes;
  }
  /// From now on there may be one.
  void expect_saved() { resumes_ = true; }

  Task<Result<std::optional<SavedRows>>> find_newest() const;
  std::vector<std::uint16_t> owners_of(const SavedRows& saved) const;
  Status load(const SavedRows& saved, const std::vector<bool>& wanted);
  /// The leader's journal.
  Task<Status> replay_here(std::string& run_id);
  /// These servers are given their keys, with what the newest checkpoint and their journals have of
  /// them. `saved`: of the start
  /// fails  when one of them is lost, or refuses its part (it leaves then, or comes again); what is
  ///        wrong with the checkpoint ends the job.
  Task<Status> bring(std::vector<std::size_t> which, std::optional<SavedRows> saved,
                     std::string& run_id);
  Status put_pushes(std::size_t server, const std::vector<PushWindows::Entry>& clients);

 private:
  Result<std::optional<SavedRows>> newest() const;
  Status load_table(const SavedRows& saved, std::size_t table, const std::string& file,
                    const std::vector<bool>& wanted);
  Status put_rows(std::size_t server, std::size_t table, const RowTable::Block& block,
                  std::uint64_t clock);

  RowsGroup& group_;
  const CheckpointDirectory* checkpoints_ = nullptr;
  bool resumes_ = false;  ///< there may be a checkpoint to begin with
};

}  // namespace centroid::server
