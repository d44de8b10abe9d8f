#include <unordered_map>

#include "common/base/crc32c.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/storage/file.h"
#include "common/tensor/buffer.h"
#include "common/tensor/text.h"

namespace centroid {

struct SafetensorsReader::Impl {
  std::filesystem::path path;
  file::Descriptor file;
  std::uint64_t data_begin = 0;
  SafetensorsHeader header;
  std::unordered_map<std::string, std::size_t> index;
};

SafetensorsReader::SafetensorsReader() : impl_(std::make_unique<Impl>()) {}
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader::~SafetensorsReader() = default;

Result<SafetensorsReader> SafetensorsReader::open(const std::filesystem::path& path) {
  SafetensorsReader reader;
  Impl& impl = *reader.impl_;
  impl.path = path;
  CENTROID_ASSIGN(impl.file, file::open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t file_bytes, file::size_of(impl.file, path));

  std::uint64_t length = 0;
  CENTROID_TRY(file::read_at(impl.file, path, 0, std::as_writable_bytes(std::span(&length, 1))));
  if (auto fits = check_safetensors_header_length(length, file_bytes); !fits.ok())
    return std::move(fits).error().with_context(path.string());
  impl.data_begin = sizeof(length) + length;

  std::string json(static_cast<std::size_t>(length), '\0');
  CENTROID_TRY(file::read_at(impl.file, path, sizeof(length),
                             std::as_writable_bytes(std::span(json.data(), json.size()))));
  auto header = parse_safetensors_header(json, file_bytes - impl.data_begin);
  if (!header.ok()) return std::move(header).error().with_context(path.string());
  impl.header = std::move(header).value();
  for (std::size_t i = 0; i < impl.header.manifest.size(); ++i)
    impl.index.emplace(impl.header.manifest[i].name, i);
  return reader;
}

const Manifest& SafetensorsReader::manifest() const { return impl_->header.manifest; }
const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return impl_->header.metadata;
}

Status SafetensorsReader::read(const std::string& name, std::uint64_t offset_bytes,
                               MutableBytes into) const {
  const auto found = impl_->index.find(name);
  if (found == impl_->index.end())
    return Error(ErrorCode::kNotFound,
                 impl_->path.string() + ": contains no tensor \"" + printable(name) + "\"");
  const std::uint64_t size = impl_->header.manifest[found->second].bytes();
  if (offset_bytes > size || into.size() > size - offset_bytes)
    return Error(ErrorCode::kInvalidArgument,
                 impl_->path.string() + ": tensor \"" + printable(name) +
                     "\": " + std::to_string(into.size()) + " bytes from " +
                     std::to_string(offset_bytes) + " lie outside its " + std::to_string(size));
  return file::read_at(impl_->file, impl_->path,
                       impl_->data_begin + impl_->header.offsets[found->second] + offset_bytes,
                       into);
}

Status SafetensorsReader::read_f32(const std::string& name, std::span<float> into) const {
  const auto found = impl_->index.find(name);
  if (found == impl_->index.end()) return read(name, 0, {});  // says that it is not there
  const TensorInfo& tensor = impl_->header.manifest[found->second];
  const bool is_half = tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
  if (tensor.elements() != into.size() || (!is_half && tensor.dtype != DType::kF32))
    return Error(ErrorCode::kInvalidArgument,
                 impl_->path.string() + ": tensor " + printable(name, 200) + " is " +
                     std::string(to_string(tensor.dtype)) + " with " +
                     std::to_string(tensor.elements()) +
                     " elements, expected f32, bf16 or f16 with " + std::to_string(into.size()));
  if (!is_half) return read(name, 0, std::as_writable_bytes(into));
  std::vector<std::uint16_t> halves(into.size());
  CENTROID_TRY(read(name, 0, std::as_writable_bytes(std::span(halves))));
  const bool is_bf16 = tensor.dtype == DType::kBF16;
  for (std::size_t i = 0; i < halves.size(); ++i)
    into[i] = is_bf16 ? f32_from_bf16(halves[i]) : f32_from_f16(halves[i]);
  return {};
}

Result<std::uint32_t> file_crc32c(const std::filesystem::path& path) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t size, file::size_of(file, path));
  const Buffer buffer(kPiece);
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < size; at += kPiece) {
    const MutableBytes piece =
        buffer.bytes().first(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, size - at)));
    CENTROID_TRY(file::read_at(file, path, at, piece));
    crc = crc32c(piece, crc);
  }
  return crc;
}

}  // namespace centroid
