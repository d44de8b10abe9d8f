#pragma once

#include "server/rows/row_table.h"

namespace centroid::server {

/// The next rows of a frozen table, or keys that waited; false: that was all.
inline bool read_frozen(RowTable& table, RowTable::Block& block, std::uint64_t frozen_at) {
  RowTable::Frozen frozen;
  block = {};
  if (!table.take_frozen(frozen)) return false;
  block.is_candidates = frozen.is_candidates;
  table.unpack(frozen, frozen_at, block);
  return true;
}

}  // namespace centroid::server
