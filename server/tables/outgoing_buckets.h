#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/proto/tables.h"
#include "server/rows/row_table.h"
#include "server/tables/table_store.h"

namespace centroid::server {

/// Buckets of keys that are to go to another server: their rows are found while calls go on, then
/// held, read and dropped.
///
/// thread  as the store's
class OutgoingBuckets {
 public:
  explicit OutgoingBuckets(TableStore& store) : store_(store) {}

  /// Look through so many places for the rows of these buckets. Another list begins anew, an empty
  /// one ends it. True: all are found. Locks.
  bool find(const std::vector<std::uint16_t>& buckets, std::size_t places);
  /// Memory of the rows that were found, by bucket of the list. Locks.
  std::vector<std::uint64_t> bytes_found() const;
  bool is_found(std::uint16_t bucket) const;
  /// Nothing is looked for, and nothing held. Locks.
  void end();

  /// Calls for these, which were found, wait from now on. Locks.
  void hold(const std::vector<std::uint16_t>& buckets);
  bool is_held(std::span<const std::uint64_t> keys) const;
  /// The next rows of what is held; head.rows 0: that was all. Locks.
  void read(std::uint64_t max_payload_bytes, proto::RowsBlock& head,
            std::vector<std::byte>& payload);
  void release();
  /// The keys of these buckets, each once; they are not known any more.
  std::vector<std::uint64_t> take_keys(std::size_t table,
                                       const std::vector<std::uint16_t>& buckets);
  std::size_t tables() const { return keys_.size(); }

 private:
  /// What `read` has got to.
  struct Reader {
    std::size_t table = 0, row = 0;
    bool is_waiting = false, is_read = false;
    RowTable::Block rows, waiting;  ///< of the table that is read
  };
  void begin(const std::vector<std::uint16_t>& buckets);
  void note(std::size_t table, std::vector<std::uint64_t>& keys);
  void note_fresh();
  std::vector<std::uint64_t> keys_of(std::size_t table,
                                     const std::vector<std::uint16_t>& buckets) const;
  void read_table();

  TableStore& store_;
  std::vector<std::uint16_t> wanted_;
  std::vector<std::uint16_t> place_;  ///< in `wanted_`, by bucket; kNotWanted
  std::size_t table_ = 0;             ///< that is looked through
  RowTable::Cursor cursor_;
  std::vector<std::vector<std::uint64_t>> fresh_;              ///< stored meanwhile, by table
  std::vector<std::vector<std::vector<std::uint64_t>>> keys_;  ///< by table, by place
  std::vector<std::uint16_t> held_;
  std::vector<bool> is_held_;  ///< by bucket; empty: none is
  Reader reader_;
};

}  // namespace centroid::server
