#pragma once

#include <cstddef>
#include <string>

#include "common/base/result.h"

namespace centroid::worker {

/// Read a whole file and decompress gzip.
///
/// fails  not_found: no such file (the message ends with `how_to_get`); data_loss: unreadable,
///        damaged or truncated gzip, or more than `limit_bytes` of content
Result<std::string> read_file(const std::string& path, std::size_t limit_bytes,
                              const std::string& how_to_get);

}  // namespace centroid::worker
