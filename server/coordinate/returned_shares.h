#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace centroid::server {

/// A part of the data: positions [begin, end) in the permutation of an epoch.
struct DataPart {
  std::uint64_t epoch = 0, begin = 0, end = 0;
  std::uint64_t samples() const { return end - begin; }
  bool operator==(const DataPart&) const = default;
};

/// Shares whose members went before they had contributed: they are given to others in the next
/// rounds, so that every sample of an epoch is trained. Pure.
///
/// round   `take` hands out what waits; `lost` keeps what a member had for the time after this
///         round. Then `commit`, or, if the round is given up and the data will be handed out anew,
///         `give_up`
class ReturnedShares {
 public:
  /// A part of at most `samples`; none when nothing waits.
  DataPart take(std::uint64_t samples);
  /// `part`, of the round that is open, is not trained in it.
  void lost(const DataPart& part);
  /// So is `part`, of an earlier round.
  void give_back(const DataPart& part);
  void commit();
  void give_up();

  bool is_empty() const { return waiting_.empty(); }
  /// Once the round is committed.
  bool will_be_empty() const { return waiting_.empty() && lost_.empty(); }
  std::uint64_t samples() const;
  std::uint64_t taken() const;  ///< in this round
  /// Of all that waits, is taken or was lost in this round, the oldest.
  std::optional<std::uint64_t> oldest_epoch() const;
  std::uint64_t returned() const { return returned_; }  ///< samples, since the beginning
  void clear() { *this = ReturnedShares(); }
  /// What waits (not what is taken: `give_up` first), "epoch:begin-end,...", and the other way
  /// round: what is not such a text is left out.
  std::string to_text() const;
  void restore(const std::string& text);

 private:
  std::deque<DataPart> waiting_;
  std::vector<DataPart> taken_, lost_;  // in this round
  std::uint64_t returned_ = 0;
};

/// By how many steps a worker may run into the next epoch before the present one is over. Pure.
///
/// auto    clamp(batches / 100, 2, 5) at first, one more after each round that was stable, up to
///         clamp(batches / 50, 3, 10); batches are those of an epoch over all workers
/// fixed   a number that an operator gave stays as it is
class Overshoot {
 public:
  explicit Overshoot(std::uint64_t batches);
  static Overshoot fixed(std::uint64_t steps);
  void stable() {
    if (steps_ < most_) ++steps_;
  }
  std::uint64_t steps() const { return steps_; }

 private:
  Overshoot(std::uint64_t steps, std::uint64_t most) : steps_(steps), most_(most) {}
  std::uint64_t steps_, most_;
};

}  // namespace centroid::server
