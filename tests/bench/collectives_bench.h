#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace centroid::bench {

/// All-reduce in place of float32 sums, in one rank's process.
class Contestant {
 public:
  virtual ~Contestant() = default;
  /// One operation; exits the process on failure.
  virtual void reduce(float* data, std::uint64_t count) = 0;
  /// Whether the result is a sum (the limit only moves bytes).
  virtual bool adds() const { return true; }
};

/// How ranks find each other before they have connections.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::vector<std::string> hosts;  ///< numeric addresses by rank
  /// Give every rank a number of each: blocks until all have called it.
  std::function<std::vector<std::uint32_t>(std::uint32_t)> exchange;
  std::string congestion_control;  ///< empty: the system's
  std::string folder;              ///< for rendezvous files, empty at first
  std::uint32_t spin_us = 0;
};

struct Entry {
  std::string name;
  std::function<std::unique_ptr<Contestant>(const Place&)> make;
  std::uint64_t most_bytes = ~std::uint64_t{0};  ///< it does not get through larger messages
  bool is_asked_for = false;                     ///< takes part only when it is named
};

/// A bare two-way socket program that moves the bytes of a ring and adds nothing; when asked for,
/// also over 2 and 4 connections to each neighbour.
std::vector<Entry> limit_entries();
/// This project with its own choice of algorithm, and, when asked for, with each of them.
std::vector<Entry> centroid_entries();
#if defined(CENTROID_BENCH_GLOO)
std::vector<Entry> gloo_entries();
#endif

}  // namespace centroid::bench
