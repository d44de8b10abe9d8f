#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "worker/parallel/agreement.h"
#include "worker/parallel/regroup.h"

namespace centroid::parallel {

/// What a rank has of a group.
struct Held {
  std::uint64_t generation = 0;  ///< 0: nothing
  Earlier part{};                ///< without parameters: the rank waits
  std::uint32_t data_world = 1;
};

/// What a rank has of the groups of a job: of the present one, and of the next one while another
/// rank may lack its part of that. After a loss ranks go back to the newest group that is complete
/// on some rank: then each has its part of it. A rank that waits has none, and may still be the
/// only one to know that a group is complete. Pure.
class Generations {
 public:
  const Held& present() const { return present_; }
  const Held& next() const { return next_; }
  /// Each rank of this group has its part. It becomes the present one.
  void complete(const Held& own);
  /// This rank has its part of the next group.
  void prepare(const Held& own) { next_ = own; }
  void clear() { *this = {}; }

  /// What others learn of this rank, as the first numbers of a Notice.
  std::array<std::uint64_t, 2> claim() const;
  /// The rank with the newest complete group; of several one with a part, which knows the run of
  /// its checkpoints.
  static std::uint32_t newest(const std::vector<Notice>& claims);
  /// Forget all but this group, which is complete on some rank. Returns what there is of it.
  Held go_back(std::uint64_t generation);

 private:
  Held of(std::uint64_t generation) const;

  Held present_, next_;
  std::uint64_t complete_ = 0;  ///< the last group that is complete, and of which this rank has its
                                ///< part; 0: none
};

}  // namespace centroid::parallel
