#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid::parallel {

/// Consecutive elements, or items.
struct Range {
  std::uint64_t begin = 0, count = 0;
  std::uint64_t end() const { return begin + count; }
  bool operator==(const Range&) const = default;
};

/// Ranks that get one item more if their number does not divide the items.
enum class Remainder : std::uint8_t {
  kFirst,  ///< each of the first ranks gets one: sizes differ by 1 at most; the rule of collectives
  kLast,   ///< the last rank gets all of them; only to read what was divided so
};

/// The consecutive items of one rank. `ranks` >= 1, `rank` < `ranks`; may be empty.
Range shard_of(std::uint64_t items, std::uint32_t ranks, std::uint32_t rank,
               Remainder remainder = Remainder::kFirst);
/// Items of each rank.
std::vector<std::uint64_t> shard_counts(std::uint64_t items, std::uint32_t ranks);
/// The items of one rank if item i belongs to rank i mod ranks, ascending.
std::vector<std::uint64_t> round_robin(std::uint64_t items, std::uint32_t ranks,
                                       std::uint32_t rank);

/// Elements that one rank had and another has after a change of the number of ranks.
struct Move {
  std::uint32_t from = 0, to = 0;
  Range elements;
  bool operator==(const Move&) const = default;
};
/// All elements, in their order; also those that stay on their rank.
std::vector<Move> reshard(std::uint64_t elements, std::uint32_t from_ranks, std::uint32_t to_ranks);

/// A parameter as the model describes it.
struct ParameterShape {
  std::string name;
  std::uint64_t elements = 0;
  std::uint32_t layer = 0;  ///< parameters of a layer are used together
  /// In the norm of the gradient of all parts of the model. False: another part has the same
  /// parameter, and counts it.
  bool is_counted = true;
};
/// Some of them.
std::vector<ParameterShape> cut(const std::vector<ParameterShape>& shapes, Range parameters);

/// How the parameters of a model are cut: into units, which are gathered and released as one, and
/// each unit's elements, one parameter after the other, into a shard for each rank.
///
/// units   consecutive whole layers; layers follow each other in one unit until it has at least
///         `least_elements`, so many small parameters need few operations
/// sizes   any: a parameter or a unit may have fewer elements than there are ranks
/// thread  immutable
class ShardLayout {
 public:
  struct Unit {
    Range parameters;          ///< their indices
    Range elements;            ///< of the model
    std::uint64_t layers = 0;  ///< how many
  };

  /// fails  invalid_argument: no ranks, no parameters, one without elements, a layer lower than
  ///        that of the parameter before, more elements than 64 bits count
  static Result<ShardLayout> make(std::vector<ParameterShape> parameters, std::uint32_t ranks,
                                  std::uint64_t least_elements = kLeastElements);
  /// 256 KiB of float32: a quarter of a collective's segment.
  static constexpr std::uint64_t kLeastElements = 64 << 10;

  std::uint32_t ranks() const { return ranks_; }
  std::uint64_t elements() const { return units_.back().elements.end(); }
  std::span<const ParameterShape> parameters() const { return parameters_; }
  std::span<const Unit> units() const { return units_; }
  /// The most elements of a unit.
  std::uint64_t largest_unit() const;

  std::size_t unit_of(std::size_t parameter) const { return unit_of_[parameter]; }
  /// A parameter's elements, counted from the begin of its unit.
  Range within_unit(std::size_t parameter) const { return within_[parameter]; }
  /// A rank's elements of a unit, counted from the begin of the unit.
  Range shard(std::size_t unit, std::uint32_t rank) const;
  /// A rank's elements of all units.
  std::uint64_t shard_elements(std::uint32_t rank) const;

 private:
  std::vector<ParameterShape> parameters_;
  std::vector<Unit> units_;
  std::vector<std::size_t> unit_of_;  ///< by parameter
  std::vector<Range> within_;         ///< by parameter
  std::uint32_t ranks_ = 1;
};

}  // namespace centroid::parallel
