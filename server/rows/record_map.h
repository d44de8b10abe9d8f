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
/// addressing over mixed keys; the records lie in slabs that are never moved. An entry of the index
/// is a record's number (4 bytes) and 8 bits of the hash (1 byte).
///
/// A frozen map is one whose present records can still be read, in pieces, while it changes: what
/// changes before it was read is copied aside, record by record.
///
/// memory  records of 16 + 4 * floats bytes, and 5.7 to 8.6 bytes of index a record (load 7/8,
///         growth by 1.5; while it grows the old index is there too)
/// thread  one at a time
class RecordMap {
 public:
  using Number = std::uint32_t;
  static constexpr Number kNone = 0xFFFFFFFF;
  static constexpr std::size_t kHeadBytes = 16;
  /// Stands in `last_use` of a record that is not used; of one that is it must not.
  static constexpr std::uint32_t kUnused = 0xFFFFFFFF;

  /// A record's fields, by memory; floats are 4-aligned, the key is not always 8-aligned.
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
  /// Memory taken: slabs, index, free list.
  std::uint64_t bytes() const;
  /// Memory after one more insert, while it happens (an index that grows exists twice).
  std::uint64_t bytes_for_insert() const;
  /// Enough for one full slab and its index.
  static std::uint64_t least_bytes(std::size_t floats);

  Number find(std::uint64_t key) const;
  /// To look at; to change it, `writable`.
  Record record(Number number) const {
    return {slabs_[number >> slab_shift_].get() + (number & slab_mask_) * stride_};
  }
  Record writable(Number number) {
    if (number < frozen_end_) preserve(number);
    return record(number);
  }
  /// A record for a key that is not there, with last use and count 0; the floats hold anything.
  Number insert(std::uint64_t key);
  void erase(std::uint64_t key);

  /// What `bytes` follows from beside the records: with it a copy grows as the original would.
  struct Shape {
    std::uint64_t slabs = 0, slab_places = 0, index_places = 0;
  };
  Shape shape() const { return {slabs_.size(), slabs_.capacity(), capacity_}; }
  /// bytes() of an empty map with this shape; nothing when no map has it with so many records.
  std::optional<std::uint64_t> bytes_of(const Shape& shape, std::uint64_t records) const;
  /// Of an empty map: take this shape, for which bytes_of said something.
  void take_shape(const Shape& shape);
  /// Whether `records` more may take more memory than there is.
  bool grows_for(std::size_t records) const {
    return size_ + records > slabs_.size() << slab_shift_ || (size_ + records) * 8 > capacity_ * 7;
  }
  /// Least memory that is enough for `records` more.
  std::uint64_t bytes_for(std::size_t records) const;

  /// Keep the present records for `read_frozen`. Not while it is frozen.
  void freeze();
  bool is_frozen() const { return frozen_end_ != 0; }
  /// Records of a slab, and copies of those that have changed since.
  struct Frozen {
    Number first = 0;
    std::vector<std::byte> records, copies;
  };
  /// The next slab of frozen records; false: there are no more. With the last the map is frozen no
  /// longer.
  bool take_frozen(Frozen& out);
  /// Append to `out` the records of a slab as they were, in the order of their numbers. It looks at
  /// nothing that changes: any thread.
  void unpack(const Frozen& slab, std::vector<std::byte>& out) const;
  /// Forget the frozen records that were not read.
  void thaw();
  /// Memory of what was copied aside.
  std::uint64_t frozen_bytes() const { return frozen_bytes_; }
  /// That memory when all that was not read will have changed.
  std::uint64_t frozen_bytes_at_most() const {
    return (copies_.size() - read_) * (copy_bytes() << slab_shift_);
  }
  std::size_t record_bytes() const { return stride_; }

  /// Where the index will be read for this key.
  void prefetch_index(std::uint64_t key) const {
    if (capacity_ == 0) return;
    const std::size_t at = home(mix64(key));
    __builtin_prefetch(&tags_[at]);
    __builtin_prefetch(&numbers_[at]);
  }
  /// The record that this key probably has; after prefetch_index has had time.
  void prefetch_record(std::uint64_t key) const;

  /// Numbers are below it; one that no record has is not `is_used`. For walks: an insert or erase
  /// moves no record to another number.
  Number end() const { return next_; }
  bool is_used(Number number) const { return record(number).last_use() != kUnused; }

  /// Places of the index, for walks: `at(place)` is kNone where nothing is. An insert changes them;
  /// an erase may move a later record to the erased place, so look at that one again.
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
  /// Where a copy of the record will be written.
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
  Number next_ = 0, free_ = kNone;  ///< never used; head of the list of erased ones

  Number frozen_end_ = 0;     ///< records below are frozen, but for the slabs that were read
  std::size_t read_ = 0;      ///< slabs
  std::vector<bool> copied_;  ///< by number
  std::vector<std::vector<std::byte>> copies_;  ///< by slab: the number, then the record
  std::uint64_t frozen_bytes_ = 0;
};

}  // namespace centroid::server
