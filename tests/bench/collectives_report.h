#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace centroid::bench {

/// One contestant at one size.
struct Row {
  std::string name;
  std::uint32_t world = 0;
  std::uint64_t bytes = 0;
  std::vector<double> all;      ///< seconds of every operation
  std::vector<double> medians;  ///< of each round
  std::vector<double> cpu;      ///< processor seconds of all ranks per operation, of each round
  std::uint64_t extra_kib = 0;  ///< most memory of a rank beyond the buffer

  double p50() const;
};

double quantile(std::vector<double> values, double q);

/// `format`: table, csv or json. A table ends with the ratios that matter: to the limit, and to the
/// best of each other project.
void print(const std::string& format, const std::vector<Row>& rows);

}  // namespace centroid::bench
