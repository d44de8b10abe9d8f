#pragma once

#include <chrono>
#include <span>

#include "common/base/result.h"
#include "transport/collective/group.h"
#include "worker/model/tensor_part.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// Combines numbers of a group's ranks.
class GroupReducer final : public PartReducer {
 public:
  /// `timeout` of an operation; 0: the group's.
  GroupReducer(const collective::Group& group, std::chrono::milliseconds timeout)
      : group_(group), timeout_(timeout) {}
  void sum(std::span<float> values) override;
  void largest(std::span<float> values) override;
  const Status& status() const { return status_; }  ///< the first error
  const parallel::Transfers& transfers() const { return transfers_; }

 private:
  void reduce(std::span<float> values, collective::Reduction reduction);

  const collective::Group& group_;
  const std::chrono::milliseconds timeout_;
  Status status_;
  parallel::Transfers transfers_;
};

}  // namespace centroid::worker
