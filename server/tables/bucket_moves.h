#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/proto/tables.h"
#include "server/tables/bucket_route.h"
#include "server/tables/outgoing_buckets.h"
#include "server/tables/rows_journal.h"
#include "server/tables/table_room.h"
#include "server/tables/table_store.h"

namespace centroid::server {

/// Buckets of keys that go to another server, or come from one, while the tables are in use.
///
/// giver    find (calls go on), hold (calls for them wait), read, and give or keep
/// taker    put, and take: the rows are in the tables and in the journal then
/// journal  who takes a bucket is its owner from the moment that its Take is on the disk; who held
///          it until then has the same rows and no newer ones. So of two that claim a bucket after
///          a crash the one with the newer route is right. What the giver applied is on its disk
///          before a row is read, so no push is in the taker's rows that the giver forgets
/// thread   the service's
class BucketMoves {
 public:
  BucketMoves(TableStore& store, TableRoom& room, BucketRoute& route, RowsJournal& journal)
      : store_(store), room_(room), route_(route), journal_(journal), outgoing_(store) {}

  using Buckets = std::vector<std::uint16_t>;
  /// What lies here from now on, on server `self` of the route.
  /// fails  invalid_argument: a share of max_bytes is too small
  Status set_route(proto::Route route, std::size_t self);

  // as the giver
  OutgoingBuckets& outgoing() { return outgoing_; }
  const OutgoingBuckets& outgoing() const { return outgoing_; }
  /// Calls for these, which were found, wait until they are given or kept.
  /// fails  failed_precondition
  Status hold(const Buckets& buckets);
  /// They lie elsewhere by this route: their rows go.
  Status give(const proto::Route& route, const Buckets& buckets);
  /// They stay here, by this route.
  Status keep(const proto::Route& route, const Buckets& buckets);

  // as the taker
  /// Rows that come, staged beside the tables.
  /// fails  resource_exhausted, as a push
  Status put(const proto::BucketsPut& head, Bytes payload);
  /// The same, without a look at the memory: in a replay.
  void stage(std::uint32_t table, RowTable::Block block);
  /// What was put is here from now on, with these buckets.
  Status take(const proto::Route& route, const Buckets& buckets);
  /// Fill the tables with what is staged. The lock is the caller's.
  Status load_staged(std::uint64_t at);
  void drop_staged();

 private:
  Status move_to(const proto::Route& route);

  TableStore& store_;
  TableRoom& room_;
  BucketRoute& route_;
  RowsJournal& journal_;
  OutgoingBuckets outgoing_;
  std::vector<std::pair<std::uint32_t, RowTable::Block>> staged_;  ///< by table, to come
  std::uint64_t staged_bytes_ = 0;
};

}  // namespace centroid::server
