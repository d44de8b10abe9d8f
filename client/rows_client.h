#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"
#include "transport/transport.h"

namespace centroid::client {

struct RowsClientOptions {
  transport::Endpoint server;
  std::string token;
  std::string name = "rows-client";           ///< for the server's log
  std::chrono::milliseconds timeout{30'000};  ///< of one call, reconnects included
};

/// One table of a server's sparse rows (docs/rows.md). Blocks; reconnects by itself.
///
/// thread   one call at a time, from any thread; several clients for several at once
/// pushes   are applied at most once: one that had no answer is sent again under its number
/// fails    deadline_exceeded (`timeout`; a push may have been applied), aborted (the server began
///          anew while a push had no answer; it may be in the rows that were saved), and as the
///          server says: not_found (table), invalid_argument (gradient), failed_precondition
class RowsClient {
 public:
  static Result<std::unique_ptr<RowsClient>> open(RowsClientOptions options, std::string table);
  ~RowsClient();

  std::uint32_t dim() const;
  /// Rows of one message: more rows go in several, each of which is refused or applied as a whole.
  std::uint32_t max_rows() const;
  /// out: keys.size() * dim floats; a row that the server does not store has its initial values.
  Status pull(std::span<const std::uint64_t> keys, std::span<float> out);
  /// gradients: keys.size() * dim floats. Gradients of a key that comes twice in one message are
  /// added.
  Status push(std::span<const std::uint64_t> keys, std::span<const float> gradients);

 private:
  struct Impl;
  explicit RowsClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::client
