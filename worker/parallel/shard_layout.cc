#include "worker/parallel/shard_layout.h"

#include <algorithm>
#include <limits>

#include "common/tensor/text.h"

namespace centroid::parallel {
namespace {

Error bad_layout(const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, "layout of shards: " + why);
}

Status check(std::span<const ParameterShape> parameters, std::uint32_t ranks) {
  if (ranks == 0) return bad_layout("there are no ranks");
  if (parameters.empty()) return bad_layout("the model has no parameters");
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterShape& one = parameters[i];
    const std::string name = "parameter " + std::to_string(i) + " (" + printable(one.name) + ")";
    if (one.elements == 0) return bad_layout(name + " has no elements");
    if (one.elements > std::numeric_limits<std::uint64_t>::max() - sum)
      return bad_layout("up to " + name + " there are more elements than 64 bits count");
    sum += one.elements;
    if (i > 0 && one.layer < parameters[i - 1].layer)
      return bad_layout(name + " is of layer " + std::to_string(one.layer) +
                        " and follows one of layer " + std::to_string(parameters[i - 1].layer) +
                        "; order the parameters by layer");
  }
  return {};
}

}  // namespace

Range shard_of(std::uint64_t items, std::uint32_t ranks, std::uint32_t rank, Remainder remainder) {
  const std::uint64_t part = items / ranks, more = items % ranks;
  if (remainder == Remainder::kLast) return {part * rank, rank + 1 == ranks ? part + more : part};
  return {part * rank + std::min<std::uint64_t>(rank, more), part + (rank < more ? 1 : 0)};
}

std::vector<std::uint64_t> shard_counts(std::uint64_t items, std::uint32_t ranks) {
  std::vector<std::uint64_t> out;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    out.push_back(shard_of(items, ranks, rank).count);
  return out;
}

std::vector<std::uint64_t> round_robin(std::uint64_t items, std::uint32_t ranks,
                                       std::uint32_t rank) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t item = rank; item < items; item += ranks) out.push_back(item);
  return out;
}

std::vector<Move> reshard(std::uint64_t elements, std::uint32_t from_ranks,
                          std::uint32_t to_ranks) {
  std::vector<Move> out;
  std::uint32_t from = 0, to = 0;
  for (std::uint64_t begin = 0; begin < elements;) {
    while (shard_of(elements, from_ranks, from).end() <= begin) ++from;
    while (shard_of(elements, to_ranks, to).end() <= begin) ++to;
    const std::uint64_t end = std::min(shard_of(elements, from_ranks, from).end(),
                                       shard_of(elements, to_ranks, to).end());
    out.push_back({from, to, {begin, end - begin}});
    begin = end;
  }
  return out;
}

std::vector<ParameterShape> cut(const std::vector<ParameterShape>& shapes, Range parameters) {
  const auto first = shapes.begin() + static_cast<std::ptrdiff_t>(parameters.begin);
  return {first, first + static_cast<std::ptrdiff_t>(parameters.count)};
}

Result<ShardLayout> ShardLayout::make(std::vector<ParameterShape> parameters, std::uint32_t ranks,
                                      std::uint64_t least_elements) {
  CENTROID_TRY(check(parameters, ranks));
  ShardLayout layout;
  layout.ranks_ = ranks;
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_new_layer = i == 0 || parameters[i].layer != parameters[i - 1].layer;
    if (i == 0 || (is_new_layer && layout.units_.back().elements.count >= least_elements))
      layout.units_.push_back({{i, 0}, {position, 0}, 0});
    Unit& unit = layout.units_.back();
    layout.unit_of_.push_back(layout.units_.size() - 1);
    layout.within_.push_back({unit.elements.count, parameters[i].elements});
    unit.parameters.count += 1;
    unit.elements.count += parameters[i].elements;
    unit.layers += is_new_layer ? 1 : 0;
    position += parameters[i].elements;
  }
  layout.parameters_ = std::move(parameters);
  return layout;
}

std::uint64_t ShardLayout::largest_unit() const {
  std::uint64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.elements.count);
  return most;
}

Range ShardLayout::shard(std::size_t unit, std::uint32_t rank) const {
  return shard_of(units_[unit].elements.count, ranks_, rank);
}

std::uint64_t ShardLayout::shard_elements(std::uint32_t rank) const {
  std::uint64_t sum = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) sum += shard(unit, rank).count;
  return sum;
}

}  // namespace centroid::parallel
