#include "server/aggregate/aggregator.h"

#include <algorithm>
#include <string>

namespace centroid::server {

Aggregator::Aggregator(const ChunkPlan& plan, bool in_rank_order, Hooks hooks)
    : plan_(plan), in_rank_order_(in_rank_order), hooks_(std::move(hooks)) {}

void Aggregator::begin(std::vector<std::shared_ptr<const Codec>> codecs) {
  for (ChunkState& state : chunks_)
    for (const Waiting& w : state.waiting) hooks_.on_consumed(w.rank, w.bytes);
  waiting_ = 0;
  chunks_.clear();
  chunks_.resize(plan_.chunks().size());
  ranks_.clear();
  ranks_.resize(codecs.size());
  for (std::size_t r = 0; r < codecs.size(); ++r) {
    ranks_[r].codec = std::move(codecs[r]);
    ranks_[r].seen.resize(plan_.chunks().size());
  }
}

Status Aggregator::offer(std::uint32_t rank, ChunkId chunk, double weight, Buffer payload,
                         std::size_t bytes) {
  if (chunk.value >= chunks_.size())
    return Error(ErrorCode::kInvalidArgument, "chunk " + to_string(chunk) +
                                                  " does not exist; the plan has " +
                                                  std::to_string(chunks_.size()));
  RankState& source = ranks_[rank];
  if (source.absent || source.seen[chunk.value])
    return Error(ErrorCode::kInvalidArgument, "chunk " + to_string(chunk) + " of rank " +
                                                  std::to_string(rank) +
                                                  " came twice or after its end");
  if (source.received > 0 && source.weight != weight)
    return Error(ErrorCode::kInvalidArgument, "the weight of rank " + std::to_string(rank) +
                                                  " changed within its contribution, from " +
                                                  std::to_string(source.weight) + " to " +
                                                  std::to_string(weight));
  source.weight = weight;
  source.seen[chunk.value] = true;
  ++source.received;
  ChunkState& state = chunks_[chunk.value];
  const bool turn = (!in_rank_order_ || state.next == rank) && !hooks_.is_held(chunk);
  if (!turn) {
    state.waiting.push_back({rank, weight, std::move(payload), bytes});
    ++waiting_;
    advance(chunk);  // lower ranks may be absent
    return {};
  }
  CENTROID_TRY(add(chunk, rank, weight, payload.bytes().first(bytes)));
  payload = Buffer();
  hooks_.on_consumed(rank, bytes);
  advance(chunk);
  return {};
}

Status Aggregator::add(ChunkId chunk, std::uint32_t rank, double weight, Bytes payload) {
  ChunkState& state = chunks_[chunk.value];
  const auto sum = hooks_.target(plan_.chunk(chunk));
  CENTROID_TRY(
      ranks_[rank].codec->decode_add(payload, static_cast<float>(weight), state.added == 0, sum));
  ++state.added;
  ++ranks_[rank].added;
  state.weight += weight;
  if (in_rank_order_) state.next = rank + 1;
  return {};
}

void Aggregator::advance(ChunkId chunk) {
  ChunkState& state = chunks_[chunk.value];
  if (state.complete) return;
  bool missing = false;
  for (;;) {
    if (in_rank_order_)
      while (state.next < ranks_.size() && ranks_[state.next].absent) ++state.next;
    const auto turn =
        std::find_if(state.waiting.begin(), state.waiting.end(),
                     [&](const Waiting& w) { return !in_rank_order_ || w.rank == state.next; });
    if (turn == state.waiting.end()) break;
    if (hooks_.is_held(chunk)) return;
    Waiting waiting = std::move(*turn);
    state.waiting.erase(turn);
    --waiting_;
    const Status added =
        add(chunk, waiting.rank, waiting.weight, waiting.payload.bytes().first(waiting.bytes));
    waiting.payload = Buffer();
    hooks_.on_consumed(waiting.rank, waiting.bytes);
    if (!added.ok()) {
      hooks_.on_bad(waiting.rank, added.error());
      return;
    }
  }
  for (const RankState& rank : ranks_)
    missing = missing || (!rank.absent && !rank.seen[chunk.value]);
  if (missing || !state.waiting.empty() || state.added == 0) return;
  state.complete = true;
  hooks_.on_complete(chunk, state.weight);
}

void Aggregator::absent(std::uint32_t rank) {
  ranks_[rank].absent = true;
  for (const Chunk& chunk : plan_.chunks()) {
    auto& waiting = chunks_[chunk.id.value].waiting;
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (it->rank == rank) {
        hooks_.on_consumed(rank, it->bytes);
        it = waiting.erase(it);
        --waiting_;
      } else {
        ++it;
      }
    }
    advance(chunk.id);
  }
}

void Aggregator::retry_held() {
  for (const Chunk& chunk : plan_.chunks())
    if (!chunks_.empty() && !chunks_[chunk.id.value].waiting.empty()) advance(chunk.id);
}

}  // namespace centroid::server
