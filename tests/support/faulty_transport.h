#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "transport/transport.h"

namespace centroid::transport {

/// The effect of `make_faulty` on the operations of all its connections, counted in order from 0.
struct FaultPlan {
  enum class Action { kNone, kFail, kCut, kCorrupt, kTruncate, kDelay };
  Action action = Action::kNone;
  std::uint64_t at_operation = ~std::uint64_t{0};  ///< the N-th connect/read/write
  std::chrono::milliseconds delay{0};              ///< for kDelay
  std::shared_ptr<std::atomic<std::uint64_t>> operations =
      std::make_shared<std::atomic<std::uint64_t>>(0);  ///< counts; read it after a run
};
/// Decorator: at the planned operation it fails the call (kFail), closes the connection after the
/// call (kCut), flips a bit of the payload or head (kCorrupt), sends a part and closes (kTruncate)
/// or waits (kDelay).
std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, FaultPlan plan);

}  // namespace centroid::transport
