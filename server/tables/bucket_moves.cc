#include "server/tables/bucket_moves.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "common/checkpoint/fault_point.h"
#include "server/tables/row_blocks.h"

namespace centroid::server {

namespace {

std::uint64_t bytes_of(const RowTable::Block& block) {
  return block.keys.size() * 16 + (block.values.size() + block.slots.size()) * sizeof(float);
}

}  // namespace

Status BucketMoves::set_route(proto::Route route, std::size_t self) {
  const auto mine = static_cast<std::uint64_t>(
      std::ranges::count(route.owners, static_cast<std::uint16_t>(self)));
  CENTROID_TRY(store_.share_max_bytes(route.servers.size(), mine));
  route_.set(std::move(route), self);
  return {};
}

Status BucketMoves::move_to(const proto::Route& route) {
  CENTROID_ASSIGN(const std::size_t self, route_.place_in(route));
  return set_route(route, self);
}

Status BucketMoves::hold(const Buckets& buckets) {
  for (const std::uint16_t bucket : buckets)
    if (!outgoing_.is_found(bucket) || !route_.is_mine(bucket))
      return Error(ErrorCode::kFailedPrecondition, "bucket " + std::to_string(bucket) +
                                                       " does not lie here, or was not looked for");
  outgoing_.hold(buckets);
  fault::point("rows_moves.held");
  return {};
}

Status BucketMoves::give(const proto::Route& route, const Buckets& buckets) {
  CENTROID_TRY(move_to(route));
  if (buckets.empty()) return {};
  outgoing_.release();
  for (std::size_t i = 0; i < outgoing_.tables(); ++i) {
    const auto keys = outgoing_.take_keys(i, buckets);
    if (keys.empty()) continue;
    const std::lock_guard lock(store_.mutex());
    store_.table(i).drop(keys);
    store_.update_probe(i);
    journal_.drop(i, keys);
  }
  journal_.give(route_, buckets, false);
  route_.release(buckets);
  store_.count_change();
  fault::point("rows_moves.given");
  return {};
}

Status BucketMoves::keep(const proto::Route& route, const Buckets& buckets) {
  CENTROID_TRY(move_to(route));
  outgoing_.release();
  // Newer than what the other may have in its journal; pushes stand behind it.
  journal_.take(route_, buckets, false);
  route_.claim(buckets);
  return {};
}

Status BucketMoves::put(const proto::BucketsPut& head, Bytes payload) {
  if (head.is_first) drop_staged();
  if (head.rows == 0) return {};
  if (head.table >= store_.size())
    return Error(ErrorCode::kInvalidArgument, "BucketsPut.table is " + std::to_string(head.table) +
                                                  ", there are " + std::to_string(store_.size()) +
                                                  " tables");
  proto::RowsBlock of;
  of.table = head.table;
  of.is_waiting = head.is_waiting;
  of.rows = head.rows;
  CENTROID_ASSIGN(auto block, rows_of(of, store_.spec(head.table), payload));
  CENTROID_TRY(room_.check_staged(store_.spec(head.table), staged_bytes_ + bytes_of(block)));
  stage(head.table, std::move(block));
  fault::point("rows_moves.put");
  return {};
}

void BucketMoves::stage(std::uint32_t table, RowTable::Block block) {
  staged_bytes_ += bytes_of(block);
  staged_.emplace_back(table, std::move(block));
}

void BucketMoves::drop_staged() {
  staged_.clear();
  staged_bytes_ = 0;
}

Status BucketMoves::load_staged(std::uint64_t at) {
  for (const auto& [table, block] : staged_) {
    CENTROID_TRY(store_.load(table, block, at));
    journal_.rows(table, block, at);
  }
  drop_staged();
  return {};
}

Status BucketMoves::take(const proto::Route& route, const Buckets& buckets) {
  CENTROID_TRY(move_to(route));
  if (buckets.empty()) return {};
  {
    const std::lock_guard lock(store_.mutex());
    CENTROID_TRY(load_staged(store_.now()));
    store_.update_probes();
  }
  journal_.take(route_, buckets, true);
  route_.claim(buckets);
  store_.count_change();
  store_.log_left_out();
  fault::point("rows_moves.taken");
  return {};
}

}  // namespace centroid::server
