#pragma once

#include <cstdint>
#include <string>

#include "common/proto/messages.h"

/// What a member says about itself and its network, for operators.
namespace centroid::proto {

enum class AboutKind : std::uint16_t {
  kMeasure = 38,  ///< server -> worker, request: measure your way to another worker
};

inline constexpr std::uint32_t kMaxMeasureMs = 3'000;

/// Head of a Heartbeat of a worker or shard server; one without a head says nothing.
struct Beat {
  double unix_seconds = 0;  ///< its clock when it was sent
  std::string version;      ///< of its program
  template <class F>
  void fields(F& f) {
    f(unix_seconds), f(version, kMaxNameBytes);
  }
  Status check() const;
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
