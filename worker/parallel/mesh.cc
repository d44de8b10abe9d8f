#include "worker/parallel/mesh.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "common/tensor/text.h"

namespace centroid::parallel {
namespace {

constexpr std::array<std::string_view, 3> kAxisNames = {"dp", "pp", "tp"};

Error bad_mesh(std::string_view text, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument,
               "mesh \"" + printable(text) + "\": " + why + " (as in dp=2,pp=2,tp=2)");
}

Error bad_sharding(std::string_view text, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, "sharding \"" + printable(text) + "\": " + why);
}

std::optional<std::uint32_t> positive_number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0) return std::nullopt;
  return value;
}

std::vector<std::uint32_t> every(std::uint32_t count, std::uint32_t first, std::uint32_t step) {
  std::vector<std::uint32_t> out(count);
  for (std::uint32_t i = 0; i < count; ++i) out[i] = first + i * step;
  return out;
}

}  // namespace

std::string_view to_string(Axis axis) { return kAxisNames[static_cast<std::size_t>(axis)]; }

Result<Mesh> Mesh::parse(std::string_view text, std::uint32_t world) {
  if (world == 0) return bad_mesh(text, "the job has no ranks");
  Mesh mesh;
  if (text.empty()) {
    mesh.sizes_[0] = world;
    return mesh;
  }
  std::array<bool, 3> is_named{};
  std::string_view rest = text;
  while (true) {
    const auto comma = rest.find(',');
    const std::string_view field = rest.substr(0, comma);
    const auto equals = field.find('=');
    const std::string_view name = field.substr(0, equals);
    std::size_t axis = 0;
    while (axis < kAxisNames.size() && kAxisNames[axis] != name) ++axis;
    if (axis == kAxisNames.size() || equals == std::string_view::npos)
      return bad_mesh(text, printable(field) + " is not an axis and its size");
    if (is_named[axis]) return bad_mesh(text, std::string(name) + " is there twice");
    const auto size = positive_number(field.substr(equals + 1));
    if (!size) return bad_mesh(text, std::string(name) + " must be a whole number from 1 on");
    is_named[axis] = true;
    mesh.sizes_[axis] = *size;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::uint64_t product = 1;
  for (const std::uint32_t size : mesh.sizes_) {
    product *= size;
    if (product > world) break;  // three 32-bit numbers may overflow
  }
  if (product != world)
    return bad_mesh(text, mesh.text() + " needs " + (product > world ? "more" : "fewer") +
                              " ranks than the " + std::to_string(world) +
                              " of the job: " + std::to_string(mesh.sizes_[0]) + " x " +
                              std::to_string(mesh.sizes_[1]) + " x " +
                              std::to_string(mesh.sizes_[2]) + " must be " + std::to_string(world));
  return mesh;
}

std::string Mesh::text() const {
  return "dp=" + std::to_string(sizes_[0]) + ",pp=" + std::to_string(sizes_[1]) +
         ",tp=" + std::to_string(sizes_[2]);
}

Place Mesh::place_of(std::uint32_t rank) const {
  const std::uint32_t data = size(Axis::kData), tensor = size(Axis::kTensor);
  return {rank / tensor % data, rank / tensor / data, rank % tensor};
}

std::uint32_t Mesh::rank_of(const Place& place) const {
  return (place.pipeline * size(Axis::kData) + place.data) * size(Axis::kTensor) + place.tensor;
}

std::vector<std::uint32_t> Mesh::ranks_along(Axis axis, std::uint32_t rank) const {
  Place place = place_of(rank);
  std::uint32_t& index = axis == Axis::kData       ? place.data
                         : axis == Axis::kPipeline ? place.pipeline
                                                   : place.tensor;
  std::vector<std::uint32_t> out;
  for (index = 0; index < size(axis); ++index) out.push_back(rank_of(place));
  return out;
}

std::optional<Mesh> Mesh::fit(std::uint32_t workers) const {
  const std::uint32_t stages = size(Axis::kPipeline), parts = size(Axis::kTensor);
  const std::uint32_t places = std::min(workers, world()) / parts;
  if (places == 0) return std::nullopt;
  Mesh out = *this;
  out.sizes_[static_cast<std::size_t>(Axis::kPipeline)] = std::min(stages, places);
  out.sizes_[static_cast<std::size_t>(Axis::kData)] = std::max(1U, places / stages);
  return out;
}

std::optional<std::uint32_t> Mesh::next_size(std::uint32_t workers) const {
  if (workers >= world()) return std::nullopt;
  const std::uint32_t stages = size(Axis::kPipeline), parts = size(Axis::kTensor);
  const std::uint32_t places = workers / parts;
  return parts * (places < stages ? places + 1 : (places / stages + 1) * stages);
}

Result<Sharding> Sharding::parse(std::string_view text, std::uint32_t world) {
  if (world == 0) return bad_sharding(text, "there are no data parallel ranks");
  if (text == "full") return Sharding{Kind::kFull};
  if (text == "grad") return Sharding{Kind::kGrad};
  if (text == "none") return Sharding{Kind::kNone};
  constexpr std::string_view kPrefix = "hybrid:";
  if (!text.starts_with(kPrefix)) return bad_sharding(text, "must be full, grad, none or hybrid:K");
  const auto group = positive_number(text.substr(kPrefix.size()));
  if (!group || world % *group != 0)
    return bad_sharding(text, "K must divide the " + std::to_string(world) +
                                  " data parallel ranks, and is " +
                                  printable(text.substr(kPrefix.size())));
  return Sharding{Kind::kHybrid, *group};
}

std::string Sharding::text() const {
  switch (kind) {
    case Kind::kFull:
      return "full";
    case Kind::kGrad:
      return "grad";
    case Kind::kNone:
      return "none";
    case Kind::kHybrid:
      break;
  }
  return "hybrid:" + std::to_string(group);
}

std::vector<std::uint32_t> Sharding::shard_ranks(std::uint32_t rank, std::uint32_t world) const {
  if (kind == Kind::kNone) return {rank};
  if (kind == Kind::kHybrid) return every(group, rank / group * group, 1);
  return every(world, 0, 1);
}

std::vector<std::uint32_t> Sharding::replica_ranks(std::uint32_t rank, std::uint32_t world) const {
  if (kind == Kind::kNone) return every(world, 0, 1);
  if (kind == Kind::kHybrid) return every(world / group, rank % group, group);
  return {rank};
}

}  // namespace centroid::parallel
