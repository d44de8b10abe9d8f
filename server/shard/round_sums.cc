#include "server/shard/round_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/codec/chunk_codec.h"

namespace centroid::server {

void RoundSums::open(const proto::Opened& opened) {
  if (opened.summed.empty()) return close();  // there is no open attempt
  const bool is_same = aggregator_ && opened.generation == opened_.generation &&
                       opened.round == opened_.round && opened.attempt == opened_.attempt;
  if (is_same) {
    const std::set<MemberId> left(opened.summed.begin(), opened.summed.end());
    for (const auto& [member, rank] : ranks_)
      if (!left.contains(member) && !aggregator_->is_absent(rank)) aggregator_->absent(rank);
    return;
  }
  close();
  opened_ = opened;
  opened_.members.clear();
  begin();
}

void RoundSums::begin() {
  if (opened_.summed.empty() || !chunks_.has_model()) return;
  for (const MemberId member : opened_.summed)
    ranks_.emplace(member, static_cast<std::uint32_t>(ranks_.size()));
  Aggregator::Hooks hooks;
  hooks.target = [this](const Chunk& chunk) { return chunks_.store().spare(chunk); };
  // No snapshot covers the spare plane before the round's commit, which waits until the snapshot
  // has room.
  hooks.is_held = [](ChunkId) { return false; };
  hooks.on_complete = [this](ChunkId, double) {
    ++complete_;
    changed_();
  };
  hooks.run_apart = run_apart_;
  hooks.on_consumed = [this](std::uint32_t rank, std::size_t bytes) {
    release_(opened_.summed[rank], bytes);
  };
  aggregator_ = std::make_unique<Aggregator>(chunks_.plan(), std::move(hooks), chunks_.aggregate());
  aggregator_->begin(std::vector<std::shared_ptr<const Codec>>(ranks_.size()));
}

void RoundSums::restart() {
  const proto::Opened opened = opened_;
  close();
  opened_ = opened;
  begin();
}

void RoundSums::close() {
  if (aggregator_) aggregator_->begin({});  // returns credit
  aggregator_.reset();
  ranks_.clear();
  complete_ = 0;
  opened_ = {};
  changed_();
}

std::optional<std::uint32_t> RoundSums::rank_of(const proto::ContributionKey& key) const {
  const bool is_open = aggregator_ && key.generation == opened_.generation &&
                       key.round == opened_.round && key.attempt == opened_.attempt;
  if (!is_open) return {};
  const auto found = ranks_.find(key.member);
  if (found == ranks_.end() || aggregator_->is_absent(found->second)) return {};
  return found->second;
}

bool RoundSums::expects(const proto::ContributionKey& key) const {
  return rank_of(key).has_value();
}

Status RoundSums::add(const proto::ContributionKey& key, const std::shared_ptr<const Codec>& codec,
                      const proto::Push& push, Buffer payload, std::size_t bytes) {
  const std::uint32_t rank = *rank_of(key);
  const Chunk& chunk = chunks_.plan().chunk(push.chunk);
  const double squares =
      codec_of(*codec, chunks_.plan(), chunk).squares(payload.bytes().first(bytes), chunk.elements);
  if (aggregator_->received(rank) == 0) aggregator_->set_codec(rank, codec);
  return aggregator_->offer(rank, push.chunk, push.weight, std::move(payload), bytes, squares);
}

std::optional<proto::Whole> RoundSums::whole(const proto::ContributionKey& key) const {
  const auto rank = rank_of(key);
  if (!rank || aggregator_->received(*rank) != chunks_.round_chunks().size()) return {};
  proto::Whole whole;
  whole.key = key;
  whole.weight = aggregator_->weight(*rank);
  whole.squares = aggregator_->squares(*rank);
  return whole;
}

Status RoundSums::finish(const proto::Merge& merge) {
  if (chunks_.round_chunks().empty()) return {};
  const auto fail = [&](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition,
                 "Merge of round " + to_string(merge.round) + ": " + why);
  };
  std::set<std::uint32_t> named;
  for (const proto::WeighedContribution& part : merge.parts) {
    const auto rank = rank_of(part.key);
    if (!rank || aggregator_->received(*rank) != chunks_.round_chunks().size())
      return fail("the contribution of member " + to_string(part.key.member) +
                  " has not come as a whole");
    named.insert(*rank);
  }
  for (const auto& [member, rank] : ranks_) {
    if (named.contains(rank)) continue;
    // With a robust aggregate it is one of the F that may be false, in the chunks it has a part of.
    if (chunks_.aggregate().is_mean() && aggregator_->has_part_of(rank))
      return fail("the sum has a part of member " + to_string(member) +
                  ", who does not contribute");
    if (!aggregator_->is_absent(rank)) aggregator_->absent(rank);
  }
  if (complete_ != chunks_.round_chunks().size())
    return fail(std::to_string(complete_) + " of " + std::to_string(chunks_.round_chunks().size()) +
                " chunks are summed");
  return {};
}

}  // namespace centroid::server
