#pragma once

#include <cstdint>

#include "common/base/result.h"

namespace centroid::transport {

inline constexpr std::uint64_t kUnlimitedCredit = ~std::uint64_t{0};

/// Payload bytes we may still send: window - sent + granted. Pure.
class SendCredit {
 public:
  explicit SendCredit(std::uint64_t window) : window_(window), available_(window) {}

  std::uint64_t window() const { return window_; }
  std::uint64_t available() const { return available_; }
  /// Take `bytes` when they are there; an unlimited window is never used up.
  bool try_take(std::uint64_t bytes);
  /// Book a Credit frame.
  /// fails  invalid_argument: more than was taken, or credit nobody asked for.
  Status add(std::uint64_t bytes);

 private:
  std::uint64_t window_;
  std::uint64_t available_;
};

/// What the peer took of the window we gave it, and what we owe it back. Pure.
///
/// A grant is due when a quarter of the window has gathered, or when nothing received is held any
/// more: few frames under load, and a sender that waits for the whole window is never left waiting.
class ReceiveCredit {
 public:
  explicit ReceiveCredit(std::uint64_t window) : window_(window) {}

  /// A payload arrived.
  /// fails  resource_exhausted: more than the peer's credit.
  Status take(std::uint64_t bytes);
  /// Payload has left our memory; more than is held counts as all that is held.
  void release(std::uint64_t bytes);
  bool is_grant_due() const;
  /// What the next Credit frame carries; from here on the peer may use it.
  std::uint64_t take_grant();
  std::uint64_t held() const { return held_; }
  /// What the sender may still send; all ones of an unlimited window.
  std::uint64_t left() const { return window_ - held_ - gathered_; }

 private:
  std::uint64_t window_;
  std::uint64_t held_ = 0;      ///< received, not yet released
  std::uint64_t gathered_ = 0;  ///< released, not yet granted
};

}  // namespace centroid::transport
