#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/metrics.h"
#include "transport/collective/group.h"
#include "transport/echo.h"
#include "transport/transport.h"

namespace centroid::collective {

struct MeshOptions {
  std::string run_id;
  std::string token;                ///< peers must send it; empty: none required
  std::uint64_t manifest_hash = 0;  ///< peers must have the same model; 0: unknown
  /// Of an operation, unless the call sets another.
  std::chrono::milliseconds timeout{60'000};
  /// How long the last group of a generation waits at most until the peers have read everything;
  /// they answer within milliseconds unless they hang.
  std::chrono::milliseconds leave_timeout{2'000};
  /// How long a waiting caller polls before it sleeps; useful only while ranks <= cores. 0: it
  /// sleeps at once, except for short polls of shared memory while they pay, and yields its core
  /// between them.
  std::chrono::microseconds spin{0};
  /// Payloads of data frames have a CRC-32C, because TCP's own checksum is weak; not between ranks
  /// on one machine, where bytes only move from memory to memory and it costs 8 % of an all-reduce,
  /// and not if both sides disable it. Headers always have one.
  bool payload_checksum = true;
  /// Ranks of one machine exchange through shared memory if that works, else over the transport.
  bool shared_memory = true;
  /// If two ranks are not connected yet, the lower one waits this long for the higher one's call
  /// before it calls itself.
  std::chrono::milliseconds head_start{20};
  std::string thread_name = "collective";
  metrics::Counter connections;  ///< opened with peers, by either side
};

/// The ranks of one generation in the roster.
struct Roster {
  std::string run_id;  ///< of the run, if it was unknown in MeshOptions
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;
  std::vector<transport::Endpoint> endpoints;  ///< by rank; our own is not used
  /// By rank: equal texts for ranks on one machine (`transport::this_node`). Empty: unknown, of one
  /// rank or of all.
  std::vector<std::string> nodes;
};

/// One process's place in the mesh of peers: listens, and builds the group of each generation.
/// Lives over many generations; a rank publishes its endpoint in the roster before it joins.
///
/// thread  any, one call at a time; groups are used from any thread
class Mesh {
 public:
  using TransportFactory = std::function<std::unique_ptr<transport::Transport>(Executor)>;
  /// fails as Transport::listen
  static Result<std::unique_ptr<Mesh>> open(const TransportFactory& make_transport,
                                            const transport::Endpoint& listen,
                                            MeshOptions options = {});
  ~Mesh();

  transport::Endpoint endpoint() const;  ///< with the actual port

  /// The group of all ranks of this roster. Nothing is sent: two ranks connect when the first
  /// operation needs it, and an operation that cannot connect fails (class Dialer). Peers of the
  /// previous generation are not answered any more.
  ///
  /// fails   invalid_argument: a bad roster
  /// later   operations also fail with a peer's refusal: failed_precondition (token, run or model
  ///         refused), aborted (it is in a later generation)
  Result<Group> join(const Roster& roster);

  /// Whether a peer's `endpoint` accepts a connection, in a generation or not. Awaited on any
  /// executor.
  /// fails  as Transport::connect
  Task<Status> reach(transport::Endpoint endpoint, std::chrono::milliseconds time);

  /// The same, and block until it is known; for callers whose executor would end behind it.
  Status reach_now(const transport::Endpoint& endpoint, std::chrono::milliseconds time);

  /// Measure the path to a peer's `endpoint`, while operations continue. Awaited on any executor.
  /// The peer answers as soon as it is in a generation.
  ///
  /// fails   as transport::measure_way; within `time` and 8 s
  Task<Result<transport::EchoReport>> measure(transport::Endpoint endpoint, std::string run_id,
                                              std::chrono::milliseconds time, std::uint32_t bytes);

 private:
  struct Impl;
  explicit Mesh(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// TCP for collectives: congestion control by itself ("auto"), and no stall timeout of its own,
/// because operations have deadlines and peers may compute for minutes between them. `make`: what
/// takes the place of TCP.
Mesh::TransportFactory tcp_factory(transport::TransportOptions options = {},
                                   transport::Factory make = transport::make_tcp);

}  // namespace centroid::collective
