#include "server/rows/row_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <tuple>

#include "server/rows/row_rules.h"

namespace centroid::server {
namespace {

/// Keys looked up together: their cache misses overlap.
constexpr std::size_t kBlock = 16;
constexpr std::uint32_t kMaxCount = 0x7FFFFFFF;

std::uint32_t tick(std::uint64_t now) { return static_cast<std::uint32_t>(now); }

/// Last use of a row of this age. The clock may be younger than the row: that of a new server is up
/// to a second late. The time that would mark the record as unused is replaced by the next one.
std::uint32_t used_at(std::uint64_t now, std::uint32_t age) {
  const std::uint32_t at = tick(now) - age;
  return at == RecordMap::kUnused ? at + 1 : at;
}

void use(const RecordMap::Record& record, std::uint64_t now) {
  record.last_use() = used_at(now, 0);
  if (record.count() < kMaxCount) ++record.count();
}

template <class Each>
void in_blocks(const RecordMap& map, std::span<const std::uint64_t> keys, Each each) {
  for (std::size_t begin = 0; begin < keys.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, keys.size());
    for (std::size_t i = begin; i < end; ++i) map.prefetch_index(keys[i]);
    for (std::size_t i = begin; i < end; ++i) map.prefetch_record(keys[i]);
    for (std::size_t i = begin; i < end; ++i) each(i);
  }
}

}  // namespace

RowTable::RowTable(RowSpec spec)
    : spec_(std::move(spec)),
      schedule_(LearningRateSchedule::parse(spec_.schedule).value()),
      rows_(spec_.dim + spec_.slot_floats()),
      candidates_(0) {}

void RowTable::change(RowSpec spec) {
  CENTROID_CHECK(describes_same_rows(spec, spec_));
  spec_ = std::move(spec);
  schedule_ = LearningRateSchedule::parse(spec_.schedule).value();
}

/// The learning rate of a step.
Result<double> RowTable::rate(std::uint64_t step) const {
  if (schedule_ == LearningRateSchedule()) return spec_.learning_rate;
  if (step > 0) return spec_.learning_rate * schedule_.factor(step);
  return Error(
      ErrorCode::kInvalidArgument,
      "table '" + spec_.name + "' has the schedule " + spec_.schedule +
          ": a push must say which step of the training it belongs to, from 1 (`step` of "
          "the client's push, docs/how-to/embedding-tables.md). Nothing of the push was applied");
}

std::uint64_t RowTable::payload_bytes() const {
  return rows_.size() * sizeof(float) * (spec_.dim + spec_.slot_floats());
}

bool RowTable::is_expired(const Record& record, std::uint64_t now) const {
  return spec_.max_age != 0 && tick(now) - record.last_use() > spec_.max_age;
}

/// The record of a key that has not expired.
RecordMap::Number RowTable::live(RecordMap& map, std::uint64_t key, std::uint64_t now) {
  const RecordMap::Number number = map.find(key);
  if (number == RecordMap::kNone || !is_expired(map.record(number), now)) return number;
  map.erase(key);
  ++counters_.expired;
  return RecordMap::kNone;
}

void RowTable::pull(std::span<const std::uint64_t> keys, std::span<float> out, std::uint64_t now) {
  CENTROID_CHECK(out.size() == keys.size() * spec_.dim);
  in_blocks(rows_, keys, [&](std::size_t i) {
    const auto into = out.subspan(i * spec_.dim, spec_.dim);
    const RecordMap::Number number = live(rows_, keys[i], now);
    if (number == RecordMap::kNone) return initial_row(spec_, keys[i], into);
    const Record record = rows_.writable(number);
    use(record, now);
    std::ranges::copy(values(record), into.begin());
  });
  counters_.pulled += keys.size();
}

Status RowTable::check_gradients(std::span<const std::uint64_t> keys,
                                 std::span<const float> gradients, std::string_view what) const {
  // Largest magnitude as an integer: NaN and infinity are above every number.
  std::uint32_t largest = 0;
  for (const float g : gradients)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(g) & 0x7FFFFFFFu);
  if (largest <= std::bit_cast<std::uint32_t>(kMaxRowGradient)) return {};
  const auto bad =
      std::ranges::find_if(gradients, [](float g) { return !(std::fabs(g) <= kMaxRowGradient); });
  const auto at = static_cast<std::size_t>(bad - gradients.begin());
  return Error(ErrorCode::kInvalidArgument,
               "table '" + spec_.name + "': " + std::string(what) + " of key " +
                   std::to_string(keys[at / spec_.dim]) + ", column " +
                   std::to_string(at % spec_.dim) + ", is " + std::to_string(*bad) +
                   "; it must be finite and at most 1e18. Nothing of the push was applied");
}

