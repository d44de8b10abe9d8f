#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/optim/schedule.h"
#include "server/rows/record_map.h"
#include "server/rows/row_spec.h"

namespace centroid::server {

/// What a table has counted. Reports and views of a table have fields of the same names.
struct RowCounters {
  std::uint64_t pulled = 0, pushed = 0;       ///< rows asked for; distinct rows of pushes
  std::uint64_t admitted = 0, held_back = 0;  ///< rows stored; gradients of rows not yet admitted
  std::uint64_t evicted = 0, expired = 0;     ///< for want of memory; by age
  std::uint64_t duplicates = 0;               ///< keys that stood in a push before
};

/// `each` is called with every counter of the one and the same of the other.
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
/// its key; the gradients before are dropped and counted). Time is a number the caller gives, the
/// same unit as max_age, never going back; a row that nothing has used for longer than max_age is
/// as if it were not there. When max_bytes would be exceeded, the least used sixteenth is evicted
/// (by count of uses, halved at every eviction, then age, then key).
///
/// What a table answers depends on the calls and their order, not on how it grew.
/// thread  one at a time
class RowTable {
 public:
  /// spec.check() must hold.
  explicit RowTable(RowSpec spec);

  const RowSpec& spec() const { return spec_; }
  /// From now on; what the rows themselves depend on (name, dim, rule, initializer, seed) must be
  /// as it was.
  void change(RowSpec spec);
  const RowCounters& counters() const { return counters_; }
  /// Stored rows (expired ones until they are swept) and keys that wait for admission.
  std::size_t rows() const { return rows_.size(); }
  std::size_t candidates() const { return candidates_.size(); }
  std::uint64_t bytes() const { return rows_.bytes() + candidates_.bytes(); }
  /// Of values and optimizer state alone.
  std::uint64_t payload_bytes() const;

  /// out: keys.size() * dim. A row that is stored counts as used.
  void pull(std::span<const std::uint64_t> keys, std::span<float> out, std::uint64_t now);
  /// One gradient of dim floats a key. Gradients of a key that comes twice are added in their
  /// order, and the sum is one update. `step`: of the training that the push belongs to, from 1;
  /// what the schedule goes by.
  /// fails  invalid_argument naming the key and column (a gradient or a sum that is not finite, or
  ///        beyond kMaxRowGradient; sizes that do not fit), or when there is a schedule and `step`
  ///        is 0; then nothing has changed.
  Status push(std::span<const std::uint64_t> keys, std::span<const float> gradients,
              std::uint64_t now, std::uint64_t step = 0);
  /// Take away expired rows and candidates at some `places` places of the index, going round.
  void sweep(std::size_t places, std::uint64_t now);

  /// Memory of rows and candidates that are enough for a push of so many keys; 0: no more than
  /// now.
  std::uint64_t bytes_for_push(std::size_t keys) const;
  /// How many of these keys have no row, those that come twice twice.
  std::size_t without_row(std::span<const std::uint64_t> keys) const;
  /// A push of so many keys may evict.
  bool may_evict(std::size_t keys) const;

  struct Row {
    std::uint64_t key;
    std::uint32_t age, count;  ///< ticks since its last use; uses
    std::span<const float> values, slots;
  };
  /// Every row that has not expired, in order of keys; takes 8 bytes a row while it runs.
  void for_each(std::uint64_t now, const std::function<void(const Row&)>& visit) const;
  /// Put a row back as for_each gave it.
  /// fails  already_exists, resource_exhausted (max_bytes), invalid_argument (sizes, a value that
  ///        is not finite).
  Status restore(const Row& row, std::uint64_t now);

  /// A table as it was at one moment: this, its rows, and the keys that waited for admission.
  struct State {
    std::uint64_t rows = 0, candidates = 0, now = 0;
    RowCounters counters;
    RecordMap::Shape rows_shape, candidates_shape;
  };
  /// Keep the present state for `read_frozen`; a push that may evict must wait until it has been
  /// read.
  State freeze(std::uint64_t now);
  bool is_frozen() const { return rows_.is_frozen() || candidates_.is_frozen(); }
  /// Memory of what has changed since and was not read.
  std::uint64_t frozen_bytes() const { return rows_.frozen_bytes() + candidates_.frozen_bytes(); }
  /// That memory when all that was not read will have changed.
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
  /// The same as it lies in memory: quick to take.
  struct Frozen {
    bool is_candidates = false;
    RecordMap::Frozen slab;
  };
  /// The next rows or candidates; false: that was all.
  bool take_frozen(Frozen& frozen);
  /// The next ones are candidates, or there are none.
  bool reads_candidates() const { return !rows_.is_frozen(); }
  /// Append what was taken to a block of its kind. It looks at nothing that changes: any thread.
  void unpack(const Frozen& frozen, std::uint64_t frozen_at, Block& block) const;
  void thaw();
  /// Of an empty table: make ready to be filled by `restore` and `restore_candidate`.
  void begin_restore(const State& state);
  Status restore_candidate(std::uint64_t key, std::uint32_t age, std::uint32_t count,
                           std::uint64_t now);

  // rows that go to another table, by their keys
  struct Cursor {
    bool is_candidates = false;
    RecordMap::Number next = 0;
  };
  /// Append the keys of the next `records` places of rows, then of candidates; false: that was all.
  /// What is stored meanwhile may be missing: `note_new` has it.
  bool keys(Cursor& cursor, std::size_t records, std::vector<std::uint64_t>& keys) const;
  /// From now on keys that are stored, or begin to wait, are appended there too; nullptr: no more.
  void note_new(std::vector<std::uint64_t>* keys) { new_keys_ = keys; }
  /// Rows and candidates of these keys as they are, appended; who is not here, or has expired, is
  /// left out.
  void copy(std::span<const std::uint64_t> keys, std::uint64_t now, Block& rows,
            Block& candidates) const;
  /// They are here no longer.
  void drop(std::span<const std::uint64_t> keys);
  /// What another table counted counts here.
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
  /// Keys without repeats and the sum of their gradients, into distinct_ and sums_ when there are.
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
