#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/proto/tables.h"
#include "server/rows/row_table.h"
#include "server/tables/rows_journal.h"
#include "server/tables/table_store.h"

namespace centroid::server {

/// The owners of the buckets of keys (the route), the buckets that this server owns according to
/// its journal (claims), and moves of buckets to and from other servers while the tables are in
/// use.
///
/// giver    find (requests continue), hold (requests for these buckets wait), read, then give or
///          keep
/// taker    put, then take: the rows are then in the tables and in the journal
/// journal  the taker owns a bucket as soon as its Take is on disk; until then the giver has the
///          same rows and no newer ones. So if two servers claim a bucket after a crash, the one
///          with the newer route owns it. The giver's pushes are on disk before a row is read, so
///          the taker has no push that the giver can lose
/// thread   the service's
class BucketMoves {
 public:
  using Buckets = std::vector<std::uint16_t>;

  BucketMoves(TableStore& store, RowsJournal& journal) : store_(store), journal_(journal) {
    route_.servers.emplace_back();  // a single server: this one
  }

  // the route
  const proto::Route& route() const { return route_; }
  /// Set the route, in which this server has index `self`, and its share of max_bytes, which does
  /// not decrease while there are rows. Requests for keys of another server are refused with its
  /// name.
  /// fails  invalid_argument: a share of max_bytes is too small
  Status set_route(proto::Route route, std::size_t self);
  /// fails  aborted: a key belongs to another server, which is named
  Status check_keys(const RowTable& table, std::span<const std::uint64_t> keys) const;

  // the claims
  /// By bucket the newest route in which this server owns it; 0: it does not own it.
  const std::vector<std::uint64_t>& claims() const { return claims_; }
  void claim(const Buckets& buckets, std::uint64_t version);
  /// Claim exactly the buckets of the present route.
  void begin_claims();
  /// Call before serving: drops rows of buckets that this route assigns to other servers.
  /// fails  data_loss: a bucket of this server never arrived.
  Status settle(const proto::Route& route);
  /// Write the claims to the journal. Call after `settle`, when the journal was started.
  void journal_claims();

  // as the giver (outgoing_buckets.cc)
  /// Scan `places` places for the rows of these buckets. Another list restarts the scan, an empty
  /// one ends it. True: the scan is complete. Locks.
  bool find(const Buckets& buckets, std::size_t places);
  /// Memory of the rows that were found, by bucket of the list. Locks.
  std::vector<std::uint64_t> bytes_found() const;
  /// Make requests for these buckets wait until `give` or `keep`. The buckets must have been found.
  /// Call RowsJournal::on_disk next. Locks.
  /// fails  failed_precondition
  Status hold(const Buckets& buckets);
  bool is_held(std::span<const std::uint64_t> keys) const;
  /// The next rows of the held buckets; head.rows 0: no more. Locks.
  void read(std::uint64_t max_payload_bytes, proto::RowsBlock& head,
            std::vector<std::byte>& payload);
  /// This route assigns the buckets to another server: drop their rows.
  Status give(const proto::Route& route, const Buckets& buckets);
  /// This route assigns the buckets to this server.
  Status keep(const proto::Route& route, const Buckets& buckets);

  // as the taker
  /// Stage rows that arrive, outside the tables.
  /// fails  resource_exhausted, as a push
  Status put(const proto::BucketsPut& head, Bytes payload);
  /// The same without a check of memory, for a replay.
  void stage(std::uint32_t table, RowTable::Block block);
  /// Take over the buckets with their staged rows. Call RowsJournal::on_disk next.
  Status take(const proto::Route& route, const Buckets& buckets);
  /// Move the staged rows into the tables. The caller has the lock.
  Status load_staged(std::uint64_t at);
  void drop_staged();

 private:
  /// Position of `read`.
  struct Reader {
    std::size_t table = 0, row = 0;
    bool is_waiting = false, is_read = false;
    RowTable::Block rows, waiting;  ///< of the present table
  };
  Result<std::size_t> place_in(const proto::Route& route) const;
  Status move_to(const proto::Route& route);
  Buckets lost() const;

  void begin(const Buckets& buckets);
  void end();
  void note(std::size_t table, std::vector<std::uint64_t>& keys);
  void note_fresh();
  std::vector<std::uint64_t> keys_of(std::size_t table, const Buckets& buckets) const;
  void read_table();
  void release();

  TableStore& store_;
  RowsJournal& journal_;
  proto::Route route_;
  std::uint16_t self_ = 0;
  std::vector<std::uint64_t> claims_;
  // as the giver
  Buckets wanted_;
  std::vector<std::uint16_t> place_;  ///< in `wanted_`, by bucket; kNotWanted
  std::size_t table_ = 0;             ///< being scanned
  RowTable::Cursor cursor_;
  std::vector<std::vector<std::uint64_t>> fresh_;  ///< stored since `find` began, by table
  std::vector<std::vector<std::vector<std::uint64_t>>> keys_;  ///< by table, by place
  Buckets held_;
  std::vector<bool> is_held_;  ///< by bucket; empty: none
  Reader reader_;
  // as the taker
  std::vector<std::pair<std::uint32_t, RowTable::Block>> staged_;  ///< with their tables
  std::uint64_t staged_bytes_ = 0;
};

}  // namespace centroid::server
