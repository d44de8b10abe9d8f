#include "server/tables/bucket_moves.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "common/checkpoint/fault_point.h"
#include "common/proto/rows.h"
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
  route_ = std::move(route);
  self_ = static_cast<std::uint16_t>(self);
  return {};
}

/// This server's index in another route.
Result<std::size_t> BucketMoves::place_in(const proto::Route& route) const {
  const auto self =
      std::ranges::find(route.servers, route_.servers[self_].name, &proto::RouteServer::name);
  if (self == route.servers.end() || route.owners.size() != proto::kRowBuckets)
    return Error(ErrorCode::kInvalidArgument,
                 "the route does not name server '" + route_.servers[self_].name + "'");
  return static_cast<std::size_t>(self - route.servers.begin());
}

Status BucketMoves::move_to(const proto::Route& route) {
  CENTROID_ASSIGN(const std::size_t self, place_in(route));
  return set_route(route, self);
}

Status BucketMoves::check_keys(const RowTable& table, std::span<const std::uint64_t> keys) const {
  if (route_.servers.size() <= 1) return {};
  for (const std::uint64_t key : keys) {
    const std::uint16_t owner = route_.owners[proto::row_bucket(key)];
    if (owner == self_) continue;
    return Error(ErrorCode::kAborted,
                 "key " + std::to_string(key) + " of table '" + table.spec().name +
                     "' lies by route " + std::to_string(route_.version) + " on server '" +
                     route_.servers[owner].name + "', not on '" + route_.servers[self_].name +
                     "': the leader tells the route (RowsRoute)");
  }
  return {};
}

void BucketMoves::claim(const Buckets& buckets, std::uint64_t version) {
  for (const std::uint16_t bucket : buckets) claims_[bucket] = version;
}

void BucketMoves::begin_claims() {
  claims_.assign(proto::kRowBuckets, 0);
  for (std::size_t bucket = 0; bucket < route_.owners.size(); ++bucket)
    if (route_.owners[bucket] == self_) claims_[bucket] = route_.version;
}

/// Claimed buckets that the route assigns to another server.
BucketMoves::Buckets BucketMoves::lost() const {
  Buckets found;
  for (std::size_t bucket = 0; bucket < route_.owners.size(); ++bucket)
    if (route_.owners[bucket] != self_ && claims_[bucket] != 0)
      found.push_back(static_cast<std::uint16_t>(bucket));
  return found;
}

Status BucketMoves::settle(const proto::Route& route) {
  CENTROID_ASSIGN(const std::size_t self, place_in(route));
  for (std::size_t bucket = 0; bucket < route.owners.size(); ++bucket)
    if (route.owners[bucket] == self && claims_[bucket] == 0)
      return Error(ErrorCode::kDataLoss,
                   "bucket " + std::to_string(bucket) +
                       " of the tables lies on this server by route " +
                       std::to_string(route.version) +
                       ", and its journal has not its rows: is this another run_dir?");
  CENTROID_TRY(set_route(route, self));
  const Buckets gone = lost();
  if (gone.empty()) return {};
  const std::lock_guard lock(store_.mutex());
  store_.drop_buckets(gone);
  store_.update_probes();
  return {};
}

void BucketMoves::journal_claims() {
  const Buckets gone = lost();
  Buckets here;
  for (std::size_t bucket = 0; bucket < route_.owners.size(); ++bucket)
    if (route_.owners[bucket] == self_) here.push_back(static_cast<std::uint16_t>(bucket));
  claim(here, route_.version);
  claim(gone, 0);
  if (!here.empty()) journal_.take(route_.version, here, false);
  if (!gone.empty()) journal_.give(route_.version, gone, true);
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
  CENTROID_TRY(store_.check_staged(store_.spec(head.table), staged_bytes_ + bytes_of(block)));
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
    CENTROID_TRY(store_.put(table, block, at));
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
  journal_.take(route_.version, buckets, true);
  claim(buckets, route_.version);
  store_.count_change();
  store_.log_left_out();
  fault::point("rows_moves.taken");
  return {};
}

}  // namespace centroid::server
