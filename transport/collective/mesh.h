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
  std::string token;                ///< peers must know it; empty: none wanted
  std::uint64_t manifest_hash = 0;  ///< peers must work on the same model; 0: not said
  /// Of an operation, unless the call says otherwise.
  std::chrono::milliseconds timeout{60'000};
  /// How long the last group of a generation waits at most until the peers have read everything;
  /// they answer within milliseconds unless they hang.
  std::chrono::milliseconds leave_timeout{2'000};
  /// How long a waiting caller polls before it sleeps; helps only while ranks <= cores. 0: asleep
  /// at once, but for short looks into shared memory as long as they pay, between which it gives
  /// its core to whoever can run.
  std::chrono::microseconds spin{0};
  /// Payloads of data frames carry a CRC-32C, because TCP's own checksum is weak; not between ranks
  /// on one machine, where bytes only go from memory to memory and it costs 8 % of an all-reduce,
  /// and not when both sides have it off. Headers always carry one.
  bool payload_checksum = true;
  /// Ranks of one machine exchange through memory they share, where that works, else over the
  /// transport.
  bool shared_memory = true;
  /// When two ranks are not connected yet, the lower one waits so long for the higher one's call
  /// before it calls itself.
  std::chrono::milliseconds head_start{20};
  std::string thread_name = "collective";
  metrics::Counter connections;  ///< opened with peers, by either side
};

/// The ranks of one generation as the roster gives them.
struct Roster {
  std::string run_id;  ///< of the run, when it was not known to MeshOptions
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;
  std::vector<transport::Endpoint> endpoints;  ///< by rank; our own is not used
  /// By rank: a text that is equal for ranks on one machine (`transport::this_node`). Empty:
  /// unknown, of one rank or of all.
  std::vector<std::string> nodes;
};

/// One process's place in the mesh of peers: listens, and builds the group of each generation.
/// Lives over many generations; a rank gives its endpoint to the roster before it joins.
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

  transport::Endpoint endpoint() const;  ///< with the real port

  /// The group of all ranks of this roster. Nothing is sent: two ranks connect when the first
  /// operation needs it, and an operation that cannot says so (class Dialer). Peers of the
  /// generation before are not answered any more.
  ///
  /// fails   invalid_argument: a bad roster
  /// later   operations also fail with what a peer says when it is called: failed_precondition
  ///         (token, run or model refused), aborted (it is in a later generation)
  Result<Group> join(const Roster& roster);

  /// Measure the way to a peer's `endpoint`, while operations go on. Awaited on any executor. The
  /// peer answers as soon as it is in a generation.
  ///
  /// fails   as transport::measure_way; within `time` and 8 s
  Task<Result<transport::EchoReport>> measure(transport::Endpoint endpoint, std::string run_id,
                                              std::chrono::milliseconds time, std::uint32_t bytes);

 private:
  struct Impl;
  explicit Mesh(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// TCP as collectives want it: congestion control by itself ("auto"), and no stall timeout of its
/// own, because operations have deadlines and peers may compute for minutes between them.
Mesh::TransportFactory tcp_factory(transport::TransportOptions options = {});
Mesh::TransportFactory inprocess_factory(std::shared_ptr<transport::InProcessHub> hub);

}  // namespace centroid::collective
