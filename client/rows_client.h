#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/result.h"
#include "transport/tls/tls.h"
#include "transport/transport.h"

namespace centroid::client {

struct RowsClientOptions {
  /// HOST:PORT; several, separated by commas: servers of which one leads. Whenever the connection
  /// is lost the client searches the leader; standbys name it (docs/how-to/high-availability.md).
  std::string servers = "127.0.0.1:7070";
  std::string token;
  std::string name = "rows-client";  ///< for the server's log
  /// TLS, as in a worker's settings `tls.*` (docs/how-to/secure.md): `authority`, and if the server
  /// requires them `certificate` and `key`. None: no TLS.
  std::optional<transport::TlsOptions> tls;
  /// Of one call, reconnects included; below 10 minutes: so long the server remembers the pushes of
  /// a client without a connection.
  std::chrono::milliseconds timeout{30'000};
  /// A push may be repeated (`push_rest`) for this long after it began, if a server did not answer;
  /// at most 10 minutes.
  std::chrono::milliseconds repeat_within{600'000};
  transport::Factory make_transport = transport::make_tcp;  ///< how it reaches the servers
};

/// One table of a server's sparse rows (docs/how-to/embedding-tables.md). Blocks; reconnects by
/// itself, follows the leader.
///
/// thread   one call at a time, from any thread; several clients for several at once
/// pushes   are applied at most once: one without an answer is sent again under its number. Numbers
///          that a server would refuse are refused before anything is sent. A push to several
///          servers, or in several messages, can still be applied in part: then the error names the
///          parts, and `push_rest` repeats only the rest
/// fails    deadline_exceeded, unavailable (`timeout`; a push may have been applied), aborted
///          (once, if the server restarted without pushes of this client, because it has no
///          journal: the message names them, lost() counts them, and the call changed nothing), and
///          errors of the server: not_found (table), invalid_argument (gradient),
///          failed_precondition, resource_exhausted
class RowsClient {
 public:
  /// fails as the server's first answer, or as make_tls
  static Result<std::unique_ptr<RowsClient>> open(RowsClientOptions options, std::string table);
  ~RowsClient();

  std::uint32_t dim() const;
  /// Rows of one message. More rows go in several messages, each of which is refused or applied
  /// completely.
  std::uint32_t max_rows() const;
  /// Number of the last answered push, from 1; a push of more rows than one message has several.
  std::uint64_t pushed() const;
  /// Answered pushes that are missing in the server's rows: the last ones before each `aborted`.
  std::uint64_t lost() const;
  /// out: keys.size() * dim floats; a row that the server does not store has its initial values.
  Status pull(std::span<const std::uint64_t> keys, std::span<float> out);
  /// gradients: keys.size() * dim floats. Gradients of a duplicate key in one message are added.
  /// `step`: of the training, from 1, for a table with a schedule, which refuses a push without;
  /// others ignore it. A server without schedules for tables refuses a push with a step.
  Status push(std::span<const std::uint64_t> keys, std::span<const float> gradients,
              std::uint64_t step = 0);
  /// Keys of the last push that were not, or not certainly, applied; 0 if it succeeded, or was
  /// refused here before anything was sent. A copy of them and of their gradients is retained until
  /// the next push.
  std::uint64_t rest() const;
  /// Repeat the part of the last push that was not applied, each key once however often this is
  /// called: a part without an answer goes to its server again under its number. No effect without
  /// a rest.
  /// fails  as push; failed_precondition: it could last beyond `repeat_within` after the push, when
  ///        a server that has not answered may have discarded its record; nothing is repeated,
  ///        `rest` stays
  Status push_rest();

 private:
  struct Impl;
  explicit RowsClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::client
