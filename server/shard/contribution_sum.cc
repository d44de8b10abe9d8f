#include "server/shard/contribution_sum.h"

#include <utility>

namespace centroid::server {

ContributionSum::ContributionSum(Contributions contributions,
                                 const std::vector<proto::WeighedContribution>& parts,
                                 std::shared_ptr<RobustMean> robust)
    : contributions_(std::move(contributions)), parts_(parts), robust_(std::move(robust)) {}

void ContributionSum::write(ChunkId chunk, std::span<float> sum) {
  if (robust_ == nullptr) {
    for (std::size_t i = 0; i < contributions_.size(); ++i)
      contributions_[i]->add_to(sum, chunk, parts_[i].weight, i == 0);
    return;
  }
  rows_.clear();
  for (const auto& one : contributions_) rows_.push_back(one->encoded(chunk));
  robust_->combine(rows_, sum);
}

}  // namespace centroid::server
