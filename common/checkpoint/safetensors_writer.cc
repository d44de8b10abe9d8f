#include "common/base/crc32c.h"
#include "common/base/crc32c_join.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/storage/file.h"

namespace centroid {

struct SafetensorsWriter::Impl {
  /// A part of the data that is written from its beginning to its end.
  struct Stripe {
    std::uint64_t begin = 0, bytes = 0, written = 0;
    std::uint32_t crc = 0;
  };
  ~Impl() {
    if (is_created && !is_finished) (void)file::remove(path);
  }

  std::filesystem::path path;
  file::Descriptor file;
  FileRecord header;
  std::vector<Stripe> stripes;  ///< all tensors, or one each
  bool is_created = false;
  bool is_finished = false;
};

SafetensorsWriter::SafetensorsWriter() : impl_(std::make_unique<Impl>()) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create_striped(
    const std::filesystem::path& path, const Manifest& manifest,
    const std::map<std::string, std::string>& metadata) {
  auto header = build_safetensors_header(manifest, metadata);
  if (!header.ok()) return std::move(header).error().with_context("write " + path.string());
  SafetensorsWriter writer;
  Impl& impl = *writer.impl_;
  impl.path = path;
  impl.header = {header->size(), crc32c(as_bytes(*header))};
  std::uint64_t end = header->size();
  for (const TensorInfo& tensor : manifest) {
    impl.stripes.push_back({end, tensor.bytes(), 0, 0});
    end += tensor.bytes();
  }
  CENTROID_ASSIGN(impl.file, file::create(path));
  impl.is_created = true;
  CENTROID_TRY(file::write_at(impl.file, path, 0, as_bytes(*header)));
  return writer;
}

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, const Manifest& manifest,
    const std::map<std::string, std::string>& metadata) {
  CENTROID_ASSIGN(SafetensorsWriter writer, create_striped(path, manifest, metadata));
  Impl::Stripe all{writer.impl_->header.bytes, 0, 0, 0};
  for (const Impl::Stripe& tensor : writer.impl_->stripes) all.bytes += tensor.bytes;
  writer.impl_->stripes.assign(1, all);
  return writer;
}

Status SafetensorsWriter::append(std::size_t tensor, Bytes bytes) {
  Impl::Stripe& stripe = impl_->stripes.at(tensor);
  if (bytes.size() > stripe.bytes - stripe.written)
    return Error(ErrorCode::kFailedPrecondition,
                 "write " + impl_->path.string() + ": " + std::to_string(bytes.size()) +
                     " bytes more, but the tensors have only " +
                     std::to_string(stripe.bytes - stripe.written) + " left");
  CENTROID_TRY(file::write_at(impl_->file, impl_->path, stripe.begin + stripe.written, bytes));
  stripe.crc = crc32c(bytes, stripe.crc);
  stripe.written += bytes.size();
  return {};
}

Result<FileRecord> SafetensorsWriter::finish() {
  FileRecord record = impl_->header;
  for (const Impl::Stripe& stripe : impl_->stripes) {
    if (stripe.written != stripe.bytes)
      return Error(ErrorCode::kFailedPrecondition,
                   "write " + impl_->path.string() + ": " +
                       std::to_string(stripe.bytes - stripe.written) +
                       " bytes of the tensors are missing");
    record.crc32c = crc32c_join(record.crc32c, stripe.crc, stripe.bytes);
    record.bytes += stripe.bytes;
  }
  CENTROID_TRY(file::sync(impl_->file, impl_->path));
  CENTROID_TRY(file::close(std::move(impl_->file), impl_->path));
  impl_->is_finished = true;
  return record;
}

}  // namespace centroid