bool RowTable::merge_duplicates(std::span<const std::uint64_t> keys,
                                std::span<const float> gradients) {
  constexpr std::uint32_t kFree = 0xFFFFFFFF;
  const std::size_t places = std::bit_ceil(2 * keys.size() + 1);
  seen_.assign(places, kFree);
  std::vector<std::uint32_t> first;  // of every key: its first position
  std::size_t repeats = 0;
  const auto place_of = [&](std::uint64_t key) {
    std::size_t place = mix64(key) & (places - 1);
    while (seen_[place] != kFree && keys[seen_[place]] != key) place = (place + 1) & (places - 1);
    return place;
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::uint32_t& seen = seen_[place_of(keys[i])];
    if (seen == kFree) {
      seen = static_cast<std::uint32_t>(i);
      continue;
    }
    if (repeats++ == 0) first.resize(keys.size(), kFree);
    first[i] = seen;
  }
  if (repeats == 0) return false;
  distinct_.clear();
  sums_.clear();
  std::vector<std::uint32_t> row(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto gradient = gradients.subspan(i * spec_.dim, spec_.dim);
    if (first[i] == kFree) {
      row[i] = static_cast<std::uint32_t>(distinct_.size());
      distinct_.push_back(keys[i]);
      sums_.insert(sums_.end(), gradient.begin(), gradient.end());
      continue;
    }
    float* sum = sums_.data() + std::size_t{row[first[i]]} * spec_.dim;
    for (std::size_t c = 0; c < spec_.dim; ++c) sum[c] += gradient[c];
  }
  counters_.duplicates += repeats;
  return true;
}

bool RowTable::admit(std::uint64_t key, std::uint64_t now) {
  if (spec_.admit_after <= 1) return true;
  RecordMap::Number number = live(candidates_, key, now);
  if (number == RecordMap::kNone) {
    if (spec_.max_bytes != 0) make_room(candidates_, candidates_limit());
    number = candidates_.insert(key);
    if (new_keys_ != nullptr) new_keys_->push_back(key);
  }
  const Record record = candidates_.writable(number);
  use(record, now);
  if (record.count() < spec_.admit_after) {
    ++counters_.held_back;
    return false;
  }
  candidates_.erase(key);
  return true;
}

RecordMap::Number RowTable::create(std::uint64_t key) {
  if (spec_.max_bytes != 0) make_room(rows_, rows_limit());
  const RecordMap::Number number = rows_.insert(key);
  if (new_keys_ != nullptr) new_keys_->push_back(key);
  ++counters_.admitted;
  return number;
}

Status RowTable::push(std::span<const std::uint64_t> keys, std::span<const float> gradients,
                      std::uint64_t now, std::uint64_t step) {
  if (gradients.size() != keys.size() * spec_.dim)
    return Error(ErrorCode::kInvalidArgument,
                 "table '" + spec_.name + "': a push of " + std::to_string(keys.size()) +
                     " keys has " + std::to_string(gradients.size()) + " floats of gradient, not " +
                     std::to_string(keys.size() * spec_.dim) + " (dim " +
                     std::to_string(spec_.dim) + ")");
  CENTROID_ASSIGN(const double learning_rate, rate(step));
  CENTROID_TRY(check_gradients(keys, gradients, "the gradient"));
  const std::uint64_t duplicates = counters_.duplicates;
  if (merge_duplicates(keys, gradients)) {
    keys = distinct_, gradients = sums_;
    if (Status sums = check_gradients(keys, gradients, "the sum of gradients"); !sums.ok()) {
      counters_.duplicates = duplicates;
      return sums;
    }
  }
  in_blocks(rows_, keys, [&](std::size_t i) {
    RecordMap::Number number = live(rows_, keys[i], now);
    if (number == RecordMap::kNone) {
      if (!admit(keys[i], now)) return;
      number = create(keys[i]);
      const Record made = rows_.record(number);
      initial_row(spec_, keys[i], values(made));
      initial_slots(spec_, values(made), slots(made));
    }
    const Record record = rows_.writable(number);
    use(record, now);
    update_row(spec_, learning_rate, gradients.subspan(i * spec_.dim, spec_.dim), values(record),
               slots(record));
  });
  counters_.pushed += keys.size();
  return {};
}

std::uint64_t RowTable::candidates_limit() const { return spec_.max_bytes / kCandidateShare; }

std::uint64_t RowTable::rows_limit() const {
  return spec_.max_bytes - (spec_.admit_after > 1 ? candidates_limit() : 0);
}

std::uint64_t RowTable::bytes_for_push(std::size_t keys) const {
  if (!rows_.grows_for(keys) && (spec_.admit_after <= 1 || !candidates_.grows_for(keys))) return 0;
  return rows_.bytes_for(keys) + (spec_.admit_after > 1 ? candidates_.bytes_for(keys) : 0);
}

