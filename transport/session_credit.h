#pragma once

#include <cstdint>

#include "common/base/result.h"

namespace centroid::transport {

inline constexpr std::uint64_t kUnlimitedCredit = ~std::uint64_t{0};

/// Payload bytes that we may still send: window - sent + granted. Pure.
class SendCredit {
 public:
  explicit SendCredit(std::uint64_t window) : window_(window), available_(window) {}

  std::uint64_t window() const { return window_; }
  std::uint64_t available() const { return available_; }
  /// Take `bytes` if they are available; an unlimited window is never used up.
  bool try_take(std::uint64_t bytes);
  /// Book a Credit frame.
  /// fails  invalid_argument: more than was taken, or credit that was not requested.
  Status add(std::uint64_t bytes);

 private:
  std::uint64_t window_;
  std::uint64_t available_;
};

/// The peer's use of its window, and the credit to return. Pure.
///
/// A grant is due when a quarter of the window has gathered, or when no received bytes are in use:
/// few frames under load, and a sender that waits for all of the window never waits forever.
class ReceiveCredit {
 public:
  explicit ReceiveCredit(std::uint64_t window) : window_(window) {}

  /// A payload arrived.
  /// fails  resource_exhausted: more than the peer's credit.
  Status take(std::uint64_t bytes);
  /// Payload has left our memory; more than is in use counts as all of it.
  void release(std::uint64_t bytes);
  bool is_grant_due() const;
  /// Content of the next Credit frame; from here on the peer may use it.
  std::uint64_t take_grant();
  std::uint64_t held() const { return in_use_; }
  /// Bytes that the sender may still send; all ones for an unlimited window.
  std::uint64_t left() const { return window_ - in_use_ - gathered_; }

 private:
  std::uint64_t window_;
  std::uint64_t in_use_ = 0;    ///< received, not yet released
  std::uint64_t gathered_ = 0;  ///< released, not yet granted
};

}  // namespace centroid::transport
