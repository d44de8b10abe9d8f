#include <bit>

#include "transport/collective/schedule_steps.h"

namespace centroid::collective {

namespace {

constexpr std::uint64_t kNoShift = 0;

std::uint64_t shift_of(const Shape& shape, Range part) { return part.begin * shape.element_bytes; }

void add_copy(const Shape& shape, Range from, Range to, Schedule& schedule) {
  if (from.size() == 0) return;
  CopyStep copy;
  copy.from = region_of(shape, from, Place::kInput);
  copy.to = region_of(shape, to, Place::kOutput);
  schedule.before.push_back(copy);
}

void add_sends(const Shape& shape, std::uint32_t peer, Range elements, Place place,
               std::uint64_t shift, Schedule& schedule) {
  const Segments segments(shape, elements);
  for (std::uint32_t k = 0; k < segments.count(); ++k) {
    Region from = segments.at(k, place);
    from.offset -= shift;
    schedule.sends.push_back({peer, 0, k, from, kAtOnce});
  }
}

/// Index of the first of them.
std::int32_t add_receives(const Shape& shape, std::uint32_t peer, std::uint32_t step,
                          Range elements, std::uint64_t shift, Schedule& schedule) {
  const std::int32_t first = last_receive(schedule) + 1;
  const Segments segments(shape, elements);
  for (std::uint32_t k = 0; k < segments.count(); ++k) {
    ReceiveStep receive;
    receive.peer = peer;
    receive.step = step;
    receive.segment = k;
    receive.to = segments.at(k, Place::kOutput);
    receive.to.offset -= shift;
    schedule.receives.push_back(receive);
  }
  return first;
}

}  // namespace

Schedule ring_all_gather(const Shape& shape, const Parts& parts) {
  Schedule schedule;
  const std::uint32_t n = shape.world, r = shape.rank;
  if (!shape.is_in_place) add_copy(shape, Range(0, parts[r].size()), parts[r], schedule);
  std::int32_t previous = kAtOnce;
  for (std::uint32_t step = 0; step + 1 < n; ++step) {
    const Segments out(shape, parts[(r + n - step) % n]);
    for (std::uint32_t k = 0; k < out.count(); ++k) {
      const std::int32_t after = step == 0 ? kAtOnce : previous + static_cast<std::int32_t>(k);
      schedule.sends.push_back({(r + 1) % n, step, k, out.at(k, Place::kOutput), after});
    }
    const Range in = parts[(r + 2 * n - step - 1) % n];
    previous = add_receives(shape, (r + n - 1) % n, step, in, kNoShift, schedule);
  }
  return schedule;
}

Schedule direct_all_gather(const Shape& shape, const Parts& parts) {
  Schedule schedule;
  const std::uint32_t n = shape.world, r = shape.rank;
  if (!shape.is_in_place) add_copy(shape, Range(0, parts[r].size()), parts[r], schedule);
  for (std::uint32_t i = 1; i < n; ++i) {
    add_sends(shape, (r + i) % n, parts[r], Place::kOutput, kNoShift, schedule);
    const std::uint32_t from = (r + n - i) % n;
    add_receives(shape, from, 0, parts[from], kNoShift, schedule);
  }
  return schedule;
}

Schedule chain_broadcast(const Shape& shape, std::uint64_t count, std::uint32_t root) {
  Schedule schedule;
  const std::uint32_t n = shape.world, r = shape.rank;
  const Range all(0, count);
  const std::uint32_t place = (r + n - root) % n;
  if (place == 0 && !shape.is_in_place) add_copy(shape, all, all, schedule);
  if (place != 0) add_receives(shape, (r + n - 1) % n, 0, all, kNoShift, schedule);
  if (place + 1 == n) return schedule;
  add_sends(shape, (r + 1) % n, all, Place::kOutput, kNoShift, schedule);
  if (place == 0) return schedule;
  for (std::size_t k = 0; k < schedule.sends.size(); ++k)
    schedule.sends[k].after = static_cast<std::int32_t>(k);
  return schedule;
}

Schedule tree_broadcast(const Shape& shape, std::uint64_t count, std::uint32_t root) {
  Schedule schedule;
  const std::uint32_t n = shape.world;
  const Range all(0, count);
  const std::uint32_t place = (shape.rank + n - root) % n;  // 0: the root
  const auto rank_at = [&](std::uint32_t other) { return (other + root) % n; };
  std::uint32_t mask = std::bit_ceil(n);
  if (place == 0) {
    if (!shape.is_in_place) add_copy(shape, all, all, schedule);
  } else {
    mask = place & (~place + 1);  // its lowest bit: the parent is without it
    add_receives(shape, rank_at(place - mask), 0, all, kNoShift, schedule);
  }
  const std::int32_t segments = last_receive(schedule) + 1;
  for (mask /= 2; mask != 0; mask /= 2) {
    if (place + mask >= n) continue;
    const std::size_t first = schedule.sends.size();
    add_sends(shape, rank_at(place + mask), all, Place::kOutput, kNoShift, schedule);
    for (std::int32_t k = 0; k < segments; ++k)
      schedule.sends[first + static_cast<std::size_t>(k)].after = k;
  }
  return schedule;
}

Schedule direct_all_to_all(const Shape& shape, const Parts& out, const Parts& in) {
  Schedule schedule;
  const std::uint32_t n = shape.world, r = shape.rank;
  Place source = Place::kInput;
  if (shape.is_in_place) {
    // A peer's part may arrive before ours has left the same place.
    source = Place::kScratch;
    schedule.scratch_bytes = out.back().end * shape.element_bytes;
    CopyStep copy;
    copy.from = region_of(shape, Range(0, out.back().end), Place::kInput);
    copy.to = copy.from;
    copy.to.place = Place::kScratch;
    schedule.before.push_back(copy);
  } else {
    add_copy(shape, out[r], in[r], schedule);
  }
  for (std::uint32_t i = 1; i < n; ++i) {
    add_sends(shape, (r + i) % n, out[(r + i) % n], source, kNoShift, schedule);
    const std::uint32_t from = (r + n - i) % n;
    add_receives(shape, from, 0, in[from], kNoShift, schedule);
  }
  return schedule;
}

Schedule bounded_exchange(const Shape& shape, std::span<const Parcel> out,
                          std::span<const Parcel> in) {
  Schedule schedule;
  const std::uint32_t n = shape.world, r = shape.rank;
  for (std::uint32_t i = 1; i < n; ++i) {
    const std::uint32_t to = (r + i) % n, from = (r + n - i) % n;
    const Parcel& parcel = out[to];
    const Segments may_be(shape, Range(parcel.begin, parcel.begin + parcel.most));
    for (std::uint32_t k = 0; k < may_be.count(); ++k) {
      Region region = may_be.at(k, Place::kInput);
      const std::uint64_t left = parcel.begin + parcel.bytes - region.offset;
      const bool is_end = left < region.bytes;
      region.bytes = std::min(region.bytes, left);
      schedule.sends.push_back({to, 0, k, region, kAtOnce});
      if (is_end) break;
    }
    const std::size_t first = schedule.receives.size();
    add_receives(shape, from, 0, Range(in[from].begin, in[from].begin + in[from].most), kNoShift,
                 schedule);
    for (std::size_t k = first; k < schedule.receives.size(); ++k)
      schedule.receives[k].is_bounded = true;
  }
  return schedule;
}

Schedule direct_gather(const Shape& shape, const Parts& parts, std::uint32_t root) {
  Schedule schedule;
  const Range mine = parts[shape.rank];
  if (shape.rank != root) {
    add_sends(shape, root, mine, Place::kInput, shift_of(shape, mine), schedule);
    return schedule;
  }
  if (!shape.is_in_place) add_copy(shape, Range(0, mine.size()), mine, schedule);
  for (std::uint32_t from = 0; from < shape.world; ++from)
    if (from != root) add_receives(shape, from, 0, parts[from], kNoShift, schedule);
  return schedule;
}

Schedule direct_scatter(const Shape& shape, const Parts& parts, std::uint32_t root) {
  Schedule schedule;
  const Range mine = parts[shape.rank];
  if (shape.rank != root) {
    add_receives(shape, root, 0, mine, shift_of(shape, mine), schedule);
    return schedule;
  }
  if (!shape.is_in_place) add_copy(shape, mine, Range(0, mine.size()), schedule);
  for (std::uint32_t to = 0; to < shape.world; ++to)
    if (to != root) add_sends(shape, to, parts[to], Place::kInput, kNoShift, schedule);
  return schedule;
}

Schedule dissemination_barrier(const Shape& shape) {
  Schedule schedule;
  const std::uint32_t n = shape.world, r = shape.rank;
  std::uint32_t step = 0;
  for (std::uint32_t reach = 1; reach < n; reach *= 2, ++step) {
    const std::int32_t after = last_receive(schedule);
    schedule.sends.push_back({(r + reach) % n, step, 0, Region(), after});
    ReceiveStep receive;
    receive.peer = (r + n - reach) % n;
    receive.step = step;
    receive.after = after;
    schedule.receives.push_back(receive);
  }
  return schedule;
}

Schedule send_to(const Shape& shape, std::uint64_t count, std::uint32_t peer) {
  Schedule schedule;
  add_sends(shape, peer, Range(0, count), Place::kInput, kNoShift, schedule);
  // An empty message is a message too.
  if (count == 0) schedule.sends.push_back({peer, 0, 0, Region(), kAtOnce});
  return schedule;
}

Schedule receive_from(const Shape& shape, std::uint64_t count, std::uint32_t peer) {
  Schedule schedule;
  add_receives(shape, peer, 0, Range(0, count), kNoShift, schedule);
  if (count != 0) return schedule;
  ReceiveStep receive;
  receive.peer = peer;
  schedule.receives.push_back(receive);
  return schedule;
}

}  // namespace centroid::collective
