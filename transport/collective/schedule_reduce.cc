#include <bit>

#include "transport/collective/schedule_steps.h"

namespace centroid::collective {

namespace {

std::uint32_t wrap(std::uint32_t rank, std::uint32_t back, std::uint32_t world) {
  return (rank + 2 * world - back) % world;
}

/// A world of one: the result is our own numbers.
Schedule alone(const Shape& shape, std::uint64_t count) {
  Schedule schedule;
  if (shape.is_in_place && !shape.weighs) return schedule;
  CopyStep copy;
  copy.from = region_of(shape, Range(0, count), Place::kInput);
  copy.to = region_of(shape, Range(0, count), Place::kOutput);
  copy.weighs = shape.weighs;
  schedule.before.push_back(copy);
  return schedule;
}

/// The steps in which chunk sums circle once: after them this rank has the complete sum of its own
/// part. `work` has the partial sums; `done` the own part.
void add_reduce_ring(const Shape& shape, const Parts& parts, Place work, Place done,
                     std::uint64_t done_shift, Schedule& schedule) {
  const std::uint32_t n = shape.world, r = shape.rank;
  const std::uint32_t right = (r + 1) % n, left = wrap(r, 1, n);
  if (shape.weighs) {
    CopyStep copy;
    copy.from = region_of(shape, parts[left], Place::kInput);
    copy.to = region_of(shape, parts[left], work);
    copy.weighs = true;
    schedule.before.push_back(copy);
  }
  std::int32_t previous = kAtOnce;  // first receive of the step before
  for (std::uint32_t step = 0; step + 1 < n; ++step) {
    const Segments out(shape, parts[wrap(r, step + 1, n)]);
    for (std::uint32_t k = 0; k < out.count(); ++k) {
      const Place from = step == 0 && !shape.weighs ? Place::kInput : work;
      const std::int32_t after = step == 0 ? kAtOnce : previous + static_cast<std::int32_t>(k);
      schedule.sends.push_back({right, step, k, out.at(k, from), after});
    }
    previous = last_receive(schedule) + 1;
    const bool is_last = step + 2 == n;
    const Segments in(shape, parts[wrap(r, step + 2, n)]);
    for (std::uint32_t k = 0; k < in.count(); ++k) {
      ReceiveStep receive;
      receive.peer = left;
      receive.step = step;
      receive.segment = k;
      receive.own = in.at(k, Place::kInput);
      receive.to = in.at(k, is_last ? done : work);
      if (is_last) receive.to.offset -= done_shift;
      receive.combines = true;
      receive.is_last = is_last;
      schedule.receives.push_back(receive);
    }
  }
}

}  // namespace

Parts even_parts(std::uint64_t count, std::uint32_t world) {
  Parts parts(world);
  for (std::uint32_t i = 0; i < world; ++i) parts[i] = part_of(count, world, i);
  return parts;
}

Parts parts_of(std::span<const std::uint64_t> counts) {
  Parts parts;
  std::uint64_t at = 0;
  for (const std::uint64_t count : counts) {
    parts.push_back(Range(at, at + count));
    at += count;
  }
  return parts;
}

std::uint64_t bytes_sent(const Schedule& schedule) {
  std::uint64_t bytes = 0;
  for (const SendStep& send : schedule.sends) bytes += send.from.bytes;
  return bytes;
}

Schedule ring_all_reduce(const Shape& shape, std::uint64_t count) {
  if (shape.world == 1) return alone(shape, count);
  Schedule schedule;
  const Parts parts = even_parts(count, shape.world);
  add_reduce_ring(shape, parts, Place::kOutput, Place::kOutput, 0, schedule);
  const std::uint32_t n = shape.world, r = shape.rank;
  const std::uint32_t right = (r + 1) % n, left = wrap(r, 1, n);
  // The last receives were our own part: it circles complete now.
  std::int32_t previous = static_cast<std::int32_t>(schedule.receives.size()) -
                          static_cast<std::int32_t>(Segments(shape, parts[r]).count());
  for (std::uint32_t turn = 0; turn + 1 < n; ++turn) {
    const std::uint32_t step = n - 1 + turn;
    const Segments out(shape, parts[wrap(r, turn, n)]);
    for (std::uint32_t k = 0; k < out.count(); ++k) {
      const std::int32_t after = previous + static_cast<std::int32_t>(k);
      schedule.sends.push_back({right, step, k, out.at(k, Place::kOutput), after});
    }
    previous = last_receive(schedule) + 1;
    const Segments in(shape, parts[wrap(r, turn + 1, n)]);
    for (std::uint32_t k = 0; k < in.count(); ++k) {
      ReceiveStep receive;
      receive.peer = left;
      receive.step = step;
      receive.segment = k;
      receive.to = in.at(k, Place::kOutput);
      schedule.receives.push_back(receive);
    }
  }
  return schedule;
}

Schedule ring_reduce_scatter(const Shape& shape, const Parts& parts) {
  const Range mine = parts[shape.rank];
  if (shape.world == 1) {
    Schedule schedule = alone(shape, mine.size());
    return schedule;
  }
  Schedule schedule;
  const bool needs_scratch = !shape.is_in_place && (shape.world > 2 || shape.weighs);
  const Place work = needs_scratch ? Place::kScratch : Place::kInput;
  if (needs_scratch) schedule.scratch_bytes = parts.back().end * shape.element_bytes;
  const Place done = shape.is_in_place ? Place::kInput : Place::kOutput;
  const std::uint64_t shift = shape.is_in_place ? 0 : mine.begin * shape.element_bytes;
  add_reduce_ring(shape, parts, work, done, shift, schedule);
  return schedule;
}

Schedule doubling_all_reduce(const Shape& shape, std::uint64_t count) {
  if (shape.world == 1) return alone(shape, count);
  const Range all(0, count);
  const std::uint64_t bytes = count * shape.element_bytes;
  Schedule schedule;
  std::uint64_t levels = 0;
  const auto scratch = [&](std::uint64_t level) {
    Region region;
    region.place = Place::kScratch;
    region.offset = level * bytes;
    region.bytes = bytes;
    return region;
  };
  // In place the last step overwrites the input, maybe before its own send has left.
  Region mine = region_of(shape, all, Place::kInput);
  if (shape.is_in_place || shape.weighs) {
    CopyStep copy;
    copy.from = mine;
    copy.to = mine = scratch(levels++);
    copy.weighs = shape.weighs;
    schedule.before.push_back(copy);
  }
  const Region result = region_of(shape, all, Place::kOutput);
  const std::uint32_t square = std::bit_floor(shape.world);
  const std::uint32_t extra = shape.world - square;  // this number of pairs fold first
  const std::uint32_t steps = static_cast<std::uint32_t>(std::countr_zero(square));
  std::uint32_t index = shape.rank - extra;
  std::int32_t after = kAtOnce;
  if (shape.rank < 2 * extra) {
    index = shape.rank / 2;
    if (shape.rank % 2 == 1) {
      schedule.sends.push_back({shape.rank - 1, 0, 0, mine, kAtOnce});
      ReceiveStep receive;
      receive.peer = shape.rank - 1;
      receive.step = steps + 1;
      receive.to = result;
      schedule.receives.push_back(receive);
      schedule.scratch_bytes = levels * bytes;
      return schedule;
    }
    ReceiveStep receive;
    receive.peer = shape.rank + 1;
    receive.own = mine;
    receive.to = mine = scratch(levels++);
    receive.combines = true;
    receive.payload_first = false;
    schedule.receives.push_back(receive);
    after = last_receive(schedule);
  }
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint32_t other = index ^ (1u << step);
    const std::uint32_t peer = other < extra ? 2 * other : other + extra;
    schedule.sends.push_back({peer, step + 1, 0, mine, after});
    ReceiveStep receive;
    receive.peer = peer;
    receive.step = step + 1;
    receive.own = mine;
    receive.is_last = step + 1 == steps;
    receive.to = mine = receive.is_last ? result : scratch(levels++);
    receive.combines = true;
    receive.payload_first = other < index;  // every rank adds in rank order
    receive.after = after;
    schedule.receives.push_back(receive);
    after = last_receive(schedule);
  }
  if (shape.rank < 2 * extra) schedule.sends.push_back({shape.rank + 1, steps + 1, 0, mine, after});
  schedule.scratch_bytes = levels * bytes;
  return schedule;
}

