#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "common/base/result.h"
#include "transport/transport.h"

namespace centroid::client {

struct MeetingOptions {
  std::uint32_t rank = 0;  ///< of this process when the job began
  std::string job;         ///< the same on all ranks, and not on those of another job
  std::string token;
  std::chrono::milliseconds patience{60'000};  ///< for a rank that does not come
};

/// The ranks that are left, in order, and the number of their group.
struct Survivors {
  std::vector<std::uint32_t> ranks;
  std::uint64_t generation = 0;
};

/// Where the ranks of a job find each other after a loss, without a server. Each one listens at a
/// place that all know before.
///
/// leader    the lowest rank that is left: the others call the lower ones in order, until one
///           answers. It waits for all whose process lives
/// lost      ranks whose system refuses or ends the connection: the process is gone
/// missing   ranks that are silent, or whose machine is: left out when the patience is over
/// majority  the survivors must be more than the missing ones, which may have met elsewhere. So a
///           divided network never makes two jobs of one
/// thread    one at a time; between meetings none, the system queues who calls
class Meeting {
 public:
  /// `host`: of this machine, where the others reach it.
  ///
  /// fails  as Transport::listen
  static Result<std::unique_ptr<Meeting>> open(const std::string& host, MeetingOptions options);
  ~Meeting();

  const transport::Endpoint& place() const { return place_; }

  /// Block until the survivors are known; the same on all of them. `places`: of the ranks of the
  /// last group, ours among them; `generation`: its number.
  ///
  /// fails  unavailable: as many ranks are missing as are here; aborted: the others went on without
  ///        this rank
  Result<Survivors> meet(const std::map<std::uint32_t, transport::Endpoint>& places,
                         std::uint64_t generation);

 private:
  class Leader;
  class Caller;
  explicit Meeting(MeetingOptions options) : options_(std::move(options)) {}

  const MeetingOptions options_;
  transport::Endpoint place_;
  boost::asio::io_context context_{1};
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Listener> listener_;
};

}  // namespace centroid::client
