#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/collectives_bench.h"

namespace centroid::bench {

/// Driver and ranks talk over one Unix socket each. A rank asks for `kExchange` until it is set up;
/// then the driver orders and the rank answers.
struct Message {
  enum Kind : std::uint32_t { kHello, kExchange, kVerify, kRun, kReport, kStop };
  std::uint32_t kind = kHello;
  std::uint32_t value = 0;  ///< hello: the rank; exchange: its number
  std::uint64_t bytes = 0, repeats = 0;
  double cpu_seconds = 0;       ///< report: of this rank's process, for `repeats` operations
  std::uint64_t extra_kib = 0;  ///< report: most memory so far, beyond the buffer
  std::uint64_t samples = 0;    ///< report: so many doubles follow
};

/// One rank: connect, make the contestant, serve orders, exit the process.
struct RankOptions {
  std::string socket;  ///< of the driver
  std::uint64_t bytes = 0;
  Place place;  ///< but for `exchange`
};
[[noreturn]] void serve_rank(const RankOptions& options, const Entry& entry);

/// The processes of one contestant.
class Team {
 public:
  struct Sample {
    std::vector<double> seconds;  ///< of rank 0, one per operation
    double cpu_seconds = 0;       ///< of all ranks, per operation
    std::uint64_t extra_kib = 0;  ///< of the rank that has most
  };

  /// `launch` starts the processes, which connect to the socket. Null (and a note on stderr) when
  /// they do not within half a minute.
  static std::unique_ptr<Team> start(const std::string& name, std::uint32_t world,
                                     const std::string& socket,
                                     const std::function<std::vector<pid_t>()>& launch);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const std::string& name() const { return name_; }
  /// Sums of known numbers; exits the process when they are wrong.
  void verify(std::uint64_t bytes);
  Sample run(std::uint64_t bytes, std::uint64_t repeats);

 private:
  explicit Team(std::string name) : name_(std::move(name)) {}
  void order(Message::Kind kind, std::uint64_t bytes, std::uint64_t repeats);
  Sample reports();

  std::string name_;
  std::vector<int> ranks_;  ///< sockets
  std::vector<pid_t> processes_;
};

}  // namespace centroid::bench
