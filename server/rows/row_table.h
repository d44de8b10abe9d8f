#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/optim/schedule.h"
#include "server/rows/record_map.h"
#include "server/rows/row_spec.h"

namespace centroid::server {

/// Counters of a table. Reports and views of a table have fields of the same names.
struct RowCounters {
  std::uint64_t pulled = 0, pushed = 0;       ///< requested rows; distinct rows of pushes
  std::uint64_t admitted = 0, held_back = 0;  ///< rows stored; gradients of rows not yet admitted
  std::uint64_t evicted = 0, expired = 0;     ///< for lack of memory; by age
  std::uint64_t duplicates = 0;               ///< repeated keys within a push
};

/// Call `each` with every counter of `one` and the same counter of `other`.
template <class One, class Other, class Each>
void for_counters(One& one, Other& other, Each each) {
  each(one.pulled, other.pulled);
  each(one.pushed, other.pushed);
  each(one.admitted, other.admitted);
  each(one.held_back, other.held_back);
  each(one.evicted, other.evicted);
  each(one.expired, other.expired);
  if constexpr (requires { one.duplicates + other.duplicates; })
    each(one.duplicates, other.duplicates);
}

template <class From, class To>
void copy_counters(const From& from, To& to) {
  for_counters(to, from, [](std::uint64_t& into, std::uint64_t count) { into = count; });
}

template <class From, class To>
void add_counters(const From& from, To& to) {
  for_counters(to, from, [](std::uint64_t& into, std::uint64_t count) { into += count; });
}

/// Sparse rows: key -> dim floats and optimizer state.
///
/// A row that is not stored has its initial values: a function of (seed, key, column). A pull
/// therefore stores nothing, and a row is stored by the push that admits it (`admit_after`-th of
/// its key; the gradients before are dropped and counted). The caller passes the time, in the unit
/// of max_age; it never decreases. A row without a use for longer than max_age counts as not
/// stored. When max_bytes would be exceeded, the least used sixteenth is evicted (by count of uses,
/// halved at every eviction, then age, then key).
///
/// Results depend only on the calls and their order, not on how memory grew.
/// thread  one at a time
class RowTable {
 public:
  /// spec.check() must hold.
  explicit RowTable(RowSpec spec);

  const RowSpec& spec() const { return spec_; }
  /// Change rates and limits. Name, dim, rule, initializer and seed must stay.
  void change(RowSpec spec);
  const RowCounters& counters() const { return counters_; }
  /// Stored rows (expired ones until they are swept) and keys that wait for admission.
  std::size_t rows() const { return rows_.size(); }
  std::size_t candidates() const { return candidates_.size(); }
  std::uint64_t bytes() const { return rows_.bytes() + candidates_.bytes(); }
  /// Memory of values and optimizer state alone.
  std::uint64_t payload_bytes() const;

  /// out: keys.size() * dim. A row that is stored counts as used.
  void pull(std::span<const std::uint64_t> keys, std::span<float> out, std::uint64_t now);
  /// Apply one gradient of dim floats per key. Gradients of a repeated key are added in order, and
  /// the sum is one update. `step`: training step of the push, from 1, for the schedule.
  /// fails  invalid_argument naming the key and column (a gradient or a sum that is not finite, or
  ///        beyond kMaxRowGradient; sizes that do not fit), or `step` 0 with a schedule; then
  ///        nothing has changed.
  Status push(std::span<const std::uint64_t> keys, std::span<const float> gradients,
              std::uint64_t now, std::uint64_t step = 0);
  /// Remove expired rows and candidates at the next `places` places of the index, cyclically.
  void sweep(std::size_t places, std::uint64_t now);

  /// Memory of rows and candidates that suffices for a push of `keys` keys; 0: the present memory.
  std::uint64_t bytes_for_push(std::size_t keys) const;
  /// Number of these keys without a row; repeated keys count repeatedly.
  std::size_t without_row(std::span<const std::uint64_t> keys) const;
  /// Whether a push of `keys` keys may evict.
  bool may_evict(std::size_t keys) const;

  struct Row {
    std::uint64_t key;
    std::uint32_t age, count;  ///< ticks since its last use; uses
    std::span<const float> values, slots;
  };
  /// Every row that has not expired, in order of keys; uses 8 bytes per row while it runs.
  void for_each(std::uint64_t now, const std::function<void(const Row&)>& visit) const;
  /// Restore a row from for_each.
  /// fails  already_exists, resource_exhausted (max_bytes), invalid_argument (sizes, a value that
  ///        is not finite).
  Status restore(const Row& row, std::uint64_t now);

