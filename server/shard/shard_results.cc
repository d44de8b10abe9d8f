#include <utility>

#include <boost/asio/post.hpp>

#include "common/base/crc32c.h"
#include "server/shard/shard.h"

/// What workers get of a round from a shard server, and what its leader tells of the parameters.
namespace centroid::server {

namespace {
constexpr std::size_t kChunksPerTurn = 4;
constexpr std::size_t kSnapshotBudgetBytes = 64u << 20;
}  // namespace

/// With the model's codec of results, if it has one.
Status Shard::make_replies() {
  if (model_.codec_down == "f32") return {};
  CENTROID_ASSIGN(replies_, ReplyEncoder::make(model_.codec_down, store_->plan(), model_.seed));
  reply_reader_ = std::make_unique<ReplyReader>(replies_->codec(), *store_);
  return {};
}

/// What was prepared and not committed leaves no trace.
void Shard::begin_replies() {
  if (merging_->clears_residual && store_->keeps_residual()) store_->clear_residual();
  replies_->set_rounds(merging_->reply_rounds);
  replies_->begin(merging_->round);
  encoded_.clear();
}

/// The result of a chunk, for everybody who waits for it. A copy, so that a slow reader keeps no
/// round from this memory.
void Shard::emit(const Chunk& chunk, Bytes values) {
  Piece piece;
  piece.head.round = merging_->round;
  piece.head.attempt = merging_->attempt;
  piece.head.chunk = chunk.id;
  piece.values = std::make_shared<const std::vector<std::byte>>(values.begin(), values.end());
  piece.crc = crc32c(*piece.values);
  if (replies_) encoded_[chunk.id] = piece.values;
  for (const MemberId member : merging_->members) {
    const auto found = workers_.find(member);
    if (found == workers_.end()) continue;
    found->second->outgoing.push_back(piece);
    found->second->wake.notify_all();
  }
}

/// A chunk's mean is in the spare plane: send what can be sent now.
Status Shard::encode_reply(const Chunk& chunk) {
  ReplyEncoder::Memory memory;
  memory.means = store_->all_spare();
  if (store_->keeps_residual()) memory.residual = store_->residual();
  const auto send = [this](const Chunk& of, std::vector<std::byte> payload) { emit(of, payload); };
  const TimePoint begin = clock_.now();
  const Status encoded = replies_->complete(chunk.id, memory, send);
  static const trace::Lane kLane("replies");
  probe_.encode().ended(kLane, begin, clock_.now(), merging_->round.value);
  if (encoded.ok()) return encoded;
  return encoded.error().with_context("codec_down on server '" + options_.name + "'");
}

/// Of what the workers decode, by chunk.
Task<Status> Shard::measure_replies(std::vector<double>* squares) {
  for (const Chunk& chunk : part()) {
    const auto of = reply_reader_->squares(chunk, *encoded_.at(chunk.id));
    if (!of.ok()) co_return of.error();
    squares->push_back(*of);
    if (squares->size() % kChunksPerTurn != 0) continue;
    co_await boost::asio::post(executor_, boost::asio::use_awaitable);
    if (!merging_) co_return Error(ErrorCode::kCancelled, "the leader was lost");
  }
  co_return Status();
}

Status Shard::apply_reply(const Chunk& chunk) {
  return reply_reader_->apply(chunk, *encoded_.at(chunk.id));
}

/// Of each chunk that lies here, in the plan's order, while rounds go on.
/// fails aborted: the version is not the present one, or a round is merged; unavailable: a
/// checkpoint is being read
Task<Result<std::vector<StatisticsPart>>> Shard::statistics(proto::Statistics wanted) {
  const std::string what = "Statistics of version " + to_string(wanted.version);
  if (!store_ || wanted.version != store_->version() || merging_)
    co_return Error(ErrorCode::kAborted, what + ": it is not the present one");
  settle();
  auto snapshot = store_->begin_snapshot(kSnapshotBudgetBytes);
  if (!snapshot)
    co_return Error(ErrorCode::kUnavailable, what + ": a checkpoint is being read here");
  std::vector<Chunk> chunks;
  for (const Chunk& chunk : store_->plan().chunks())
    if (is_mine_[chunk.id.value]) chunks.push_back(chunk);
  std::vector<StatisticsPart> parts;
  std::vector<float> values;
  for (const Chunk& chunk : chunks) {
    values.resize(chunk.elements);
    CENTROID_CO_TRY(snapshot->read(0, chunk.position, values));
    StatisticsSum sum;
    sum.add(values);
    parts.push_back(sum.part());
    if (parts.size() % kChunksPerTurn == 0)
      co_await boost::asio::post(executor_, boost::asio::use_awaitable);
  }
  co_return parts;
}

}  // namespace centroid::server
