#pragma once

#include <algorithm>

#include "common/async/task.h"
#include "common/proto/messages.h"
#include "transport/session.h"

namespace centroid::server {

/// Largest payload that workers may send to the server they join: a chunk in any codec, or the
/// manifest.
inline std::uint64_t max_payload_bytes(std::uint64_t chunk_bytes) {
  return std::max(2 * chunk_bytes, proto::kMaxManifestBytes);
}

/// Bytes of memory of a decoded manifest.
std::uint64_t memory_of(const Manifest& manifest);

/// Read the payload of Join and Model, from a peer with a valid token.
/// fails  invalid_argument: too long (checked before memory is allocated), or as decode_manifest
Task<Result<Manifest>> read_manifest(transport::Session& session, std::uint64_t bytes);

}  // namespace centroid::server
