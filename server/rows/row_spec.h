#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace centroid::server {

enum class RowRule : std::uint8_t { kSgd, kAdagrad, kFtrl };

/// Values of a row before its first update: a function of (seed, key, column), so a row that is not
/// stored has a value too.
struct RowInitializer {
  enum class Kind : std::uint8_t { kZeros, kUniform, kNormal };
  Kind kind = Kind::kZeros;
  double scale = 0;  ///< uniform: in [-scale, scale); normal: standard deviation
  /// "zeros", "uniform:SCALE" or "normal:SCALE" with 0 < SCALE <= 1000.
  static Result<RowInitializer> parse(std::string_view text);
};

inline constexpr std::uint32_t kMaxRowDim = 4096;
/// Keys that wait for admission may use 1/kCandidateShare of max_bytes.
inline constexpr std::uint64_t kCandidateShare = 16;
/// Largest absolute value of a row's gradient: its square, and sums of squares, stay finite.
inline constexpr float kMaxRowGradient = 1e18f;

/// One table of sparse rows.
struct RowSpec {
  std::string name;  ///< letters, digits, '_', '-', '.'; 1 to 64 of them
  std::uint32_t dim = 0;
  RowRule rule = RowRule::kAdagrad;
  double learning_rate = 0.01;
  std::string schedule = "constant";     ///< of the learning rate: common/optim/schedule.h
  double epsilon = 1e-8;                 ///< Adagrad
  double l1 = 0, l2 = 0, ftrl_beta = 1;  ///< FTRL
  RowInitializer initializer;
  std::uint64_t seed = 1;
  std::uint32_t admit_after = 1;  ///< pushes of a key after which its row is stored
  std::uint64_t max_bytes = 0;    ///< of memory; 0: no limit
  std::uint64_t max_age = 0;      ///< ticks of the table's clock without a use; 0: unlimited

  /// floats of optimizer state of a row
  std::uint32_t slot_floats() const;
  /// Smallest max_bytes for such a table.
  std::uint64_t least_bytes() const;
  /// fails invalid_argument naming the table, the field, its value and the valid ones.
  Status check() const;
};

/// Whether rows of one table are valid in the other; rates and limits may differ.
bool describes_same_rows(const RowSpec& one, const RowSpec& other);

/// Tables as in the server's setting `tables`, separated by ';':
/// "NAME:dim=16,optimizer=adagrad,lr=0.05,schedule=cosine:rounds=1000,warmup=50,epsilon=1e-8,l1=0,
/// l2=0,beta=1,init=uniform:0.05,seed=1,admit_after=1,max_bytes=1073741824,max_age=0"; all but dim
/// are optional, fields of a schedule follow it directly. Returned specs have been checked.
/// fails  invalid_argument: names the table and the part.
Result<std::vector<RowSpec>> parse_tables(std::string_view text);

/// In the format of parse_tables, without parts that have their default.
std::string to_string(const RowSpec& spec);

Result<RowRule> parse_row_rule(std::string_view text);
std::string_view to_string(RowRule rule);

}  // namespace centroid::server
