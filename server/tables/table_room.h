#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"
#include "server/store/duty_cycle.h"
#include "server/tables/table_store.h"

namespace centroid::server {

/// The memory that tables may take: for rows, for rows that come from other servers, and for copies
/// of rows that change before a checkpoint has read them.
///
/// thread  as the store's
class TableRoom {
 public:
  explicit TableRoom(const TableStore& store) : store_(store) {}

  /// Memory for all tables. `source`: of the limit, for errors
  void set(std::uint64_t bytes, std::string source);
  /// Memory that the tables may take or have taken: max_bytes, of a table without it what it has.
  std::uint64_t reserved_bytes() const;
  /// A push of these keys.
  /// fails  resource_exhausted: a table without max_bytes would need more
  Status check_push(const RowTable& table, std::span<const std::uint64_t> keys) const;
  /// So many bytes of rows are staged beside the tables, to come into this one.
  /// fails  resource_exhausted, as a push
  Status check_staged(const RowSpec& spec, std::uint64_t bytes) const;

  // a checkpoint that reads the tables meanwhile
  /// `duty`: nobody waits for it yet; a push that it holds up hurries it.
  void begin_snapshot(std::shared_ptr<DutyCycle> duty);
  /// This push has to wait until the checkpoint has read more. The lock is the caller's.
  bool is_held_up(const RowTable& table, std::span<const std::uint64_t> pushed) const;
  void hurry_snapshot();

 private:
  std::uint64_t copy_budget() const;
  std::uint64_t bytes_after(const RowTable& table, std::span<const std::uint64_t> pushed) const;

  const TableStore& store_;
  std::uint64_t bytes_ = ~std::uint64_t{0};
  std::string source_;
  std::shared_ptr<DutyCycle> duty_;  ///< of the newest snapshot
};

}  // namespace centroid::server
