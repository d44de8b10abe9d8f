#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "worker/exchange/exchange.h"

namespace centroid::worker {

/// Which samples a share has: the epoch's permutation, kept while the epoch lasts.
class EpochOrder {
 public:
  /// Numbers below `samples`, those of the whole training data; valid until the next call.
  std::span<const std::uint64_t> part(std::uint64_t samples, const Share& share);
  /// The parts that come next in this epoch, at most so many, if all goes on as it did: each as far
  /// on as this one is from the one before. A guess: only where samples are loaded ahead hangs on
  /// it.
  std::vector<std::span<const std::uint64_t>> next(const Share& share, std::uint64_t most) const;

 private:
  void load(std::uint64_t samples, std::uint64_t seed, std::uint64_t epoch);

  std::optional<std::pair<std::uint64_t, std::uint64_t>> key_;  // seed and epoch of order_
  std::vector<std::uint64_t> order_, joined_;
  std::optional<Share> last_;
  std::uint64_t stride_ = 0, before_ = 0;
};

}  // namespace centroid::worker
