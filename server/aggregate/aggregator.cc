#include "server/aggregate/aggregator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/codec/chunk_codec.h"

namespace centroid::server {

namespace {
/// A short payload is this many times smaller than its numbers: deferring it needs little memory.
constexpr std::size_t kShort = 8;
}  // namespace

Aggregator::Aggregator(const ChunkPlan& plan, Hooks hooks, AggregateRule rule)
    : plan_(plan), hooks_(std::move(hooks)), rule_(rule) {
  if (rule_.is_mean()) return;
  for (std::size_t i = 0; i < kAtOnce; ++i) idle_.push_back(std::make_unique<RobustMean>(rule));
}

void Aggregator::begin(std::vector<std::shared_ptr<const Codec>> codecs) {
  for (ChunkState& state : chunks_)
    for (const Waiting& w : state.waiting)
      if (rule_.is_mean()) hooks_.on_consumed(w.rank, w.bytes);
  waiting_ = combining_ = 0;
  ready_.clear();
  attempt_->is_over = true;
  attempt_ = std::make_shared<Attempt>();
  chunks_.clear();
  chunks_.resize(plan_.chunks().size());
  for (ChunkState& state : chunks_) state.missing = codecs.size();
  ranks_.clear();
  ranks_.resize(codecs.size());
  for (std::size_t r = 0; r < codecs.size(); ++r) {
    ranks_[r].codec = std::move(codecs[r]);
    ranks_[r].seen.resize(plan_.chunks().size());
  }
}

Status Aggregator::offer(std::uint32_t rank, ChunkId chunk, double weight, Buffer payload,
                         std::size_t bytes, double squares) {
  if (chunk.value >= chunks_.size())
    return Error(ErrorCode::kInvalidArgument, "chunk " + to_string(chunk) +
                                                  " does not exist; the plan has " +
                                                  std::to_string(chunks_.size()));
  RankState& source = ranks_[rank];
  if (source.absent || source.seen[chunk.value])
    return Error(ErrorCode::kInvalidArgument, "chunk " + to_string(chunk) + " of rank " +
                                                  std::to_string(rank) +
                                                  " arrived twice or after its end");
  if (source.received > 0 && source.weight != weight)
    return Error(ErrorCode::kInvalidArgument, "the weight of rank " + std::to_string(rank) +
                                                  " changed within its contribution, from " +
                                                  std::to_string(source.weight) + " to " +
                                                  std::to_string(weight));
  source.weight = weight;
  source.squares += squares;
  source.seen[chunk.value] = true;
  --chunks_[chunk.value].missing;
  ++source.received;
  ChunkState& state = chunks_[chunk.value];
  if (!rule_.is_mean()) {
    CENTROID_TRY(check(source, chunk, payload.bytes().first(bytes)));
    state.waiting.push_back({rank, weight, std::move(payload), bytes, false});
    ++waiting_;
    hooks_.on_consumed(rank, bytes);  // others may send other chunks first: all must fit
    advance(chunk);
    return {};
  }
  CENTROID_ASSIGN(const bool waits_for_all,
                  defers(source, state, chunk, payload.bytes().first(bytes)));
  state.is_deferred = waits_for_all;
  if (waits_for_all) source.deferred_bytes += bytes;
  const bool turn = !waits_for_all && state.next == rank && !hooks_.is_held(chunk);
  if (!turn) {
    if (!waits_for_all) CENTROID_TRY(check(source, chunk, payload.bytes().first(bytes)));
    state.waiting.push_back({rank, weight, std::move(payload), bytes, waits_for_all});
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

/// Whether the payload waits until all ranks have sent the chunk. Its faults are reported now,
/// while its sender is present.
Result<bool> Aggregator::defers(const RankState& source, const ChunkState& state, ChunkId chunk,
                                Bytes payload) const {
  const std::uint64_t elements = plan_.chunk(chunk).elements;
  const bool goes_on = state.is_deferred || (state.added == 0 && state.waiting.empty());
  if (!goes_on || payload.size() * kShort > elements * sizeof(float) ||
      source.deferred_bytes + payload.size() > plan_.max_chunk_bytes() / 2)
    return false;
  CENTROID_ASSIGN(const auto sparse, codec_for(source, chunk).sparse(payload, elements));
  return sparse.has_value();
}

const Codec& Aggregator::codec_for(const RankState& source, ChunkId chunk) const {
  return codec_of(*source.codec, plan_, plan_.chunk(chunk));
}

/// Faults of a waiting payload are reported now: at its turn its sender may have ended its
/// contribution, and the round would wait for a chunk that is never sent again.
Status Aggregator::check(const RankState& source, ChunkId chunk, Bytes payload) const {
  return codec_for(source, chunk).check(payload, plan_.chunk(chunk).elements);
}

Status Aggregator::add(ChunkId chunk, std::uint32_t rank, double weight, Bytes payload) {
  ChunkState& state = chunks_[chunk.value];
  const auto sum = hooks_.target(plan_.chunk(chunk));
  CENTROID_TRY(codec_for(ranks_[rank], chunk)
                   .decode_add(payload, static_cast<float>(weight), state.added == 0, sum));
  ++state.added;
  ++ranks_[rank].added;
  state.weight += weight;
  state.next = rank + 1;
  return {};
}

/// Combine a chunk's payloads when none is missing.
void Aggregator::combine(ChunkId chunk) {
  ChunkState& state = chunks_[chunk.value];
  if (state.complete || hooks_.is_held(chunk)) return;
  if (!state.result.empty()) return combined(chunk, std::move(state.result));
  if (state.waiting.empty() || is_missing(chunk)) return;
  if (idle_.empty()) {
    if (!std::exchange(state.is_ready, true)) ready_.push_back(chunk);
    return;
  }
  auto robust = std::move(idle_.back());
  idle_.pop_back();
  start_combining(chunk, std::move(robust));
}

/// From now on its ranks have a part of the sum.
void Aggregator::start_combining(ChunkId chunk, std::unique_ptr<RobustMean> robust) {
  ChunkState& state = chunks_[chunk.value];
  const auto job = std::make_shared<Combination>();
  job->attempt = attempt_;
  job->parts = std::move(state.waiting);
  state.waiting.clear();
  for (const Waiting& w : job->parts) {
    job->codecs.push_back(ranks_[w.rank].codec);
    job->rows.push_back({&codec_for(ranks_[w.rank], chunk), w.payload.bytes().first(w.bytes)});
    ++ranks_[w.rank].added;
  }
  state.added = static_cast<std::uint32_t>(job->parts.size());
  waiting_ -= job->parts.size();
  job->result.resize(plan_.chunk(chunk).elements);
  job->robust = std::move(robust);
  ++combining_;
  auto work = [job = job.get()] {
    job->robust->combine(job->rows, job->result, job->attempt->is_over);
  };
  auto then = [this, chunk, job, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    idle_.push_back(std::move(job->robust));
    if (!job->attempt->is_over) combined(chunk, std::move(job->result));
    while (!idle_.empty() && !ready_.empty()) {
      const ChunkId next = ready_.front();
      ready_.pop_front();
      chunks_[next.value].is_ready = false;
      combine(next);
    }
  };
  if (hooks_.run_apart) return hooks_.run_apart(std::move(work), std::move(then));
  work();
  then();
}

void Aggregator::combined(ChunkId chunk, std::vector<float> result) {
  ChunkState& state = chunks_[chunk.value];
  if (hooks_.is_held(chunk)) {
    state.result = std::move(result);
    return;
  }
  std::ranges::copy(result, hooks_.target(plan_.chunk(chunk)).begin());
  state.complete = true;
  --combining_;
  hooks_.on_complete(chunk, 1.0);  // it is no sum
}

void Aggregator::advance(ChunkId chunk) {
  if (!rule_.is_mean()) return combine(chunk);
  ChunkState& state = chunks_[chunk.value];
  if (state.complete || (state.is_deferred && is_missing(chunk))) return;
  for (;;) {
    while (state.next < ranks_.size() && ranks_[state.next].absent) ++state.next;
    const auto turn = std::ranges::find(state.waiting, state.next, &Waiting::rank);
    if (turn == state.waiting.end()) break;
    if (hooks_.is_held(chunk)) return;
    Waiting waiting = std::move(*turn);
    state.waiting.erase(turn);
    --waiting_;
    if (waiting.is_deferred) ranks_[waiting.rank].deferred_bytes -= waiting.bytes;
    const Status added =
        add(chunk, waiting.rank, waiting.weight, waiting.payload.bytes().first(waiting.bytes));
    waiting.payload = Buffer();
    hooks_.on_consumed(waiting.rank, waiting.bytes);
    CENTROID_CHECK(added.ok());  // it was checked on arrival
  }
  if (is_missing(chunk) || !state.waiting.empty() || state.added == 0) return;
  state.complete = true;
  hooks_.on_complete(chunk, state.weight);
}

Aggregator::Queued Aggregator::queued(std::uint32_t rank) const {
  Queued queued;
  if (!rule_.is_mean()) return queued;  // its credit is returned already
  for (const Chunk& chunk : plan_.chunks()) {
    const ChunkState& state = chunks_[chunk.id.value];
    const auto own = std::ranges::find(state.waiting, rank, &Waiting::rank);
    if (own == state.waiting.end() || own->is_deferred) continue;
    if (queued.bytes == 0) queued.chunk = chunk.id;
    queued.bytes += own->bytes;
    if (state.next >= ranks_.size()) continue;
    const RankState& next = ranks_[state.next];
    if (!next.absent && !next.seen[chunk.id.value]) queued.behind.push_back(state.next);
  }
  std::ranges::sort(queued.behind);
  const auto again = std::ranges::unique(queued.behind);
  queued.behind.erase(again.begin(), again.end());
  return queued;
}

void Aggregator::absent(std::uint32_t rank) {
  const bool was_absent = std::exchange(ranks_[rank].absent, true);
  for (const Chunk& chunk : plan_.chunks()) {
    if (!was_absent && !ranks_[rank].seen[chunk.id.value]) --chunks_[chunk.id.value].missing;
    auto& waiting = chunks_[chunk.id.value].waiting;
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (it->rank == rank) {
        if (rule_.is_mean()) hooks_.on_consumed(rank, it->bytes);
        if (it->is_deferred) ranks_[rank].deferred_bytes -= it->bytes;
        it = waiting.erase(it);
        --waiting_;
      } else {
        ++it;
      }
    }
    advance(chunk.id);
  }
}

std::size_t Aggregator::waiting_bytes() const {
  std::size_t bytes = 0;
  for (const ChunkState& state : chunks_)
    for (const Waiting& one : state.waiting) bytes += one.bytes;
  return bytes;
}

void Aggregator::retry_blocked() {
  if (waiting_ == 0 && combining_ == 0) return;
  for (const Chunk& chunk : plan_.chunks()) {
    const ChunkState& state = chunks_[chunk.id.value];
    if (!state.waiting.empty() || !state.result.empty()) advance(chunk.id);
  }
}

}  // namespace centroid::server
