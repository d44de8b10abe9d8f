#pragma once

#include <optional>

#include "common/base/result.h"
#include "server/aggregate/round_machine.h"

namespace centroid::server {

/// What the parts of a round tell its loop.
class RoundControl {
 public:
  virtual ~RoundControl() = default;
  /// What the round machine made of an event.
  virtual void decide(RoundDecision decision) = 0;
  /// All contributions to a chunk are summed, here.
  virtual void chunk_complete(ChunkId chunk, double total_weight) = 0;
  /// A member's end; `tell`: with this, where it does not know.
  virtual void member_gone(MemberId member, std::optional<Error> tell) = 0;
};

}  // namespace centroid::server
