#pragma once

// What the parts of centroid-bench-codecs share: inputs, contenders that take turns, rows with
// bars.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/tensor/buffer.h"

namespace centroid::bench {

struct Options {
  std::uint64_t elements = 25'000'000;
  std::uint64_t repetitions = 21;
};

/// n floats in pages that were touched.
class Floats {
 public:
  explicit Floats(std::size_t n);
  std::span<float> span() const { return memory_.as<float>().first(n_); }
  float* data() const { return span().data(); }

 private:
  std::size_t n_;
  Buffer memory_;
};

/// Normal numbers (positions of the largest are then independent).
void fill_normal(std::span<float> x, std::uint64_t seed);
/// One of eleven inputs that are hard for somebody; returns its name.
constexpr int kInputs = 11;
std::string fill_input(std::span<float> x, int which);

/// Contenders of one comparison: each runs once per repetition, in turn; medians in seconds.
class Turns {
 public:
  /// Returns the contender's number.
  std::size_t add(std::function<void()> work, std::function<void()> prepare = {});
  void run(std::uint64_t repetitions);
  double median(std::size_t contender) const;
  /// Median of a's time over b's, turn by turn: what slows the machine for a while slows both.
  double ratio(std::size_t a, std::size_t b) const;

 private:
  struct Contender {
    std::function<void()> work, prepare;
    std::vector<double> seconds;
  };
  std::vector<Contender> contenders_;
};

/// Rows of the report. A bar is "at most" (or "at least") `bar`; without one the row informs only.
void heading(const std::string& text);
void row(const std::string& what, double value, const std::string& unit,
         const std::string& detail = {});
void at_most(const std::string& what, double value, double bar, const std::string& detail = {});
void at_least(const std::string& what, double value, double bar, const std::string& detail = {});
int missed_bars();

/// The bits of all numbers, read as fast as this machine can with one thread.
std::uint32_t read_pass(std::span<const float> x);
/// e += g, as fast as this machine can.
void add_pass(std::span<const float> g, std::span<float> e);

void bench_selection(const Options& options);
void bench_distributions(const Options& options);
void bench_others(const Options& options);
void bench_feedback(const Options& options);
void bench_bytes(const Options& options);
void bench_dense(const Options& options);
void bench_sign(const Options& options);
void bench_merge(const Options& options);

}  // namespace centroid::bench
