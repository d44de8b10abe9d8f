#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace centroid::parallel {

/// The ways in which the ranks of a job divide its work.
enum class Axis : std::uint8_t {
  kData = 0,      ///< dp: other samples
  kPipeline = 1,  ///< pp: other layers
  kTensor = 2,    ///< tp: other parts of each layer
};
std::string_view to_string(Axis axis);  ///< "dp"

/// Place of a rank: its index on each axis.
struct Place {
  std::uint32_t data = 0, pipeline = 0, tensor = 0;
  bool operator==(const Place&) const = default;
};

/// The ranks of a job as a grid of data, pipeline and tensor parallelism.
///
/// text     "dp=2,pp=2,tp=2" in any order; an axis that is not named has 1 rank; empty: all ranks
///          are data parallel
/// order    rank = (pipeline * dp + data) * tp + tensor: tensor parallel ranks, which exchange the
///          most, are neighbours; stages, which exchange the least, are far apart
class Mesh {
 public:
  /// fails  invalid_argument: an unknown or repeated axis, a size of 0, a product that is not the
  ///        world; the message has the numbers
  static Result<Mesh> parse(std::string_view text, std::uint32_t world);

  std::uint32_t world() const { return sizes_[0] * sizes_[1] * sizes_[2]; }
  std::uint32_t size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  std::string text() const;  ///< "dp=2,pp=2,tp=2"

  /// `rank` < world.
  Place place_of(std::uint32_t rank) const;
  std::uint32_t rank_of(const Place& place) const;
  /// The ranks that differ from this one on this axis only, itself included, in the axis's order.
  std::vector<std::uint32_t> ranks_along(Axis axis, std::uint32_t rank) const;

  /// The mesh in which so many workers train a job for which this one is wanted: the same parts of
  /// each layer, first as many stages as there can be, then as many data ranks. No axis is longer,
  /// so it may have fewer ranks than there are workers. None: they are too few for the parts.
  std::optional<Mesh> fit(std::uint32_t workers) const;
  /// The least number of workers, more than these, that have a larger mesh together. None: these
  /// have the whole mesh.
  std::optional<std::uint32_t> next_size(std::uint32_t workers) const;

 private:
  std::uint32_t sizes_[3] = {1, 1, 1};  ///< by axis
};

/// What data parallel ranks divide among themselves.
///
/// full       parameters, gradients and optimizer state (ZeRO-3)
/// grad       gradients and optimizer state (ZeRO-2)
/// none       nothing
/// hybrid:K   as full among K consecutive ranks; the groups of K replicate each other
///
/// source  Rajbhandari et al. 2020, "ZeRO"; Zhao et al. 2023, "PyTorch FSDP"
struct Sharding {
  enum class Kind : std::uint8_t { kFull, kGrad, kNone, kHybrid };
  Kind kind = Kind::kFull;
  std::uint32_t group = 0;  ///< hybrid: K
  bool operator==(const Sharding&) const = default;

  /// `world`: the data parallel ranks.
  ///
  /// fails  invalid_argument: an unknown name; hybrid with a K of 0 or that does not divide the
  ///        world
  static Result<Sharding> parse(std::string_view text, std::uint32_t world);
  std::string text() const;  ///< "hybrid:2"

  bool shards_parameters() const { return kind == Kind::kFull || kind == Kind::kHybrid; }
  /// The ranks that have one copy of the model together, in the order of their shards.
  std::vector<std::uint32_t> shard_ranks(std::uint32_t rank, std::uint32_t world) const;
  /// The ranks that have the same shard as this one, itself included.
  std::vector<std::uint32_t> replica_ranks(std::uint32_t rank, std::uint32_t world) const;
};

}  // namespace centroid::parallel
