#include <bit>

#include "transport/collective/schedule_steps.h"

namespace centroid::collective {

namespace {

/// Makes the schedule of one rank. A power of two of the ranks halve and double; with more ranks
/// the first ones are pairs, whose odd ranks send everything to the even ones before and receive
/// the result after. The buffer is cut into a part per halving rank, a part into segments: a
/// segment continues with the next step as soon as it has arrived.
class Halving {
 public:
  Halving(const Shape& shape, std::uint64_t count)
      : shape_(shape),
        world_(std::bit_floor(shape.world)),
        extra_(shape.world - world_),
        index_(shape.rank < 2 * extra_ ? shape.rank / 2 : shape.rank - extra_) {
    for (std::uint32_t part = 0; part < world_; ++part)
      segments_.emplace_back(shape, part_of(count, world_, part));
    made_.resize(world_);
    for (std::uint32_t part = 0; part < world_; ++part)
      made_[part].assign(segments_[part].count(), kAtOnce);
  }

  Schedule make() {
    const bool is_paired = shape_.rank < 2 * extra_;
    if (is_paired && shape_.rank % 2 == 1) {
      fold_in();
      return std::move(schedule_);
    }
    if (is_paired) take_folded();
    std::uint32_t step = 1;
    for (std::uint32_t mask = world_ / 2; mask != 0; mask /= 2) halve(mask, step++);
    for (std::uint32_t mask = 1; mask < world_; mask *= 2) widen(mask, step++);
    if (is_paired) {
      for (const std::uint32_t part : by_distance(index_, world_, false))
        send(shape_.rank + 1, step, part, false);
    }
    return std::move(schedule_);
  }

 private:
  std::uint32_t rank_of(std::uint32_t index) const {
    return index < extra_ ? 2 * index : index + extra_;
  }

  /// The parts that `index` has when it has `size` of them, its own first or last; the further a
  /// part, the earlier its next step.
  static std::vector<std::uint32_t> by_distance(std::uint32_t index, std::uint32_t size,
                                                bool far_first) {
    std::vector<std::uint32_t> out;
    for (std::uint32_t i = 0; i < size; ++i) out.push_back(index ^ (far_first ? size - 1 - i : i));
    return out;
  }

  bool is_own(std::uint32_t part) const {  // nothing has been added to it yet
    return segments_[part].count() == 0 || made_[part].front() == kAtOnce;
  }

  void send(std::uint32_t peer, std::uint32_t step, std::uint32_t part, bool weighs_first) {
    const bool is_plain = is_own(part) && !weighs_first;
    for (std::uint32_t k = 0; k < segments_[part].count(); ++k) {
      const Region from = segments_[part].at(k, is_plain ? Place::kInput : Place::kOutput);
      if (is_own(part) && weighs_first) {
        CopyStep copy;
        copy.from = segments_[part].at(k, Place::kInput);
        copy.to = from;
        copy.weighs = true;
        schedule_.before.push_back(copy);
      }
      schedule_.sends.push_back({peer, step, number_++, from, made_[part][k]});
    }
  }

  void receive(std::uint32_t peer, std::uint32_t step, std::uint32_t part, ReceiveStep how) {
    const bool was_own = is_own(part);
    for (std::uint32_t k = 0; k < segments_[part].count(); ++k) {
      how.peer = peer;
      how.step = step;
      how.segment = number_++;
      how.to = segments_[part].at(k, Place::kOutput);
      how.own = segments_[part].at(k, was_own ? Place::kInput : Place::kOutput);
      how.after = how.combines ? made_[part][k] : kAtOnce;
      schedule_.receives.push_back(how);
      made_[part][k] = last_receive(schedule_);
    }
  }

  void fold_in() {
    const std::uint32_t peer = shape_.rank - 1;
    const auto parts = by_distance(index_, world_, true);
    for (const std::uint32_t part : parts) send(peer, 0, part, shape_.weighs);
    number_ = 0;
    const std::uint32_t last = 1 + 2 * static_cast<std::uint32_t>(std::countr_zero(world_));
    for (const std::uint32_t part : by_distance(index_, world_, false))
      receive(peer, last, part, ReceiveStep());
  }

  void take_folded() {
    ReceiveStep adding;
    adding.combines = true;
    adding.payload_first = false;
    adding.is_last = world_ == 1;
    for (const std::uint32_t part : by_distance(index_, world_, true))
      receive(shape_.rank + 1, 0, part, adding);
    number_ = 0;
  }

  // Of the remaining parts, the half on the other side of `mask` goes to its next owner.
  void halve(std::uint32_t mask, std::uint32_t step) {
    const std::uint32_t other = index_ ^ mask;
    for (const std::uint32_t part : by_distance(other, mask, true))
      send(rank_of(other), step, part, shape_.weighs);
    number_ = 0;
    ReceiveStep adding;
    adding.combines = true;
    adding.payload_first = other < index_;
    adding.is_last = mask == 1;
    for (const std::uint32_t part : by_distance(index_, mask, true))
      receive(rank_of(other), step, part, adding);
    number_ = 0;
  }

  void widen(std::uint32_t mask, std::uint32_t step) {
    const std::uint32_t other = index_ ^ mask;
    for (const std::uint32_t part : by_distance(index_, mask, false))
      send(rank_of(other), step, part, false);
    number_ = 0;
    for (const std::uint32_t part : by_distance(other, mask, false))
      receive(rank_of(other), step, part, ReceiveStep());
    number_ = 0;
  }

  const Shape& shape_;
  const std::uint32_t world_;  ///< ranks that halve
  const std::uint32_t extra_;
  const std::uint32_t index_;
  std::vector<Segments> segments_;               ///< by part
  std::vector<std::vector<std::int32_t>> made_;  ///< by part and segment: the receive that made it
  std::uint32_t number_ = 0;                     ///< of the next segment within its step
  Schedule schedule_;
};

}  // namespace

Schedule halving_all_reduce(const Shape& shape, std::uint64_t count) {
  if (shape.world == 1) return ring_all_reduce(shape, count);
  return Halving(shape, count).make();
}

}  // namespace centroid::collective
