#pragma once

#include "common/base/bytes.h"

namespace centroid::transport {

/// Whether a connection whose peer sends this speaks TLS: a handshake record, or an alert.
bool is_tls(Bytes bytes);
inline constexpr const char* kNoTls =
    ": TLS, which this side does not speak: set it on both sides, or on none";

}  // namespace centroid::transport