std::size_t RowTable::without_row(std::span<const std::uint64_t> keys) const {
  std::size_t count = 0;
  in_blocks(rows_, keys,
            [&](std::size_t i) { count += rows_.find(keys[i]) == RecordMap::kNone ? 1 : 0; });
  return count;
}

bool RowTable::may_evict(std::size_t keys) const {
  if (spec_.max_bytes == 0) return false;
  const auto may = [&](const RecordMap& map, std::uint64_t limit) {
    return map.grows_for(keys) && map.bytes_for(keys) > limit;
  };
  return may(rows_, rows_limit()) ||
         (spec_.admit_after > 1 && may(candidates_, candidates_limit()));
}

void RowTable::make_room(RecordMap& map, std::uint64_t limit) {
  while (map.size() > 0 && map.bytes_for_insert() > limit) {
    const std::size_t before = map.size();
    evict(map);
    if (map.size() == before) return;
  }
}

void RowTable::evict(RecordMap& map) {
  std::vector<RecordMap::Number> order;
  order.reserve(map.size());
  for (std::size_t place = 0; place < map.places(); ++place)
    if (const auto number = map.at(place); number != RecordMap::kNone) order.push_back(number);
  const std::size_t out = (order.size() + 15) / 16;
  const auto rank = [&](RecordMap::Number number) {
    const Record record = map.record(number);
    return std::tuple(record.count(), record.last_use(), record.key());
  };
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(out - 1), order.end(),
                   [&](auto a, auto b) { return rank(a) < rank(b); });
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i >= out) {
      const Record record = map.writable(order[i]);
      record.count() -= record.count() / 2;
    } else {
      map.erase(map.record(order[i]).key());
    }
  }
  counters_.evicted += out;
}

void RowTable::sweep(std::size_t places, std::uint64_t now) {
  if (spec_.max_age == 0) return;
  rows_cursor_ = sweep_map(rows_, rows_cursor_, places, now);
  candidates_cursor_ = sweep_map(candidates_, candidates_cursor_, places, now);
}

std::size_t RowTable::sweep_map(RecordMap& map, std::size_t from, std::size_t places,
                                std::uint64_t now) {
  std::size_t place = from;
  for (places = std::min(places, map.places()); places > 0; --places) {
    if (place >= map.places()) place = 0;
    const RecordMap::Number number = map.at(place);
    if (number == RecordMap::kNone || !is_expired(map.record(number), now)) {
      ++place;
      continue;
    }
    map.erase(map.record(number).key());
    ++counters_.expired;
  }
  return place;
}

void RowTable::for_each(std::uint64_t now, const std::function<void(const Row&)>& visit) const {
  std::vector<std::uint64_t> keys;
  keys.reserve(rows_.size());
  for (std::size_t place = 0; place < rows_.places(); ++place)
    if (const auto number = rows_.at(place); number != RecordMap::kNone)
      if (const Record record = rows_.record(number); !is_expired(record, now))
        keys.push_back(record.key());
  std::ranges::sort(keys);
  for (const std::uint64_t key : keys) {
    const Record record = rows_.record(rows_.find(key));
    visit({key, tick(now) - record.last_use(), record.count(), values(record), slots(record)});
  }
}

Status RowTable::restore(const Row& row, std::uint64_t now) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error(code, "table '" + spec_.name + "': key " + std::to_string(row.key) + " " + why);
  };
  const auto is_finite = [](float x) { return std::isfinite(x); };
  if (row.values.size() != spec_.dim || row.slots.size() != spec_.slot_floats())
    return refuse(ErrorCode::kInvalidArgument,
                  "has " + std::to_string(row.values.size()) + " values and " +
                      std::to_string(row.slots.size()) + " floats of state, not " +
                      std::to_string(spec_.dim) + " and " + std::to_string(spec_.slot_floats()));
  if (!std::ranges::all_of(row.values, is_finite) || !std::ranges::all_of(row.slots, is_finite))
    return refuse(ErrorCode::kInvalidArgument, "has a value that is not finite");
  if (rows_.find(row.key) != RecordMap::kNone)
    return refuse(ErrorCode::kAlreadyExists, "is there already");
  if (spec_.max_bytes != 0 && rows_.bytes_for_insert() > spec_.max_bytes)
    return refuse(ErrorCode::kResourceExhausted,
                  "does not fit into max_bytes " + std::to_string(spec_.max_bytes));
  const Record record = rows_.record(rows_.insert(row.key));
  record.last_use() = used_at(now, row.age);
  record.count() = row.count;
  std::ranges::copy(row.values, values(record).begin());
  std::ranges::copy(row.slots, slots(record).begin());
  return {};
}

