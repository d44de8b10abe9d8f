#include "common/checkpoint/range_reader.h"

#include <algorithm>
#include <unordered_map>

#include "common/checkpoint/inspect.h"
#include "common/checkpoint/pieces.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;

Error refused(const fs::path& path, const std::string& why) {
  return Error(ErrorCode::kDataLoss, path.string() + ": " + why);
}

/// A part says itself which checkpoint it belongs to.
Status check_part(const fs::path& path, const SafetensorsReader& reader, const PartOf& expected) {
  const auto found = reader.metadata();
  for (const auto& [key, value] : expected.metadata()) {
    const auto at = found.find(key);
    const std::string is = at == found.end() ? "nothing" : printable(at->second);
    if (key == "format" || key == "pieces" || is == printable(value)) continue;
    return refused(path, "is a part of another checkpoint: field \"" + key + "\" is " + is +
                             ", manifest.json expects " + printable(value));
  }
  return {};
}

/// Where each tensor begins, by name.
using Places = std::unordered_map<std::string, std::pair<std::uint64_t, const TensorInfo*>>;

/// Position and number of the elements that a tensor of a file has.
Result<std::pair<std::uint64_t, std::uint64_t>> elements_in(const fs::path& path,
                                                            const TensorInfo& held,
                                                            const Places& places) {
  if (held.dtype != DType::kF32)
    return refused(path, printable(held.name, 200) + " is not of type f32");
  if (const auto whole = places.find(held.name); whole != places.end()) {
    const TensorInfo& tensor = *whole->second.second;
    if (held.shape == tensor.shape) return std::pair(whole->second.first, held.elements());
    return refused(path, printable(held.name, 200) + " has shape " + to_string(held.shape) +
                             ", manifest.json says " + to_string(tensor.shape));
  }
  const auto piece = piece_of(held.name);
  const auto of = piece ? places.find(piece->tensor) : places.end();
  if (of == places.end())
    return refused(path, printable(held.name, 200) + " is no parameter of this model");
  if (piece->end > of->second.second->elements() || held.elements() != piece->end - piece->begin)
    return refused(path, "piece " + printable(held.name, 200) + " with shape " +
                             to_string(held.shape) + " does not fit the parameter's shape " +
                             to_string(of->second.second->shape));
  return std::pair(of->second.first + piece->begin, piece->end - piece->begin);
}

/// The tensors of files that have them whole, one after another.
Result<Manifest> whole_tensors(const fs::path& folder, const CheckpointManifest& content) {
  Manifest all;
  CENTROID_ASSIGN(const auto files, files_of(content, kModelStem));
  for (const std::string& name : files) {
    CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(folder / name));
    all.insert(all.end(), reader.manifest().begin(), reader.manifest().end());
  }
  return all;
}

}  // namespace

Result<RangeReader> RangeReader::open(const fs::path& folder, const CheckpointManifest& content) {
  RangeReader reader;
  reader.folder_ = folder;
  const std::vector<std::string>& slots = content.info.slot_names;
  reader.tensors_ = content.tensors;
  if (reader.tensors_.empty()) {
    CENTROID_ASSIGN(reader.tensors_, whole_tensors(folder, content));
  }
  reader.plane_elements_ = elements_of(reader.tensors_);
  reader.planes_ = 1 + slots.size();
  CENTROID_TRY(reader.add(kModelStem, content, reader.tensors_, 0));
  if (!slots.empty())
    CENTROID_TRY(reader.add(kOptimizerStem, content, optimizer_manifest(reader.tensors_, slots),
                            reader.plane_elements_));
  std::ranges::sort(reader.extents_, {}, &Extent::begin);
  CENTROID_TRY(reader.check_cover(slots));
  return reader;
}

Status RangeReader::add(const std::string& stem, const CheckpointManifest& content,
                        const Manifest& tensors, std::uint64_t first) {
  Places places;
  for (const TensorInfo& tensor : tensors) {
    places.emplace(tensor.name, std::pair(first, &tensor));
    first += tensor.elements();
  }
  CENTROID_ASSIGN(const auto names, files_of(content, stem));
  PartOf part{content.info.run_id, content.info.version, manifest_hash(tensors_), 0, names.size()};
  for (const std::string& name : names) {
    const fs::path path = folder_ / name;
    CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(path));
    if (!content.tensors.empty()) CENTROID_TRY(check_part(path, reader, part));
    ++part.part;
    std::uint64_t bytes = 0;
    for (const TensorInfo& held : reader.manifest()) bytes += held.bytes();
    CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
    CENTROID_ASSIGN(const std::uint64_t size, file::size_of(file, path));
    if (size != content.files.at(name).bytes)
      return refused(path, std::to_string(size) + " bytes, manifest.json expects " +
                               std::to_string(content.files.at(name).bytes));
    std::uint64_t at = size - bytes;
    for (const TensorInfo& held : reader.manifest()) {
      CENTROID_ASSIGN(const auto place, elements_in(path, held, places));
      if (place.second > 0) extents_.push_back({place.first, place.second, files_.size(), at});
      at += held.bytes();
    }
    files_.push_back(name);
  }
  return {};
}

Status RangeReader::check_cover(const std::vector<std::string>& slots) const {
  const auto describe = [&](std::uint64_t element) {
    const std::uint64_t plane = element / plane_elements_;
    std::uint64_t rest = element % plane_elements_;
    std::size_t tensor = 0;
    while (rest >= tensors_[tensor].elements()) rest -= tensors_[tensor++].elements();
    return "element " + std::to_string(rest) + " of " +
           (plane == 0 ? std::string() : slots[plane - 1] + "/") +
           printable(tensors_[tensor].name, 200);
  };
  std::uint64_t at = 0;
  for (const Extent& extent : extents_) {
    if (extent.begin < at)
      return refused(folder_ / files_[extent.file], describe(extent.begin) + " is in two parts");
    if (extent.begin > at) return refused(folder_, describe(at) + " is in no part");
    at += extent.count;
  }
  if (at < planes_ * plane_elements_) return refused(folder_, describe(at) + " is in no part");
  return {};
}

Status RangeReader::read(std::size_t plane, std::uint64_t offset, std::span<float> into) {
  if (plane >= planes_ || offset > plane_elements_ || into.size() > plane_elements_ - offset)
    return Error(ErrorCode::kInvalidArgument,
                 "read " + folder_.string() + ": " + std::to_string(into.size()) +
                     " elements from " + std::to_string(offset) + " of plane " +
                     std::to_string(plane) + "; there are " + std::to_string(planes_) + " of " +
                     std::to_string(plane_elements_));
  std::uint64_t at = plane * plane_elements_ + offset;
  auto extent = std::ranges::upper_bound(extents_, at, {}, &Extent::begin);
  for (extent -= into.empty() ? 0 : 1; !into.empty(); ++extent) {
    const fs::path path = folder_ / files_[extent->file];
    if (!open_.is_open() || open_file_ != extent->file) {
      CENTROID_ASSIGN(open_, file::open_regular(path));
      open_file_ = extent->file;
    }
    const std::uint64_t skipped = at - extent->begin;
    const auto part = into.first(std::min<std::uint64_t>(into.size(), extent->count - skipped));
    CENTROID_TRY(file::read_at(open_, path, extent->at_byte + skipped * sizeof(float),
                               std::as_writable_bytes(part)));
    at += part.size();
    into = into.subspan(part.size());
  }
  return {};
}

}  // namespace centroid
