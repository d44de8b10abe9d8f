#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/random.h"

namespace centroid::server {

/// Hash table from 64-bit keys to records of one size: key, last use, count, then floats. Open
/// addressing over mixed keys; the records are in slabs that never move. An entry of the index is a
/// record's number (4 bytes) and 8 bits of the hash (1 byte).
///
/// `freeze` makes the present records readable in pieces while the map changes. A record that
/// changes before it was read is copied first.
///
/// memory  records of 16 + 4 * floats bytes, and 5.7 to 8.6 bytes of index a record (load 7/8,
///         growth by 1.5; while it grows, the old index exists too)
/// thread  one at a time
class RecordMap {
 public:
  using Number = std::uint32_t;
  static constexpr Number kNone = 0xFFFFFFFF;
  static constexpr std::size_t kHeadBytes = 16;
  /// `last_use` of an unused record; a used record must not have it.
  static constexpr std::uint32_t kUnused = 0xFFFFFFFF;

  /// A record's fields in memory; floats are 4-aligned, the key is not always 8-aligned.
  struct Record {
    std::byte* at;
    std::uint64_t key() const {
      std::uint64_t key;
      std::memcpy(&key, at, sizeof key);
      return key;
    }
    std::uint32_t& last_use() const { return *reinterpret_cast<std::uint32_t*>(at + 8); }
    std::uint32_t& count() const { return *reinterpret_cast<std::uint32_t*>(at + 12); }
    float* floats() const { return reinterpret_cast<float*>(at + kHeadBytes); }
  };

  explicit RecordMap(std::size_t floats);

  std::size_t size() const { return size_; }
  /// Allocated memory: slabs, index, free list.
  std::uint64_t bytes() const;
  /// Memory after one more insert, while it happens (an index that grows exists twice).
  std::uint64_t bytes_for_insert() const;
  /// Enough for one full slab and its index.
  static std::uint64_t least_bytes(std::size_t floats);

  Number find(std::uint64_t key) const;
  /// For reading; use `writable` for writing.
  Record record(Number number) const {
    return {slabs_[number >> slab_shift_].get() + (number & slab_mask_) * stride_};
  }
  Record writable(Number number) {
    if (number < frozen_end_) preserve(number);
    return record(number);
  }
  /// Add a record for a new key, with last use and count 0; the floats are undefined.
  Number insert(std::uint64_t key);
  void erase(std::uint64_t key);

  /// Determines `bytes` together with the records: with it a copy grows like the original.
  struct Shape {
    std::uint64_t slabs = 0, slab_places = 0, index_places = 0;
  };
  Shape shape() const { return {slabs_.size(), slabs_.capacity(), capacity_}; }
  /// bytes() of an empty map with this shape; none: no map with that many records has this shape.
  std::optional<std::uint64_t> bytes_of(const Shape& shape, std::uint64_t records) const;
  /// Give an empty map this shape, for which bytes_of returned a value.
  void take_shape(const Shape& shape);
  /// Whether `records` more may allocate.
  bool grows_for(std::size_t records) const {
    return size_ + records > slabs_.size() << slab_shift_ || (size_ + records) * 8 > capacity_ * 7;
  }
  /// Least memory that suffices for `records` more.
  std::uint64_t bytes_for(std::size_t records) const;

  /// Freeze the present records. Not while the map is frozen.
  void freeze();
  bool is_frozen() const { return frozen_end_ != 0; }
  /// Records of a slab, and copies of those that have changed since.
  struct Frozen {
    Number first = 0;
    std::vector<std::byte> records, copies;
  };
  /// The next slab of frozen records; false: no more. The last one ends the freeze.
  bool take_frozen(Frozen& out);
  /// Append to `out` the frozen records of a slab, in the order of their numbers. Reads only frozen
  /// memory: any thread.
  void unpack(const Frozen& slab, std::vector<std::byte>& out) const;
  /// End the freeze and drop unread records.
  void thaw();
  /// Memory of the copies.
  std::uint64_t frozen_bytes() const { return frozen_bytes_; }
  /// Upper bound of that memory: if all unread records change.
  std::uint64_t frozen_bytes_at_most() const {
    return (copies_.size() - read_) * (copy_bytes() << slab_shift_);
  }
  std::size_t record_bytes() const { return stride_; }

  /// Prefetch the index entry of this key.
  void prefetch_index(std::uint64_t key) const {
    if (capacity_ == 0) return;
    const std::size_t at = home(mix64(key));
    __builtin_prefetch(&tags_[at]);
    __builtin_prefetch(&numbers_[at]);
  }
  /// Prefetch the record that this key probably has; call some time after prefetch_index.
  void prefetch_record(std::uint64_t key) const;

  /// Upper bound of numbers; a number without a record is not `is_used`. For iteration: inserts and
  /// erases do not change numbers.
  Number end() const { return next_; }
  bool is_used(Number number) const { return record(number).last_use() != kUnused; }

  /// Places of the index, for iteration: `at(place)` is kNone for a free place. An insert changes
  /// them; an erase may move a later record to the erased place, so visit that place again.
  std::size_t places() const { return capacity_; }
  Number at(std::size_t place) const { return tags_[place] == 0 ? kNone : numbers_[place]; }

 private:
  std::size_t home(std::uint64_t hash) const {
    return static_cast<std::size_t>(((hash >> 32) * capacity_) >> 32);
  }
  /// Never 0, which marks a free place.
  static std::uint8_t tag_of(std::uint64_t hash) { return static_cast<std::uint8_t>(hash | 1); }
  std::size_t place_of(std::uint64_t key) const;
  std::size_t grown() const;
  void grow();
  std::size_t copy_bytes() const { return sizeof(Number) + stride_; }
  void preserve(Number number);
  /// Prefetch the memory for a copy of the record.
  void prefetch_copy(Number number) const {
    const std::size_t slab = number >> slab_shift_;
    if (number >= frozen_end_ || slab < read_ || copied_[number]) return;
    const std::byte* const end = copies_[slab].data() + copies_[slab].size();
    __builtin_prefetch(end, 1);
    __builtin_prefetch(end + 64, 1);
  }
  std::size_t stride_, slab_shift_, slab_mask_;
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::unique_ptr<std::uint8_t[]> tags_;
  std::unique_ptr<Number[]> numbers_;
  std::size_t capacity_ = 0, size_ = 0;
  Number next_ = 0, free_ = kNone;  ///< first number never used; head of the free list

  Number frozen_end_ = 0;     ///< records below it are frozen, except in slabs that were read
  std::size_t read_ = 0;      ///< slabs
  std::vector<bool> copied_;  ///< by number
  std::vector<std::vector<std::byte>> copies_;  ///< by slab: the number, then the record
  std::uint64_t frozen_bytes_ = 0;
};

}  // namespace centroid::server