RowTable::State RowTable::freeze(std::uint64_t now) {
  rows_.freeze();
  candidates_.freeze();
  return {.rows = rows_.size(),
          .candidates = candidates_.size(),
          .now = now,
          .counters = counters_,
          .rows_shape = rows_.shape(),
          .candidates_shape = candidates_.shape()};
}

bool RowTable::take_frozen(Frozen& frozen) {
  frozen.is_candidates = reads_candidates();
  return frozen.is_candidates ? candidates_.take_frozen(frozen.slab)
                              : rows_.take_frozen(frozen.slab);
}

void RowTable::unpack(const Frozen& frozen, std::uint64_t frozen_at, Block& block) const {
  const RecordMap& map = frozen.is_candidates ? candidates_ : rows_;
  const std::size_t stride = map.record_bytes();
  std::vector<std::byte> records;
  records.reserve(frozen.slab.records.size());
  map.unpack(frozen.slab, records);
  const std::size_t dim = frozen.is_candidates ? 0 : spec_.dim;
  const std::size_t state = frozen.is_candidates ? 0 : spec_.slot_floats();
  const std::size_t had = block.keys.size(), n = records.size() / stride;
  block.keys.resize(had + n), block.ages.resize(had + n), block.counts.resize(had + n);
  block.values.resize((had + n) * dim), block.slots.resize((had + n) * state);
  for (std::size_t i = 0; i < n; ++i) {
    const Record record{records.data() + i * stride};
    const std::size_t at = had + i;
    block.keys[at] = record.key();
    block.ages[at] = tick(frozen_at) - record.last_use();
    block.counts[at] = record.count();
    std::copy_n(record.floats(), dim, block.values.data() + at * dim);
    std::copy_n(record.floats() + dim, state, block.slots.data() + at * state);
  }
}

void RowTable::thaw() {
  rows_.thaw();
  candidates_.thaw();
}

void RowTable::begin_restore(const State& state) {
  counters_ = state.counters;
  if (spec_.max_bytes == 0) return;  // nothing depends on the shape
  const auto take = [](RecordMap& map, const RecordMap::Shape& shape, std::uint64_t records,
                       std::uint64_t limit) {
    const auto bytes = map.bytes_of(shape, records);
    if (bytes && *bytes <= limit) map.take_shape(shape);
  };
  take(rows_, state.rows_shape, state.rows, rows_limit());
  take(candidates_, state.candidates_shape, state.candidates, candidates_limit());
}

Status RowTable::restore_candidate(std::uint64_t key, std::uint32_t age, std::uint32_t count,
                                   std::uint64_t now) {
  // As `restore`; a candidate that need not wait any more, or has no room, begins to wait again.
  if (candidates_.find(key) != RecordMap::kNone)
    return Error(ErrorCode::kAlreadyExists,
                 "table '" + spec_.name + "': key " + std::to_string(key) + " waits already");
  if (spec_.admit_after <= 1 ||
      (spec_.max_bytes != 0 && candidates_.bytes_for_insert() > candidates_limit()))
    return {};
  const Record record = candidates_.record(candidates_.insert(key));
  record.last_use() = used_at(now, age);
  record.count() = count;
  return {};
}

bool RowTable::keys(Cursor& cursor, std::size_t records, std::vector<std::uint64_t>& keys) const {
  for (; records > 0; --records) {
    const RecordMap& map = cursor.is_candidates ? candidates_ : rows_;
    if (cursor.next >= map.end()) {
      if (cursor.is_candidates) return false;
      cursor = {.is_candidates = true, .next = 0};
      continue;
    }
    const RecordMap::Number number = cursor.next++;
    if (map.is_used(number)) keys.push_back(map.record(number).key());
  }
  return true;
}

void RowTable::copy(std::span<const std::uint64_t> keys, std::uint64_t now, Block& rows,
                    Block& candidates) const {
  const auto put = [&](const RecordMap& map, std::uint64_t key, Block& into) {
    const RecordMap::Number number = map.find(key);
    if (number == RecordMap::kNone || is_expired(map.record(number), now)) return false;
    const Record record = map.record(number);
    into.keys.push_back(key);
    into.ages.push_back(tick(now) - record.last_use());
    into.counts.push_back(record.count());
    return true;
  };
  candidates.is_candidates = true;
  for (const std::uint64_t key : keys) {
    if (put(rows_, key, rows)) {
      const Record record = rows_.record(rows_.find(key));
      const auto floats = values(record), state = slots(record);
      rows.values.insert(rows.values.end(), floats.begin(), floats.end());
      rows.slots.insert(rows.slots.end(), state.begin(), state.end());
    }
    put(candidates_, key, candidates);
  }
}

void RowTable::drop(std::span<const std::uint64_t> keys) {
  for (const std::uint64_t key : keys) {
    rows_.erase(key);
    candidates_.erase(key);
  }
}

}  // namespace centroid::server
