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

/// Which server has which buckets of keys (the route), which of them are this server's as its
/// journal knows (claims), and buckets that go to another server, or come from one, while the
/// tables are in use.
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
  using Buckets = std::vector<std::uint16_t>;

  BucketMoves(TableStore& store, RowsJournal& journal) : store_(store), journal_(journal) {
    route_.servers.emplace_back();  // this one alone
  }

  // the route
  const proto::Route& route() const { return route_; }
  /// Rows of these buckets of keys lie here from now on, on server `self` of the route; of
  /// max_bytes the same share, but not less than it was since rows are here. Requests for other
  /// keys are refused with the name of their server.
  /// fails  invalid_argument: a share of max_bytes is too small
  Status set_route(proto::Route route, std::size_t self);
  /// fails  aborted: a key lies on another server, which is named
  Status check_keys(const RowTable& table, std::span<const std::uint64_t> keys) const;

  // the claims
  /// By bucket the newest route by which it was this server's; 0: it is not.
  const std::vector<std::uint64_t>& claims() const { return claims_; }
  void claim(const Buckets& buckets, std::uint64_t version);
  /// Claim what the present route says, and nothing else.
  void begin_claims();
  /// Before it serves: rows of buckets that lie elsewhere by this route go.
  /// fails  data_loss: buckets that are to lie here were never brought here.
  Status settle(const proto::Route& route);
  /// After `settle`, and when the journal was started: it says what is this server's.
  void journal_claims();

  // as the giver (outgoing_buckets.cc)
  /// Look through so many places for the rows of these buckets. Another list begins anew, an empty
  /// one ends it. True: all are found. Locks.
  bool find(const Buckets& buckets, std::size_t places);
  /// Memory of the rows that were found, by bucket of the list. Locks.
  std::vector<std::uint64_t> bytes_found() const;
  /// Calls for these, which were found, wait until they are given or kept. Then
  /// RowsJournal::on_disk. Locks.
  /// fails  failed_precondition
  Status hold(const Buckets& buckets);
  bool is_held(std::span<const std::uint64_t> keys) const;
  /// The next rows of what is held; head.rows 0: that was all. Locks.
  void read(std::uint64_t max_payload_bytes, proto::RowsBlock& head,
            std::vector<std::byte>& payload);
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
  /// What was put is here from now on, with these buckets. Then RowsJournal::on_disk.
  Status take(const proto::Route& route, const Buckets& buckets);
  /// Fill the tables with what is staged. The lock is the caller's.
  Status load_staged(std::uint64_t at);
  void drop_staged();

 private:
  /// What `read` has got to.
  struct Reader {
    std::size_t table = 0, row = 0;
    bool is_waiting = false, is_read = false;
    RowTable::Block rows, waiting;  ///< of the table that is read
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
  std::size_t table_ = 0;             ///< that is looked through
  RowTable::Cursor cursor_;
  std::vector<std::vector<std::uint64_t>> fresh_;              ///< stored meanwhile, by table
  std::vector<std::vector<std::vector<std::uint64_t>>> keys_;  ///< by table, by place
  Buckets held_;
  std::vector<bool> is_held_;  ///< by bucket; empty: none is
  Reader reader_;
  // as the taker
  std::vector<std::pair<std::uint32_t, RowTable::Block>> staged_;  ///< by table, to come
  std::uint64_t staged_bytes_ = 0;
};

}  // namespace centroid::server
