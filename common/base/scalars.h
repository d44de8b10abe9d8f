#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace centroid {

/// Means of numbers that a training program names itself (perplexity, reward, ...), as sums and
/// counts, so that contributions and workers can be added. Bounded: at most kMaxNames names.
/// thread: one
class Scalars {
 public:
  static constexpr std::size_t kMaxNames = 16, kMaxNameBytes = 64;
  /// Sums stay finite over all workers.
  static constexpr double kMaxSum = 1e300;
  struct Sum {
    double sum = 0;
    std::uint64_t count = 0;
    /// 0 if there are none.
    double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
    bool operator==(const Sum&) const = default;
  };
  using Map = std::map<std::string, Sum, std::less<>>;

  /// Add one number under this name.
  /// fails  invalid_argument: not a valid name, or a number that is not finite or beyond 1e300;
  ///        resource_exhausted: a seventeenth name
  Status record(std::string_view name, double value);
  /// Add one sum under this name. False: there are kMaxNames others, and it is left out.
  bool add(std::string_view name, const Sum& more);
  /// All that fit.
  void add(const Scalars& more);

  const Map& all() const { return sums_; }
  bool is_empty() const { return sums_.empty(); }
  bool operator==(const Scalars&) const = default;

 private:
  Map sums_;
};

/// Letters, digits, and _ . / - within, beginning with a letter or _; 1 to 64 bytes.
bool is_scalar_name(std::string_view name);

}  // namespace centroid
