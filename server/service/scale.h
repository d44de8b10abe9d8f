#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace centroid::server {

/// What is known of the last rounds, for `advise_scale`.
struct ScaleQuestion {
  struct Worker {
    std::string name;
    double compute_seconds = 0;  ///< of its last round
  };
  std::vector<Worker> workers;  ///< that took part
  double round_seconds = 0;     ///< mean time between two commits
  std::uint64_t rounds = 0;     ///< of which it is the mean
  double efficiency = 0.5;      ///< wanted: share of a round in which workers compute, 0 < e < 1
  bool adds_at_server = true;   ///< exchange star: what is no computing grows with the workers
  std::uint64_t max_workers = 0;
};

/// How many workers would help.
struct ScaleAdvice {
  std::uint64_t workers = 0;         ///< now
  std::uint64_t useful_workers = 0;  ///< so many, and the efficiency is still the wanted one
  double efficiency = 0;             ///< now: compute_seconds / round_seconds
  double speedup = 0;                ///< of samples a second with `useful_workers`, estimated
  double round_seconds = 0, compute_seconds = 0, overhead_seconds = 0;
  std::string limited_by;  ///< nothing_known | workers | exchange | straggler
  std::string straggler;   ///< the worker that the others wait for; empty: none
  std::string advice;      ///< in words
};

/// Pure. With c = seconds of computing of the slowest worker, T = seconds of a round and n workers,
/// o = T - c is what a round costs beyond computing. At the server it grows with the contributions:
/// o(m) = o m / n, so c / (c + o(m)) >= e holds up to m = n (c / o) (1 / e - 1). Among peers o
/// stays about the same and max_workers is the bound.
///
/// A worker is a straggler when it computes more than half as long again as the median of three or
/// more.
ScaleAdvice advise_scale(const ScaleQuestion& question);

}  // namespace centroid::server
