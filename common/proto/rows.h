#pragma once

#include <chrono>

#include "common/base/random.h"
#include "common/proto/messages.h"

/// Messages between a client of sparse rows and the server; docs/reference/wire.md is the contract.
namespace centroid::proto {

/// All are requests of the client; such a session is no worker's.
enum class RowsKind : std::uint16_t {
  kOpen = 64,   ///< answered by RowsOpenReply
  kPull = 65,   ///< payload: keys; answered by their rows as payload, float32
  kPush = 66,   ///< payload: keys, then their gradients, float32; answered by RowsPushReply
  kRoute = 67,  ///< no head; answered by Route (servers.h): which server has which keys
};

/// Keys are placed on servers by bucket. Enough for 82 servers to be within 2 % of the mean.
inline constexpr std::size_t kRowBuckets = 4096;
/// Bits 8 to 19 of the mixed key: within a table its high bits are the place, its low ones the tag.
constexpr std::size_t row_bucket(std::uint64_t key) { return (mix64(key) >> 8) % kRowBuckets; }

/// Rows of one message.
inline constexpr std::uint32_t kMaxRows = 1u << 16;
/// How long a server remembers the pushes of a client without a session.
inline constexpr std::chrono::minutes kRowsClientRetention{10};

struct RowsOpen {
  std::uint64_t client = 0;  ///< drawn at random by the client; the same after a reconnect; not 0
  std::string table;
  template <class F>
  void fields(F& f) {
    f(client), f(table, kMaxNameBytes);
  }
  Status check() const;
};

struct RowsOpenReply {
  std::uint32_t table = 0;  ///< number for RowsPull and RowsPush
  std::uint32_t dim = 0;
  std::uint32_t max_rows = 0;     ///< of one message
  std::uint64_t incarnation = 0;  ///< another one: the server restarted, with what it had saved
  std::uint64_t newest = 0;       ///< highest sequence of this client in its rows; 0: none
  std::string optimizer;
  std::uint32_t lease_ms = 0;  ///< a client that is silent for this long is disconnected
  std::string restored_from;   ///< checkpoint with which the rows started; empty: none
  template <class F>
  void fields(F& f) {
    f(table), f(dim), f(max_rows), f(incarnation), f(newest), f(optimizer, kMaxNameBytes);
    f(lease_ms), f(restored_from, kMaxNameBytes);
  }
  Status check() const;
};

struct RowsPull {
  std::uint32_t table = 0;
  std::uint32_t rows = 0;
  template <class F>
  void fields(F& f) {
    f(table), f(rows);
  }
  Status check() const;
};

struct RowsPush {
  std::uint32_t table = 0;
  std::uint32_t rows = 0;
  std::uint64_t sequence = 0;  ///< of this client over all tables, from 1; the same when sent again
  std::uint64_t step = 0;      ///< of the training, from 1: for the schedule; 0: unknown
  template <class F>
  void fields(F& f) {
    f(table), f(rows), f(sequence), f.tail(step, std::uint64_t{0});
  }
  Status check() const;
};

struct RowsPushReply {
  bool applied = false;  ///< false: it was applied before
  template <class F>
  void fields(F& f) {
    f(applied);
  }
};

}  // namespace centroid::proto
