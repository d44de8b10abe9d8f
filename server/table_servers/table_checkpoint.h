#pragma once

#include <memory>
#include <vector>

#include "server/table_servers/bucket_mover.h"
#include "server/table_servers/table_loader.h"

namespace centroid::server {

/// Rows of all servers, frozen for a checkpoint and collected into the files that the leader
/// writes. Of one thread; the files are written on the blocking one.
class TableCheckpoint {
 public:
  TableCheckpoint(TableGroup& group, BucketMover& mover, TableLoader& loader)
      : group_(group), mover_(mover), loader_(loader) {}

  Task<Result<std::shared_ptr<RowsSnapshot>>> freeze();
  std::vector<CheckpointPart> parts(std::shared_ptr<RowsSnapshot> leaders);
  Task<void> thaw(bool is_written);

  bool is_frozen() const { return is_frozen_; }
  bool is_needed() const;

 private:
  /// Changes that were counted, here and on the others.
  struct Changes {
    std::uint64_t others = 0, leader = 0;
    bool operator==(const Changes&) const = default;
  };

  Changes changes() const { return {group_.seen, group_.rows.store().changes()}; }
  Result<bool> fetch_rows(const HolderSession& shard, std::size_t table, RowTable::Block& block);

  TableGroup& group_;
  BucketMover& mover_;
  TableLoader& loader_;
  bool is_frozen_ = false;       ///< from `freeze` to `thaw`
  bool frozen_is_last_ = false;  ///< no push is accepted after it
  proto::Route frozen_route_;
  Changes frozen_;  ///< in what is frozen
  Changes saved_;   ///< in the newest checkpoint
};

}  // namespace centroid::server
