#pragma once

#include <cstdint>
#include <string>

#include "common/proto/messages.h"

/// Messages of a member about itself and its network, for operators.
namespace centroid::proto {

enum class AboutKind : std::uint16_t {
  kMeasure = 38,  ///< server -> worker, request: measure the path to another worker
  kKept = 39,     ///< worker -> server: result of saving my part of the state
};

inline constexpr std::uint32_t kMaxMeasureMs = 3'000;

/// Head of a Heartbeat of a worker or shard server; one without a head reports nothing.
struct Beat {
  double unix_seconds = 0;  ///< its clock when it was sent
  std::string version;      ///< of its program
  template <class F>
  void fields(F& f) {
    f(unix_seconds), f(version, kMaxNameBytes);
  }
  Status check() const;
};

/// Head of the Heartbeat with which a server answers a worker's; one without a head accepts none of
/// these.
struct BeatReply {
  static constexpr std::uint32_t kAcceptsSaved = 1;
  static constexpr std::uint32_t kMaxCompareRounds = (1u << 24) - 1;
  /// Bits: messages that were added later; unknown bits are for later programs. From bit 8 on:
  /// every so many versions PushEnd.fingerprint is accepted; 0: it is not.
  std::uint32_t takes = 0;
  std::uint32_t compare_rounds() const { return takes >> 8; }
  void set_compare_rounds(std::uint32_t rounds) { takes |= rounds << 8; }
  template <class F>
  void fields(F& f) {
    f(takes);
  }
};

enum class SavedState : std::uint8_t {
  kWillReport = 0,  ///< every Keep from here on is answered
  kKept = 1,
  kNotSaved = 2,
};
constexpr std::uint8_t last_value(SavedState) { return 2; }

/// Answer to Keep, for a server whose BeatReply accepts it.
struct Kept {
  Round round;  ///< of the Keep; 0 with kWillReport
  SavedState state = SavedState::kWillReport;
  std::string why;  ///< it was not
  template <class F>
  void fields(F& f) {
    f(round), f(state), f(why, kMaxTextBytes);
  }
};

struct Measure {
  std::string endpoint;     ///< HOST:PORT where the other one listens
  std::uint32_t ms = 0;     ///< how long to measure
  std::uint32_t bytes = 0;  ///< of one payload
  template <class F>
  void fields(F& f) {
    f(endpoint, kMaxNameBytes), f(ms), f(bytes);
  }
  Status check() const;
};

/// Answer to Measure.
struct Measured {
  std::uint64_t round_trips = 0;
  double median_seconds = 0, p99_seconds = 0;
  double bytes_per_second_out = 0, bytes_per_second_in = 0;
  template <class F>
  void fields(F& f) {
    f(round_trips), f(median_seconds), f(p99_seconds), f(bytes_per_second_out),
        f(bytes_per_second_in);
  }
};

}  // namespace centroid::proto
