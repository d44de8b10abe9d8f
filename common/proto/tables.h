#pragma once

#include <array>

#include "common/proto/rows.h"
#include "common/proto/servers.h"

/// Messages between a leader and the shard servers of its tables of sparse rows;
/// docs/reference/wire.md is the contract.
namespace centroid::proto {

/// All are requests of the leader.
enum class TablesKind : std::uint16_t {
  kTables = 144,        ///< Tables: these tables, empty, and which keys are yours
  kRowsLoad = 145,      ///< RowsBlock, payload: rows of a checkpoint that lie with you
  kPushesLoad = 146,    ///< PushesBlock, payload: what clients had pushed by then
  kReplay = 147,        ///< no head: all is loaded, apply what your journal has behind it
  kServe = 148,         ///< Route: begin a journal, if there is to be one, and serve clients
  kRowsFreeze = 149,    ///< RowsFreeze; answered by RowsFrozen: keep what you have for RowsRead
  kRowsRead = 150,      ///< RowsRead; answered by RowsBlock and payload: the next rows of a table
  kPushesRead = 151,    ///< PushesBlock; answered by PushesBlock and payload
  kRowsThaw = 152,      ///< RowsThaw: nothing is to be kept any more
  kTablesReport = 153,  ///< no head; answered by TablesReport
  // buckets that move while tables are in use
  kBucketsFind = 154,   ///< Buckets; answered by BucketsFound: look for their rows, some at a time
  kBucketsBlock = 155,  ///< Buckets: calls for them wait from now; what they did is on the disk
  kBucketsRead = 156,   ///< no head; answered by RowsBlock and payload: the next rows of those
  kBucketsPut = 157,    ///< BucketsPut, payload: rows of buckets that come to you
  kBucketsTake = 158,   ///< BucketsRoute: they are yours; answered when that is on the disk
  kBucketsRelease = 159,  ///< BucketsRoute: they are yours no longer; none: a new route only
  kBucketsRetain = 160,   ///< BucketsRoute: they stay yours
  kBucketsClaims = 161,   ///< no head; answered by a payload: by bucket the newest route (u64) by
                          ///< which it was yours; 0: it is not
};

/// Of a payload between two servers; a larger one would delay their heartbeats.
inline constexpr std::uint64_t kMaxRowsPayload = 1u << 20;
/// Bytes of one client in a payload: client and newest (u64), 1024 bits.
inline constexpr std::size_t kPushesEntryBytes = 8 + 8 + 128;
inline constexpr std::size_t kMaxTablesBytes = 32u << 10;

struct Tables {
  std::string tables;             ///< as in the setting `tables`
  std::uint64_t clock = 0;        ///< seconds since the tables began
  std::uint64_t saved_clock = 0;  ///< when the rows that follow were saved
  std::string restored_from;      ///< checkpoint whose rows follow; empty: none
  bool writes_journal = false;    ///< pushes are in a journal before they are answered
  std::uint32_t journal_sync_ms = 0;
  std::uint64_t journal = 0;  ///< the first segment after the checkpoint; 0: none counts
  Route route;                ///< owners by bucket of what follows
  template <class F>
  void fields(F& f) {
    f(tables, kMaxTablesBytes), f(clock), f(saved_clock), f(restored_from, kMaxNameBytes),
        f(writes_journal);
    f(journal_sync_ms), f(journal), route.fields(f);
  }
  Status check() const;
};

/// Payload: `rows` keys (u64), ages (u32), counts (u32), and of rows values and optimizer state
/// (f32). As an answer: no rows, the end of the table.
struct RowsBlock {
  std::uint32_t table = 0;
  bool is_waiting = false;  ///< keys that wait for admission
  std::uint32_t rows = 0;
  template <class F>
  void fields(F& f) {
    f(table), f(is_waiting), f(rows);
  }
  Status check() const;
};

/// Payload: `clients` entries of kPushesEntryBytes. As a request: from the entry `first` on.
struct PushesBlock {
  std::uint32_t first = 0, clients = 0;
  template <class F>
  void fields(F& f) {
    f(first), f(clients);
  }
};

struct RowsFreeze {
  bool is_last = false;  ///< the job ends: there are no more pushes
  template <class F>
  void fields(F& f) {
    f(is_last);
  }
};

struct FrozenTable {
  std::uint64_t rows = 0, waiting = 0;
  std::uint64_t pulled = 0, pushed = 0, admitted = 0, held_back = 0, evicted = 0, expired = 0,
                duplicates = 0;
  template <class F>
  void fields(F& f) {
    f(rows), f(waiting), f(pulled), f(pushed), f(admitted), f(held_back), f(evicted), f(expired),
        f(duplicates);
  }
};

struct RowsFrozen {
  std::uint64_t clock = 0, changes = 0;
  std::uint64_t journal = 0;  ///< the first segment after the retained state
  std::uint32_t clients = 0;  ///< entries for PushesRead
  std::vector<FrozenTable> tables;
  template <class F>
  void fields(F& f) {
    f(clock), f(changes), f(journal), f(clients), f(tables);
  }
};

/// Find: a new list starts again, an empty one ends it.
struct Buckets {
  std::vector<std::uint16_t> buckets;
  template <class F>
  void fields(F& f) {
    f(buckets);
  }
  Status check() const;
};

struct BucketsFound {
  bool is_done = false;
  std::vector<std::uint64_t> bytes;  ///< of the rows, by bucket of the list; about
  template <class F>
  void fields(F& f) {
    f(is_done), f(bytes);
  }
};

/// Payload: as of RowsBlock.
struct BucketsPut {
  bool is_first = false;  ///< of a Take: earlier ones are void
  std::uint32_t table = 0;
  bool is_waiting = false;
  std::uint32_t rows = 0;
  template <class F>
  void fields(F& f) {
    f(is_first), f(table), f(is_waiting), f(rows);
  }
  Status check() const;
};

struct BucketsRoute {
  Route route;  ///< from now on
  std::vector<std::uint16_t> buckets;
  template <class F>
  void fields(F& f) {
    route.fields(f);
    f(buckets);
  }
  Status check() const;
};

struct RowsRead {
  std::uint32_t table = 0;
  template <class F>
  void fields(F& f) {
    f(table);
  }
};

struct RowsThaw {
  std::uint64_t journal = 0;  ///< a checkpoint is written that needs no segment below; 0: none is
  template <class F>
  void fields(F& f) {
    f(journal);
  }
};

struct TableReport {
  std::uint64_t rows = 0, waiting = 0, bytes = 0, payload_bytes = 0;
  std::uint64_t pulled = 0, pushed = 0, admitted = 0, held_back = 0, evicted = 0, expired = 0;
  template <class F>
  void fields(F& f) {
    f(rows), f(waiting), f(bytes), f(payload_bytes);
    f(pulled), f(pushed), f(admitted), f(held_back), f(evicted), f(expired);
  }
  bool operator==(const TableReport&) const = default;
};

/// A delayed request of a client.
struct RowsWait {
  std::string waiter, waits_for, what;
  double seconds = 0;
  template <class F>
  void fields(F& f) {
    f(waiter, kMaxNameBytes), f(waits_for, kMaxNameBytes), f(what, kMaxTextBytes), f(seconds);
  }
};

struct TablesReport {
  bool is_loaded = false;     ///< checkpoint and journal; if not, the rest is unset
  std::uint64_t changes = 0;  ///< pushes applied
  std::uint64_t journal_bytes = 0;
  std::uint32_t clients = 0;  ///< that are connected
  bool is_broken = false;     ///< its journal: only a checkpoint repairs it
  std::vector<TableReport> tables;
  std::vector<RowsWait> waits;
  template <class F>
  void fields(F& f) {
    f(is_loaded), f(changes), f(journal_bytes), f(clients), f(is_broken), f(tables), f(waits);
  }
};

}  // namespace centroid::proto
