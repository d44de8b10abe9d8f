#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "common/base/clock.h"

namespace centroid::transport {

/// When each handshake may begin, so that all of them take at most a share of one processor beyond
/// a burst. While some wait, their addresses take turns. A turn pays what handshakes cost lately;
/// its end settles the difference. A processor with nothing else to do is lent beyond that share.
/// Pure; one thread.
class HandshakeTurns {
 public:
  using Id = std::uint64_t;
  static constexpr double kShare = 0.1;
  static constexpr double kBurst = 0.25;  ///< seconds of processor time: 250 handshakes of TLS
  /// Of a handshake without TLS: a coroutine, two messages, a comparison of tokens.
  static constexpr double kLeastCost = 50e-6;
  /// Lent turns at a time: 64 of 1 ms, each waiting 60 ms for its peer, use a processor. Those
  /// that stall take none of the share.
  static constexpr std::size_t kMostLent = 64;

  /// It waits for its turn.
  void ask(Id id, const std::string& address);
  /// Whose turn it is; nobody's: none waits, or not before `next_at`. `is_idle`: the processor has
  /// nothing else to do
  std::optional<Id> next(TimePoint now, bool is_idle = false);
  TimePoint next_at(TimePoint now) const;
  /// It took `seconds` of processor time beyond kLeastCost; or it waits no longer.
  void end(Id id, double seconds);
  /// One that waits; none: nobody does.
  std::optional<Id> first() const;
  /// Seconds of the burst that are used, at most kBurst.
  double used(TimePoint now) const;

 private:
  double credit_at(TimePoint now) const;

  double credit_ = kBurst, cost_ = kLeastCost;
  TimePoint at_;
  std::map<Id, std::string> waiting_;  ///< to their addresses
  std::map<std::string, std::deque<Id>> by_address_;
  std::deque<std::string> addresses_;  ///< the next one first
  std::map<Id, double> begun_;         ///< what each has paid; 0: it is lent
  std::size_t lent_ = 0;               ///< of them
};

}  // namespace centroid::transport
