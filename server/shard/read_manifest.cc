#include "server/shard/read_manifest.h"

#include "common/tensor/buffer.h"

namespace centroid::server {

std::uint64_t memory_of(const Manifest& manifest) {
  std::uint64_t bytes = manifest.capacity() * sizeof(TensorInfo);
  for (const TensorInfo& tensor : manifest)
    bytes += tensor.name.capacity() + tensor.shape.capacity() * sizeof(std::uint64_t);
  return bytes;
}

Task<Result<Manifest>> read_manifest(transport::Session& session, std::uint64_t bytes) {
  if (bytes > proto::kMaxManifestBytes)
    co_return Error(ErrorCode::kInvalidArgument,
                    "manifest of " + std::to_string(bytes) + " bytes, at most " +
                        std::to_string(proto::kMaxManifestBytes) + " (docs/reference/wire.md)");
  if (bytes == 0)
    co_return Error(ErrorCode::kInvalidArgument,
                    "the message has no manifest: its payload is empty (docs/reference/wire.md)");
  Buffer buffer(bytes);
  CENTROID_CO_TRY(co_await session.read_payload(buffer.bytes().first(bytes)));
  co_return proto::decode_manifest(buffer.bytes().first(bytes));
}

}  // namespace centroid::server
