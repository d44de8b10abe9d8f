#pragma once

#include <algorithm>

#include "common/async/task.h"
#include "common/proto/messages.h"
#include "transport/session.h"

namespace centroid::server {

/// Of a frame that workers may send to the server they join: a chunk as any codec writes it, or the
/// manifest.
inline std::uint64_t max_payload_bytes(std::uint64_t chunk_bytes) {
  return std::max(2 * chunk_bytes, proto::kMaxManifestBytes);
}

/// The payload of Join and Model, of a peer whose token was good.
/// fails invalid_argument: too long (before memory is taken), or as decode_manifest
Task<Result<Manifest>> read_manifest(transport::Session& session, std::uint64_t bytes);

}  // namespace centroid::server
