#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/collective/group.h"
#include "worker/parallel/agreement.h"
#include "worker/parallel/regroup.h"

namespace centroid::parallel {

/// What a rank has of a group.
struct Held {
  std::uint64_t generation = 0;                   ///< 0: nothing
  std::shared_ptr<ShardedParameters> parameters;  ///< null: the rank waits
  Portion portion{};
  std::uint32_t data_world = 1;

  Earlier earlier() const { return {parameters.get(), portion}; }
};

/// What a rank has of the groups of a job: of the present one, and of the next one while another
/// rank may lack its part of that. After a loss ranks go back to the newest group that is complete
/// on some rank: then each has its part of it. A rank that waits has none, and may still be the
/// only one to know that a group is complete. Pure.
class Generations {
 public:
  const Held& present() const { return present_; }
  const Held& next() const { return next_; }
  /// This rank has its part of the next group.
  void prepare(Held own) { next_ = std::move(own); }
  /// Each rank of the next group has its part. It becomes the present one.
  void complete();
  void clear() { *this = {}; }

  /// What others learn of this rank, as the first numbers of a Notice.
  std::array<std::uint64_t, 2> claim() const;
  /// The rank with the newest complete group; of several one with a part, which knows the run of
  /// its checkpoints.
  static std::uint32_t newest(const std::vector<Notice>& claims);
  /// Forget all but this group, which is complete on some rank. It becomes the present one.
  void go_back(std::uint64_t generation);

 private:
  Held present_, next_;
};

/// The earlier group from which a new group continues.
struct Origin {
  std::uint32_t rank = 0;        ///< one that knows `generation` to be complete
  std::uint64_t generation = 0;  ///< the newest that is complete; 0: none
  std::string run;               ///< of that rank's checkpoints; may be empty
};

/// Agree on it. Every rank of the new group calls it.
Result<Origin> find_origin(const collective::Group& group, const Generations& own,
                           const std::string& run, std::chrono::milliseconds timeout);

}  // namespace centroid::parallel
