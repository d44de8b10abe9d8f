#include "common/checkpoint/striped_writer.h"

#include "common/base/crc32c.h"
#include "common/base/crc32c_join.h"
#include "common/checkpoint/safetensors_header.h"

namespace centroid {

Result<StripedWriter> StripedWriter::create(const std::filesystem::path& path,
                                            const Manifest& manifest,
                                            const std::map<std::string, std::string>& metadata) {
  auto header = build_safetensors_header(manifest, metadata);
  if (!header.ok()) return std::move(header).error().with_context("write " + path.string());
  StripedWriter writer;
  writer.path_ = path;
  CENTROID_ASSIGN(writer.file_, file::create(path));
  CENTROID_TRY(file::write_all(writer.file_, path, as_bytes(*header)));
  std::uint64_t end = header->size();
  writer.stripes_.push_back({0, end, end, crc32c(as_bytes(*header))});
  for (const TensorInfo& tensor : manifest) {
    writer.stripes_.push_back({end, tensor.bytes(), 0, 0});
    end += tensor.bytes();
  }
  return writer;
}

Status StripedWriter::append(std::size_t tensor, Bytes bytes) {
  Stripe& stripe = stripes_.at(tensor + 1);
  if (bytes.size() > stripe.bytes - stripe.written)
    return Error(ErrorCode::kFailedPrecondition,
                 "write " + path_.string() + ": " + std::to_string(bytes.size()) +
                     " bytes more for tensor " + std::to_string(tensor) + ", which has only " +
                     std::to_string(stripe.bytes - stripe.written) + " left");
  CENTROID_TRY(file::write_at(file_, path_, stripe.begin + stripe.written, bytes));
  stripe.crc = crc32c(bytes, stripe.crc);
  stripe.written += bytes.size();
  return {};
}

Result<StripedWriter::Written> StripedWriter::finish() {
  Written result;
  for (const Stripe& stripe : stripes_) {
    if (stripe.written != stripe.bytes)
      return Error(ErrorCode::kFailedPrecondition,
                   "write " + path_.string() + ": " +
                       std::to_string(stripe.bytes - stripe.written) +
                       " bytes of a tensor are missing");
    result.crc32c = crc32c_join(result.crc32c, stripe.crc, stripe.bytes);
    result.bytes += stripe.bytes;
  }
  CENTROID_TRY(file::sync(file_, path_));
  CENTROID_TRY(file::close(std::move(file_), path_));
  return result;
}

}  // namespace centroid
