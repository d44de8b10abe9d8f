#include "server/shard/staged_contributions.h"

#include <utility>

namespace centroid::server {

std::shared_ptr<StagedContribution> StagedContributions::find(
    const proto::ContributionKey& key) const {
  const auto found = staged_.find(key.member);
  if (found == staged_.end()) return nullptr;
  for (const Staged& one : found->second)
    if (one.key == key) return one.contribution;
  return nullptr;
}

bool StagedContributions::stage(const proto::ContributionKey& key, const ChunkPlan& plan,
                                const std::shared_ptr<const Codec>& codec, std::size_t chunks) {
  std::deque<Staged>& kept = staged_[key.member];
  if (!kept.empty() && kept.back().key == key) return true;
  if (!kept.empty() && key < kept.back().key) return false;
  if (key.round <= over_ && !keeps_.contains(key)) return false;
  std::erase_if(kept, [&](const Staged& one) {
    return !one.contribution->is_complete() || one.key.round == key.round;
  });
  if (kept.size() == kPerWorker) kept.pop_front();
  Staged fresh;
  fresh.key = key;
  fresh.contribution = std::make_shared<StagedContribution>(plan, codec, chunks);
  kept.push_back(std::move(fresh));
  return true;
}

void StagedContributions::drop_all_but(const proto::Merge& merge) {
  over_ = merge.round;
  keeps_ = {merge.keeps.begin(), merge.keeps.end()};
  for (const proto::WeighedContribution& one : merge.parts) keeps_.erase(one.key);
  for (auto& [member, kept] : staged_)
    std::erase_if(kept, [this](const Staged& one) {
      return one.key.round <= over_ && !keeps_.contains(one.key);
    });
}

void StagedContributions::reset() {
  staged_.clear();
  over_ = Round();
  keeps_.clear();
}

std::uint64_t StagedContributions::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [member, kept] : staged_)
    for (const Staged& one : kept) bytes += one.contribution->bytes();
  return bytes;
}

}  // namespace centroid::server
