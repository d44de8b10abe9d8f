#include "server/rows/record_map.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/result.h"

namespace centroid::server {
namespace {

constexpr std::size_t kSlabBytes = 64u << 10;
constexpr std::size_t kFirstCapacity = 64;
constexpr std::size_t kIndexBytes = sizeof(RecordMap::Number) + 1;

/// Records of a slab: a power of two, at least 16.
std::size_t slab_shift_for(std::size_t stride) {
  return std::max<std::size_t>(std::bit_width(kSlabBytes / stride) - 1, 4);
}

}  // namespace

RecordMap::RecordMap(std::size_t floats)
    : stride_(kHeadBytes + floats * sizeof(float)),
      slab_shift_(slab_shift_for(stride_)),
      slab_mask_((std::size_t{1} << slab_shift_) - 1) {}

std::uint64_t RecordMap::bytes() const {
  return slabs_.size() * (stride_ << slab_shift_) + slabs_.capacity() * sizeof(slabs_[0]) +
         capacity_ * kIndexBytes;
}

std::size_t RecordMap::grown() const {
  return capacity_ == 0 ? kFirstCapacity : capacity_ + capacity_ / 2;
}

std::uint64_t RecordMap::bytes_for_insert() const {
  std::uint64_t bytes = this->bytes();
  if (free_ == kNone && next_ == slabs_.size() << slab_shift_) {
    bytes += stride_ << slab_shift_;
    if (slabs_.size() == slabs_.capacity()) bytes += (2 * slabs_.size() + 1) * sizeof(slabs_[0]);
  }
  if ((size_ + 1) * 8 > capacity_ * 7) bytes += grown() * kIndexBytes;
  return bytes;
}

std::uint64_t RecordMap::least_bytes(std::size_t floats) {
  const RecordMap map(floats);
  // Bytes of the index while it grows: 5 times (1 + 1.5) / (7/8).
  return (map.stride_ + 15) << map.slab_shift_;
}

std::size_t RecordMap::place_of(std::uint64_t key) const {
  if (capacity_ == 0) return 0;
  const std::uint64_t hash = mix64(key);
  const std::uint8_t tag = tag_of(hash);
  // The load is below 1, so the search ends at a free place.
  for (std::size_t place = home(hash);; place = place + 1 == capacity_ ? 0 : place + 1) {
    if (tags_[place] == 0) return capacity_;
    if (tags_[place] == tag && record(numbers_[place]).key() == key) return place;
  }
}

RecordMap::Number RecordMap::find(std::uint64_t key) const {
  const std::size_t place = place_of(key);
  return place == capacity_ ? kNone : numbers_[place];
}

void RecordMap::prefetch_record(std::uint64_t key) const {
  if (capacity_ == 0) return;
  const std::uint64_t hash = mix64(key);
  const std::uint8_t tag = tag_of(hash);
  std::size_t place = home(hash);
  for (int probe = 0; probe < 16 && tags_[place] != 0; ++probe) {
    if (tags_[place] == tag) {
      const Number number = numbers_[place];
      if (number < frozen_end_ && !copies_[number >> slab_shift_].empty()) prefetch_copy(number);
      const std::byte* at = record(numbers_[place]).at;
      // The hardware prefetches beyond four lines.
      for (std::size_t line = 0; line < std::min<std::size_t>(stride_ + 63, 256); line += 64)
        __builtin_prefetch(at + line, 1);
      return;
    }
    place = place + 1 == capacity_ ? 0 : place + 1;
  }
}

void RecordMap::grow() {
  const auto old_tags = std::move(tags_);
  const auto old_numbers = std::move(numbers_);
  const std::size_t old_capacity = capacity_;
  capacity_ = grown();
  tags_ = std::make_unique<std::uint8_t[]>(capacity_);
  numbers_ = std::make_unique_for_overwrite<Number[]>(capacity_);
  for (std::size_t i = 0; i < old_capacity; ++i) {
    if (old_tags[i] == 0) continue;
    std::size_t place = home(mix64(record(old_numbers[i]).key()));
    while (tags_[place] != 0) place = place + 1 == capacity_ ? 0 : place + 1;
    tags_[place] = old_tags[i];
    numbers_[place] = old_numbers[i];
  }
}

RecordMap::Number RecordMap::insert(std::uint64_t key) {
  if ((size_ + 1) * 8 > capacity_ * 7) grow();
  Number number = free_;
  if (number != kNone) {
    free_ = writable(number).count();
  } else {
    CENTROID_CHECK(next_ != kNone);
    if (next_ == slabs_.size() << slab_shift_)
      slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(stride_ << slab_shift_));
    number = next_++;
  }
  const Record made = record(number);
  std::memcpy(made.at, &key, sizeof key);
  made.last_use() = 0;
  made.count() = 0;
  const std::uint64_t hash = mix64(key);
  std::size_t place = home(hash);
  while (tags_[place] != 0) place = place + 1 == capacity_ ? 0 : place + 1;
  tags_[place] = tag_of(hash);
  numbers_[place] = number;
  ++size_;
  return number;
}