  /// A table at one moment: this, its rows, and the keys that wait for admission.
  struct State {
    std::uint64_t rows = 0, candidates = 0, now = 0;
    RowCounters counters;
    RecordMap::Shape rows_shape, candidates_shape;
  };
  /// Freeze the present state for `take_frozen`. A push that may evict must wait until it has been
  /// read.
  State freeze(std::uint64_t now);
  bool is_frozen() const { return rows_.is_frozen() || candidates_.is_frozen(); }
  /// Memory of records that changed since and were not read.
  std::uint64_t frozen_bytes() const { return rows_.frozen_bytes() + candidates_.frozen_bytes(); }
  /// Upper bound of that memory: if all unread records change.
  std::uint64_t frozen_bytes_at_most() const {
    return rows_.frozen_bytes_at_most() + candidates_.frozen_bytes_at_most();
  }
  /// Some of the frozen rows, then of the candidates.
  struct Block {
    bool is_candidates = false;  ///< then without values and slots
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> ages, counts;
    std::vector<float> values, slots;
  };
  /// The same in the layout of memory: fast to take.
  struct Frozen {
    bool is_candidates = false;
    RecordMap::Frozen slab;
  };
  /// The next rows or candidates; false: no more.
  bool take_frozen(Frozen& frozen);
  /// Whether the next ones are candidates, or none are left.
  bool reads_candidates() const { return !rows_.is_frozen(); }
  /// Append `frozen` to a block of its kind. Reads only frozen memory: any thread.
  void unpack(const Frozen& frozen, std::uint64_t frozen_at, Block& block) const;
  void thaw();
  /// Prepare an empty table for `restore` and `restore_candidate`.
  void begin_restore(const State& state);
  Status restore_candidate(std::uint64_t key, std::uint32_t age, std::uint32_t count,
                           std::uint64_t now);

  // moving rows to another table, by key
  struct Cursor {
    bool is_candidates = false;
    RecordMap::Number next = 0;
  };
  /// Append the keys of the next `records` places of rows, then of candidates; false: no more. Keys
  /// that are stored meanwhile may be missing: use `note_new`.
  bool keys(Cursor& cursor, std::size_t records, std::vector<std::uint64_t>& keys) const;
  /// From now on append keys that are stored, or begin to wait, to `keys`; nullptr: stop.
  void note_new(std::vector<std::uint64_t>* keys) { new_keys_ = keys; }
  /// Append the present rows and candidates of these keys; missing and expired ones are skipped.
  void copy(std::span<const std::uint64_t> keys, std::uint64_t now, Block& rows,
            Block& candidates) const;
  /// Remove the rows and candidates of these keys.
  void drop(std::span<const std::uint64_t> keys);
  /// Add the counters of another table.
  template <class Counted>
  void add(const Counted& counted) {
    add_counters(counted, counters_);
  }

 private:
  using Record = RecordMap::Record;
  bool is_expired(const Record& record, std::uint64_t now) const;
  RecordMap::Number live(RecordMap& map, std::uint64_t key, std::uint64_t now);
  bool admit(std::uint64_t key, std::uint64_t now);
  RecordMap::Number create(std::uint64_t key);
  std::uint64_t candidates_limit() const;
  std::uint64_t rows_limit() const;
  void make_room(RecordMap& map, std::uint64_t limit);
  void evict(RecordMap& map);
  std::size_t sweep_map(RecordMap& map, std::size_t from, std::size_t places, std::uint64_t now);
  /// Write distinct keys and the sums of their gradients to distinct_ and sums_. False: no key
  /// repeats.
  bool merge_duplicates(std::span<const std::uint64_t> keys, std::span<const float> gradients);
  Result<double> rate(std::uint64_t step) const;
  Status check_gradients(std::span<const std::uint64_t> keys, std::span<const float> gradients,
                         std::string_view what) const;
  std::span<float> values(const Record& record) const { return {record.floats(), spec_.dim}; }
  std::span<float> slots(const Record& record) const {
    return {record.floats() + spec_.dim, spec_.slot_floats()};
  }

  RowSpec spec_;
  LearningRateSchedule schedule_;
  RecordMap rows_, candidates_;
  std::size_t rows_cursor_ = 0, candidates_cursor_ = 0;
  RowCounters counters_;
  std::vector<std::uint64_t>* new_keys_ = nullptr;
  // scratch of push
  std::vector<std::uint32_t> seen_;
  std::vector<std::uint64_t> distinct_;
  std::vector<float> sums_;
};

}  // namespace centroid::server