Schedule chain_all_reduce(const Shape& shape, std::uint64_t count) {
  if (shape.world == 1) return alone(shape, count);
  Schedule schedule;
  const Range all(0, count);
  const bool is_first = shape.rank == 0, is_end = shape.rank + 1 == shape.world;
  if (is_first && shape.weighs) {
    CopyStep copy;
    copy.from = region_of(shape, all, Place::kInput);
    copy.to = region_of(shape, all, Place::kOutput);
    copy.weighs = true;
    schedule.before.push_back(copy);
  }
  const Segments segments(shape, all);
  for (std::uint32_t k = 0; k < segments.count(); ++k) {
    if (is_first) {
      const Place from = shape.weighs ? Place::kOutput : Place::kInput;
      schedule.sends.push_back({1, 0, k, segments.at(k, from), kAtOnce});
      continue;
    }
    ReceiveStep receive;
    receive.peer = shape.rank - 1;
    receive.segment = k;
    receive.own = segments.at(k, Place::kInput);
    receive.to = segments.at(k, Place::kOutput);
    receive.combines = true;
    receive.is_last = is_end;
    schedule.receives.push_back(receive);
    const std::uint32_t to = is_end ? shape.rank - 1 : shape.rank + 1;
    schedule.sends.push_back({to, is_end ? 1u : 0u, k, receive.to, last_receive(schedule)});
  }
  if (is_end) return schedule;
  for (std::uint32_t k = 0; k < segments.count(); ++k) {
    ReceiveStep receive;
    receive.peer = shape.rank + 1;
    receive.step = 1;
    receive.segment = k;
    receive.to = segments.at(k, Place::kOutput);
    schedule.receives.push_back(receive);
    if (!is_first)
      schedule.sends.push_back({shape.rank - 1, 1, k, receive.to, last_receive(schedule)});
  }
  return schedule;
}

}  // namespace centroid::collective