void RecordMap::erase(std::uint64_t key) {
  std::size_t hole = place_of(key);
  if (hole == capacity_) return;
  const Number number = numbers_[hole];
  const Record gone = writable(number);
  gone.last_use() = kUnused;
  gone.count() = free_;
  free_ = number;
  --size_;
  // Move back records that a search would not find after the hole. So no tombstones are needed.
  for (std::size_t place = hole;;) {
    place = place + 1 == capacity_ ? 0 : place + 1;
    if (tags_[place] == 0) break;
    const std::size_t want = home(mix64(record(numbers_[place]).key()));
    const bool is_between =
        hole <= place ? (hole < want && want <= place) : (hole < want || want <= place);
    if (is_between) continue;
    tags_[hole] = tags_[place];
    numbers_[hole] = numbers_[place];
    hole = place;
  }
  tags_[hole] = 0;
}

std::optional<std::uint64_t> RecordMap::bytes_of(const Shape& shape, std::uint64_t records) const {
  constexpr std::uint64_t kMost = kNone;  // numbers are 4 bytes
  if (shape.slabs > kMost >> slab_shift_ || shape.slab_places > 2 * kMost ||
      shape.index_places > 2 * kMost || shape.slab_places < shape.slabs ||
      records > shape.slabs << slab_shift_ || records * 8 > shape.index_places * 7)
    return std::nullopt;
  return shape.slabs * (stride_ << slab_shift_) + shape.slab_places * sizeof(slabs_[0]) +
         shape.index_places * kIndexBytes;
}

void RecordMap::take_shape(const Shape& shape) {
  CENTROID_CHECK(size_ == 0 && next_ == 0);
  slabs_.reserve(shape.slab_places);
  while (slabs_.size() < shape.slabs)
    slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(stride_ << slab_shift_));
  capacity_ = shape.index_places;
  tags_ = std::make_unique<std::uint8_t[]>(capacity_);
  numbers_ = std::make_unique_for_overwrite<Number[]>(capacity_);
}

std::uint64_t RecordMap::bytes_for(std::size_t records) const {
  if (!grows_for(records)) return bytes();
  const std::size_t slabs = ((size_ + records) >> slab_shift_) + 1;
  // The index may grow more than once, and exists twice meanwhile.
  const std::size_t places = std::max((size_ + records) * 2, grown());
  return std::max(slabs, slabs_.size()) * ((stride_ << slab_shift_) + 2 * sizeof(slabs_[0])) +
         (capacity_ + places) * kIndexBytes;
}

void RecordMap::freeze() {
  CENTROID_CHECK(!is_frozen());
  frozen_end_ = next_;
  read_ = 0;
  copied_.assign(next_, false);
  copies_.resize((next_ + slab_mask_) >> slab_shift_);
}

void RecordMap::preserve(Number number) {
  constexpr std::size_t kFirstCopies = 8;
  const std::size_t slab = number >> slab_shift_;
  if (slab < read_ || copied_[number]) return;
  copied_[number] = true;
  std::vector<std::byte>& copies = copies_[slab];
  const std::size_t at = copies.size(), before = copies.capacity();
  if (before - at < copy_bytes()) copies.reserve(std::max(kFirstCopies * copy_bytes(), 2 * before));
  copies.resize(at + copy_bytes());
  std::memcpy(copies.data() + at, &number, sizeof number);
  std::memcpy(copies.data() + at + sizeof number, record(number).at, stride_);
  frozen_bytes_ += copies.capacity() - before;
}

bool RecordMap::take_frozen(Frozen& out) {
  if (!is_frozen()) return false;
  const Number end = std::min<Number>(frozen_end_, static_cast<Number>((read_ + 1) << slab_shift_));
  out.first = static_cast<Number>(read_ << slab_shift_);
  const std::byte* const records = record(out.first).at;
  out.records.assign(records, records + (end - out.first) * stride_);
  frozen_bytes_ -= copies_[read_].capacity();
  out.copies = std::exchange(copies_[read_], {});
  if (++read_ == copies_.size()) thaw();
  return true;
}

void RecordMap::unpack(const Frozen& slab, std::vector<std::byte>& out) const {
  // Address of the copy, by number.
  std::vector<const std::byte*> changed(slab.copies.empty() ? 0 : slab.records.size() / stride_);
  for (std::size_t at = 0; at < slab.copies.size(); at += copy_bytes()) {
    Number number;
    std::memcpy(&number, slab.copies.data() + at, sizeof number);
    changed[number - slab.first] = slab.copies.data() + at + sizeof number;
  }
  for (std::size_t i = 0; i * stride_ < slab.records.size(); ++i) {
    const std::byte* was = slab.records.data() + i * stride_;
    if (!changed.empty() && changed[i] != nullptr) was = changed[i];
    std::uint32_t last_use;  // a copy is not always 4-aligned
    std::memcpy(&last_use, was + 8, sizeof last_use);
    if (last_use != kUnused) out.insert(out.end(), was, was + stride_);
  }
}

void RecordMap::thaw() {
  frozen_end_ = 0;
  frozen_bytes_ = 0;
  read_ = 0;
  std::vector<bool>().swap(copied_);
  copies_.clear();
  copies_.shrink_to_fit();
}

}  // namespace centroid::server
