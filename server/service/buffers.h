#pragma once

#include "common/base/result.h"
#include "common/tensor/tensor.h"
#include "server/config/server_config.h"

namespace centroid::server {

/// Whether the buffers of a model (common/tensor/tensor.h), if it has any, come to the right values
/// with these settings. Codecs make no difference: see codec_of in common/codec/chunk_codec.h.
/// fails  failed_precondition: they do not (names the first one, the setting, and what to do)
Status check_buffers(const ServerConfig& config, const Manifest& manifest);

}  // namespace centroid::server
