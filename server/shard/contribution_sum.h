#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/proto/servers.h"
#include "server/aggregate/contribution_stage.h"
#include "server/aggregate/robust.h"

namespace centroid::server {

/// The sum of a round's contributions, chunk by chunk, in the order of the leader's decision.
///
/// thread  one
class ContributionSum {
 public:
  using Contributions = std::vector<std::shared_ptr<const StagedContribution>>;

  /// `parts`: their weights, in the same order; they outlive it. `robust`: nullptr: the mean.
  ContributionSum(Contributions contributions, const std::vector<proto::WeighedContribution>& parts,
                  std::shared_ptr<RobustMean> robust);

  std::size_t count() const { return contributions_.size(); }
  void write(ChunkId chunk, std::span<float> sum);

 private:
  const Contributions contributions_;
  const std::vector<proto::WeighedContribution>& parts_;
  const std::shared_ptr<RobustMean> robust_;
  std::vector<RobustMean::Encoded> rows_;  // scratch
};

}  // namespace centroid::server
