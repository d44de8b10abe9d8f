#include "common/checkpoint/pieces.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shards.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

constexpr std::uint64_t kPieceElements = std::uint64_t{256} << 10;  // 1 MiB
constexpr const char* kRule =
    "NAME[BEGIN:END] is elements BEGIN to END - 1 of the tensor NAME, flattened in row-major "
    "order; NAME[ROW:END,COLUMN:END] is these columns of rows ROW to END - 1, where a row is the "
    "last dimension; manifest.json has the shape";

/// Reads "BEGIN:END".
std::optional<Piece::Interval> interval_of(std::string_view text) {
  Piece::Interval out;
  const char* const end = text.data() + text.size();
  const auto begun = std::from_chars(text.data(), end, out.begin);
  if (begun.ec != std::errc() || begun.ptr == end || *begun.ptr != ':') return std::nullopt;
  const auto ended = std::from_chars(begun.ptr + 1, end, out.end);
  if (ended.ec != std::errc() || ended.ptr != end || out.begin >= out.end) return std::nullopt;
  return out;
}

std::string text_of(std::uint64_t begin, std::uint64_t end) {
  return std::to_string(begin) + ":" + std::to_string(end);
}

/// Elements of a tensor: consecutive ones, of which several such rows may follow each other.
struct Rows {
  std::uint64_t begin = 0, count = 0, rows = 1;

  /// Whether `next` has the same columns of the next row.
  bool precedes(const Rows& next, std::uint64_t row) const {
    return count < row && begin % row + count <= row && next.count == count &&
           next.begin == begin + rows * row;
  }
};

TensorInfo info_of(const TensorInfo& whole, const Rows& part) {
  if (part.count == whole.elements()) return whole;
  TensorInfo out{whole.name, whole.dtype, {part.count}};
  if (part.rows == 1) {
    out.name += "[" + text_of(part.begin, part.begin + part.count) + "]";
    return out;
  }
  const std::uint64_t width = row_elements(whole), row = part.begin / width,
                      column = part.begin % width;
  out.name +=
      "[" + text_of(row, row + part.rows) + "," + text_of(column, column + part.count) + "]";
  out.shape.insert(out.shape.begin(), part.rows);
  return out;
}

}  // namespace

std::uint64_t row_elements(const TensorInfo& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape.back();
}

std::map<std::string, std::string> PartOf::metadata() const {
  return {{"format", "centroid"},  // with "pt" Hugging Face would load it, without its pieces
          {"pieces", kRule},
          {"part", std::to_string(part + 1) + " of " + std::to_string(parts)},
          {"run_id", run_id},
          {"version", to_string(version)},
          {"model", std::to_string(model)}};
}

std::string PartOf::file_name(const std::string& stem) const {
  return shard_file_name(stem, part, parts);
}

std::uint64_t elements_of(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : manifest) total += tensor.elements();
  return total;
}

Manifest optimizer_manifest(const Manifest& manifest, const std::vector<std::string>& slots) {
  Manifest out;
  out.reserve(manifest.size() * slots.size());
  for (const std::string& slot : slots) {
    for (const TensorInfo& tensor : manifest) {
      TensorInfo info = tensor;
      info.name = slot + '/' + tensor.name;
      out.push_back(std::move(info));
    }
  }
  return out;
}

std::optional<Piece> piece_of(const std::string& name) {
  const std::size_t open = name.rfind('[');
  if (open == std::string::npos || open == 0 || !name.ends_with(']')) return std::nullopt;
  Piece piece;
  piece.tensor = name.substr(0, open);
  const std::string_view inside(name.data() + open + 1, name.size() - open - 2);
  const std::size_t comma = inside.find(',');
  const auto elements = interval_of(inside.substr(0, comma));
  if (!elements) return std::nullopt;
  piece.elements = *elements;
  if (comma == std::string_view::npos) return piece;
  piece.columns = interval_of(inside.substr(comma + 1));
  if (!piece.columns) return std::nullopt;
  return piece;
}

Status check_piece_names(const Manifest& manifest) {
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : manifest) names.insert(tensor.name);
  for (const TensorInfo& tensor : manifest)
    if (const auto piece = piece_of(tensor.name); piece && names.contains(piece->tensor))
      return Error(ErrorCode::kInvalidArgument,
                   "parameter " + printable(tensor.name) + " has the name of a piece of " +
                       printable(piece->tensor) + " in a sharded checkpoint; rename it");
  return {};
}

Manifest pieces_of(const Manifest& tensors, std::span<const ElementRun> runs) {
  Manifest out;
  std::size_t tensor = 0;
  std::uint64_t tensor_begin = 0;
  Rows last{0, 0};  // of that tensor
  const auto end_last = [&] {
    if (last.count > 0) out.push_back(info_of(tensors[tensor], last));
    last = {};
  };
  for (const ElementRun& run : runs) {
    for (std::uint64_t at = run.begin; at < run.begin + run.count;) {
      while (tensor_begin + tensors[tensor].elements() <= at) {
        end_last();
        tensor_begin += tensors[tensor++].elements();
      }
      const TensorInfo& info = tensors[tensor];
      const std::uint64_t end = std::min(run.begin + run.count, tensor_begin + info.elements());
      const Rows next{at - tensor_begin, end - at};
      if (last.precedes(next, row_elements(info))) {
        ++last.rows;
      } else {
        end_last();
        last = next;
      }
      at = end;
    }
  }
  end_last();
  return out;
}

Result<FileRecord> write_part(const std::filesystem::path& folder, const std::string& stem,
                              const PartOf& part, const Manifest& tensors,
                              std::span<const ElementRun> runs) {
  CENTROID_ASSIGN(SafetensorsWriter writer,
                  SafetensorsWriter::create(folder / part.file_name(stem), pieces_of(tensors, runs),
                                            part.metadata()));
  for (const ElementRun& run : runs) {
    for (std::uint64_t at = 0; at < run.count; at += kPieceElements) {
      const std::span piece(run.values + at, std::min(kPieceElements, run.count - at));
      CENTROID_TRY(writer.append(std::as_bytes(piece)));
      fault::point("checkpoint.file_torn");
    }
  }
  const auto done = writer.finish();
  if (done.ok()) fault::point("checkpoint.file_written");
  return done;
}

}  // namespace centroid
