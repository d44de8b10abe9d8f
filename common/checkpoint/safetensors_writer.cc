#include "common/base/crc32c.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/storage/file.h"

namespace centroid {

struct SafetensorsWriter::Impl {
  ~Impl() {
    if (is_created && !is_finished) (void)file::remove(path);
  }

  Status write(Bytes bytes) {
    CENTROID_TRY(file::write_all(file, path, bytes));
    crc = crc32c(bytes, crc);
    written += bytes.size();
    return {};
  }

  std::filesystem::path path;
  file::Descriptor file;
  std::uint64_t expected = 0;  // bytes of the whole file
  std::uint64_t written = 0;
  std::uint32_t crc = 0;
  bool is_created = false;
  bool is_finished = false;
};

SafetensorsWriter::SafetensorsWriter() : impl_(std::make_unique<Impl>()) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, const Manifest& manifest,
    const std::map<std::string, std::string>& metadata) {
  auto header = build_safetensors_header(manifest, metadata);
  if (!header.ok()) return std::move(header).error().with_context("write " + path.string());
  SafetensorsWriter writer;
  Impl& impl = *writer.impl_;
  impl.path = path;
  impl.expected = header->size();
  for (const TensorInfo& tensor : manifest) impl.expected += tensor.bytes();
  CENTROID_ASSIGN(impl.file, file::create(path));
  impl.is_created = true;
  CENTROID_TRY(impl.write(as_bytes(*header)));
  return writer;
}

Status SafetensorsWriter::append(Bytes bytes) {
  if (bytes.size() > impl_->expected - impl_->written)
    return Error(ErrorCode::kFailedPrecondition,
                 "write " + impl_->path.string() + ": " + std::to_string(bytes.size()) +
                     " bytes more, but the tensors have only " +
                     std::to_string(impl_->expected - impl_->written) + " left");
  return impl_->write(bytes);
}

Result<SafetensorsWriter::Written> SafetensorsWriter::finish() {
  if (impl_->written != impl_->expected)
    return Error(ErrorCode::kFailedPrecondition,
                 "write " + impl_->path.string() + ": " +
                     std::to_string(impl_->expected - impl_->written) +
                     " bytes of the tensors are missing");
  CENTROID_TRY(file::sync(impl_->file, impl_->path));
  CENTROID_TRY(file::close(std::move(impl_->file), impl_->path));
  impl_->is_finished = true;
  Written result;
  result.bytes = impl_->written;
  result.crc32c = impl_->crc;
  return result;
}

}  // namespace centroid
