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
  /// HOST:PORT; several separated by commas: servers of which one leads. It is looked for whenever
  /// the connection is lost, and a standby names it (docs/how-to/high-availability.md).
  std::string servers = "127.0.0.1:7070";
  std::string token;
  std::string name = "rows-client";  ///< for the server's log
  /// TLS, as a worker's settings `tls.*` have it (docs/how-to/secure.md): `authority`, and where
  /// the server asks for them `certificate` and `key`. None: no TLS.
  std::optional<transport::TlsOptions> tls;
  /// Of one call, reconnects included; below 10 minutes: the server knows for so long what a client
  /// without a connection has pushed.
  std::chrono::milliseconds timeout{30'000};
  /// A push may be repeated (`push_rest`) until so long after it was begun where a server did not
  /// answer; what is above 10 minutes is 10 minutes.
  std::chrono::milliseconds repeat_within{600'000};
  transport::Factory make_transport = transport::make_tcp;  ///< how it reaches the servers
};

/// One table of a server's sparse rows (docs/how-to/embedding-tables.md). Blocks; reconnects by
/// itself, follows the leader.
///
/// thread   one call at a time, from any thread; several clients for several at once
/// pushes   are applied at most once: one that had no answer is sent again under its number.
///          What any server would refuse for its numbers is refused before anything is sent; one
///          whose rows lie on several servers, or go in several messages, may all the same be
///          applied in part: then the error says where, and `push_rest` repeats the rest alone
/// fails    deadline_exceeded, unavailable (`timeout`; a push may have been applied), aborted
///          (once, when the server has begun anew without pushes of this client, for it has no
///          journal: the message names them, lost() counts them, and nothing was done), and as the
///          server says: not_found (table), invalid_argument (gradient), failed_precondition,
///          resource_exhausted
class RowsClient {
 public:
  /// fails as the server's first answer, or as make_tls
  static Result<std::unique_ptr<RowsClient>> open(RowsClientOptions options, std::string table);
  ~RowsClient();

  std::uint32_t dim() const;
  /// Rows of one message: more rows go in several, each of which is refused or applied as a whole.
  std::uint32_t max_rows() const;
  /// Number of the last push that was answered, from 1; a push of more rows than a message holds
  /// has several.
  std::uint64_t pushed() const;
  /// Answered pushes that are not in the server's rows any more: the last so many before each
  /// `aborted`.
  std::uint64_t lost() const;
  /// out: keys.size() * dim floats; a row that the server does not store has its initial values.
  Status pull(std::span<const std::uint64_t> keys, std::span<float> out);
  /// gradients: keys.size() * dim floats. Gradients of a key that comes twice in one message are
  /// added. `step`: of the training, from 1, for a table with a schedule, which refuses a push
  /// without; others pass over it. A server that knows of no schedules for tables takes no push
  /// with a step.
  Status push(std::span<const std::uint64_t> keys, std::span<const float> gradients,
              std::uint64_t step = 0);
  /// Keys of the last push that were not applied, or of which that is not known; 0 when it did not
  /// fail, or was refused here before anything was sent. A copy of them, and of their gradients, is
  /// kept until the next push.
  std::uint64_t rest() const;
  /// Repeat what of the last push was not applied, each key once however often this is called: a
  /// part without an answer goes to its server again under its number. Nothing where nothing is
  /// left.
  /// fails  as push; failed_precondition: it may go on until `repeat_within` after the push, and a
  ///        server that has not answered may have forgotten; nothing is repeated, `rest` stays
  Status push_rest();

 private:
  struct Impl;
  explicit RowsClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::client
