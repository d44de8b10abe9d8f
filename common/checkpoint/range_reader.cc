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

/// Parts of rows beside one for each block of a file: files that divide each row and each column
/// would need the square of their blocks.
constexpr std::size_t kMoreExtents = std::size_t{1} << 22;

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

/// Which elements of which tensor, by its place, a tensor of a file has.
Result<std::pair<const Places::mapped_type*, Piece>> elements_in(const fs::path& path,
                                                                 const TensorInfo& held,
                                                                 const Places& places) {
  if (held.dtype != DType::kF32)
    return refused(path, printable(held.name, 200) + " is not of type f32");
  if (const auto whole = places.find(held.name); whole != places.end()) {
    const TensorInfo& tensor = *whole->second.second;
    if (held.shape == tensor.shape)
      return std::pair(&whole->second, Piece{held.name, {0, tensor.elements()}, {}});
    return refused(path, printable(held.name, 200) + " has shape " + to_string(held.shape) +
                             ", manifest.json says " + to_string(tensor.shape));
  }
  auto piece = piece_of(held.name);
  const auto of = piece ? places.find(piece->tensor) : places.end();
  if (of == places.end())
    return refused(path, printable(held.name, 200) + " is no parameter of this model");
  const TensorInfo& tensor = *of->second.second;
  const std::uint64_t row = row_elements(tensor);
  const auto columns = piece->columns.value_or(Piece::Interval{0, 1});
  const std::uint64_t most =
      piece->columns && row > 0 ? tensor.elements() / row : tensor.elements();
  if (piece->elements.end > most || columns.end > row ||
      held.elements() !=
          (piece->elements.end - piece->elements.begin) * (columns.end - columns.begin))
    return refused(path, "piece " + printable(held.name, 200) + " with shape " +
                             to_string(held.shape) + " does not fit the parameter's shape " +
                             to_string(tensor.shape));
  return std::pair(&of->second, std::move(*piece));
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
  return reader;
}

/// Of tensors whose first element is `first`.
Status RangeReader::add(const std::string& stem, const CheckpointManifest& content,
                        const Manifest& tensors, std::uint64_t first) {
  CENTROID_ASSIGN(std::vector<Block> blocks, blocks_of(stem, content, tensors, first));
  blocks_ += blocks.size();
  std::ranges::sort(blocks, {}, [](const Block& one) { return std::pair(one.tensor, one.row); });
  std::span<const Block> left(blocks);
  for (const TensorInfo& tensor : tensors) {
    if (tensor.elements() == 0) continue;
    const auto others = std::ranges::upper_bound(left, first, {}, &Block::tensor);
    const auto count = static_cast<std::size_t>(others - left.begin());
    CENTROID_TRY(add_bands(tensor, first, left.first(count)));
    left = left.subspan(count);
    first += tensor.elements();
  }
  return {};
}

Result<std::vector<RangeReader::Block>> RangeReader::blocks_of(const std::string& stem,
                                                               const CheckpointManifest& content,
                                                               const Manifest& tensors,
                                                               std::uint64_t first) {
  std::vector<Block> out;
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
      CENTROID_ASSIGN(const auto found, elements_in(path, held, places));
      const auto& [place, piece] = found;
      const std::uint64_t row = row_elements(*place->second);
      const auto add = [&](std::uint64_t from, std::uint64_t rows, std::uint64_t column,
                           std::uint64_t width) {
        out.push_back({place->first, from, rows, {column, width, files_.size(), at}});
        at += rows * width * sizeof(float);
        return rows * width;
      };
      auto [begin, end] = piece.elements;
      if (piece.columns)
        begin += add(begin, end - begin, piece.columns->begin,
                     piece.columns->end - piece.columns->begin);
      while (!piece.columns && begin < end) {
        const std::uint64_t column = begin % row, whole = column == 0 ? (end - begin) / row : 0;
        begin += whole > 0 ? add(begin / row, whole, 0, row)
                           : add(begin / row, 1, column, std::min(row - column, end - begin));
      }
    }
    files_.push_back(name);
  }
  return out;
}

/// Of the blocks of a tensor, by row.
Status RangeReader::add_bands(const TensorInfo& tensor, std::uint64_t first,
                              std::span<const Block> blocks) {
  const std::uint64_t width = row_elements(tensor);
  std::vector<std::uint64_t> edges = {0, tensor.elements() / width};
  for (const Block& one : blocks) edges.insert(edges.end(), {one.row, one.row + one.rows});
  std::ranges::sort(edges);
  edges.erase(std::ranges::unique(edges).begin(), edges.end());
  std::vector<const Block*> here;
  auto next = blocks.begin();
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    const std::uint64_t row = edges[i], begin = row * width;
    std::erase_if(here, [&](const Block* one) { return one->row + one->rows <= row; });
    for (; next != blocks.end() && next->row == row; ++next) here.push_back(&*next);
    std::ranges::sort(here, {}, [](const Block* one) { return one->extent.column; });
    const auto wrong = [&](const fs::path& path, std::uint64_t column, const char* what) {
      return refused(path, "element " + std::to_string(begin + column) + " of " +
                               printable(tensor.name, 200) + " is in " + what);
    };
    const std::size_t first_extent = extents_.size();
    std::uint64_t at = 0;
    for (const Block* const one : here) {
      Extent own = one->extent;
      if (own.column < at) return wrong(folder_ / files_[own.file], own.column, "two parts");
      if (own.column > at) break;
      own.at_byte += (row - one->row) * own.width * sizeof(float);
      extents_.push_back(own);
      at += own.width;
    }
    if (at < width) return wrong(folder_, at, "no part");
    if (extents_.size() > kMoreExtents + blocks_)
      return refused(folder_, "its " + std::to_string(blocks_) +
                                  " blocks divide the tensors into more than " +
                                  std::to_string(kMoreExtents + blocks_) + " parts of rows");
    bands_.push_back({first + begin, edges[i + 1] - row, width, first_extent, extents_.size()});
  }
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
  while (!into.empty()) {
    const Band& band = *--std::ranges::upper_bound(bands_, at, {}, &Band::begin);
    const std::uint64_t row = (at - band.begin) / band.row_elements,
                        column = (at - band.begin) % band.row_elements;
    const std::span extents = std::span(extents_).subspan(band.first, band.end - band.first);
    const Extent& extent = *--std::ranges::upper_bound(extents, column, {}, &Extent::column);
    const bool is_whole = extent.width == band.row_elements;  // rows follow each other
    const std::uint64_t before = row * extent.width + column - extent.column,
                        left = (is_whole ? band.rows * extent.width : (row + 1) * extent.width) -
                               before;
    const fs::path path = folder_ / files_[extent.file];
    if (!open_.is_open() || open_file_ != extent.file) {
      CENTROID_ASSIGN(open_, file::open_regular(path));
      open_file_ = extent.file;
    }
    const auto part = into.first(std::min<std::uint64_t>(into.size(), left));
    CENTROID_TRY(file::read_at(open_, path, extent.at_byte + before * sizeof(float),
                               std::as_writable_bytes(part)));
    at += part.size();
    into = into.subspan(part.size());
  }
  return {};
}

}  // namespace centroid
