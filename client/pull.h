#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/buffer.h"
#include "common/tensor/tensor.h"
#include "transport/tls/tls.h"

namespace centroid::client {

struct PullOptions {
  /// HOST:PORT; several, separated by commas, of which one leads
  /// (docs/how-to/high-availability.md).
  std::string servers = "127.0.0.1:7070";
  std::string token;            ///< the workers'
  std::string name = "reader";  ///< for the server's log and /v1/waits
  std::optional<transport::TlsOptions> tls;
  std::chrono::milliseconds timeout{60'000};          ///< of the complete call
  std::uint64_t max_bytes = std::uint64_t{16} << 30;  ///< of memory for an answer
};

/// Tensors of one committed version.
struct PulledTensors {
  Version version;
  Manifest manifest;                  ///< in the requested order, or the model's
  std::vector<std::uint64_t> begins;  ///< by tensor, in `values`
  Buffer values;                      ///< float32, one tensor after another

  std::span<const float> of(std::size_t tensor) const {
    return values.as<float>().subspan(begins[tensor], manifest[tensor].elements());
  }
};

/// The cluster's present tensors, for a program that is no worker; without names: all. Waits for
/// the first values, for its turn among readers, and for a leader, within the timeout.
///
/// thread  any; blocks
/// fails   deadline_exceeded, unavailable (`timeout`), not_found (no such tensor), invalid_argument
///         (named twice), resource_exhausted (too many bytes for the server, or for `max_bytes`),
///         failed_precondition (token), as make_tls
Result<PulledTensors> pull_tensors(const PullOptions& options,
                                   const std::vector<std::string>& names);

}  // namespace centroid::client
