#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "server/service/rows_loader.h"
#include "server/service/rows_moves.h"

namespace centroid::server {

/// What all servers keep of their rows for a checkpoint, gathered into the files that one server
/// writes. Of one thread; the files are written on the blocking one.
class RowsKept {
 public:
  RowsKept(RowsGroup& group, RowsMoves& moves, RowsLoader& loader)
      : group_(group), moves_(moves), loader_(loader) {}

  /// Keep the present rows of all servers; what the leader has.
  /// fails  unavailable: a server is gone
  Task<Result<std::shared_ptr<RowsSnapshot>>> freeze();
  /// Files of what is kept, gathered from all; to be written on the blocking executor before
  /// `thaw`.
  std::vector<CheckpointPart> parts(std::shared_ptr<RowsSnapshot> mine);
  Task<void> thaw(bool is_written);

  bool is_frozen() const { return is_frozen_; }
  bool needs_checkpoint() const;

 private:
  Result<bool> fetch_rows(const RowsLink& link, std::size_t table, RowTable::Block& block);

  RowsGroup& group_;
  RowsMoves& moves_;
  RowsLoader& loader_;
  bool is_frozen_ = false;     ///< from `freeze` to `thaw`
  bool kept_is_last_ = false;  ///< nothing is pushed behind what is kept
  proto::Route kept_route_;    ///< of what is kept
  // changes on the others, and here: in what is kept, in a checkpoint
  std::uint64_t kept_ = 0, checkpointed_ = 0;
  std::uint64_t mine_kept_ = 0, mine_checkpointed_ = 0;
};

}  // namespace centroid::server
