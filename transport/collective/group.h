#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "transport/collective/types.h"
#include "transport/transport.h"

namespace centroid::collective {

class Call;
class Driver;
class Network;

/// An operation in progress. It owns its memory until it has ended; the destructor waits for that.
class Handle {
 public:
  Handle() = default;
  Handle(std::shared_ptr<Driver> driver, std::shared_ptr<Call> call);
  explicit Handle(Error refused);  ///< ended before it began
  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();

  /// Block until it has ended; may be called again.
  Status wait();
  /// Block until it has ended, at most for this time. False: it goes on.
  bool wait_for(std::chrono::milliseconds time);
  /// Whether it has ended. Never blocks.
  bool test() const;
  /// Await the end on the awaiting coroutine's executor; once, and not on a cancelled task.
  Task<Status> ended();

 private:
  std::shared_ptr<Driver> driver_;
  std::shared_ptr<Call> call_;
  Status refused_;
};

/// Some ranks of one generation, in order: the participants of an operation.
///
/// fails     an operation that fails on one rank ends the group: every present and later operation
///           fails on all members with that cause, which names rank and operation. Build the next
///           generation's group and repeat.
/// thread    any number may issue operations; those with the same tag in the same order everywhere
/// lifetime  a cheap handle; the connections close with the last group of the generation, which
///           waits up to `leave_timeout` until the peers have read everything
class Group {
 public:
  std::uint32_t rank() const;
  std::uint32_t world() const;
  std::uint64_t generation() const;
  /// Ranks of the members in the generation, by their rank here: {1, 3}: rank 1 here is rank 3
  /// there.
  std::span<const std::uint32_t> members() const;
  /// By rank: equal texts mean one machine; empty: unknown.
  std::span<const std::string> nodes() const;

  /// The group of these ranks of this one. Every member must make it, and those with the same
  /// members in the same order; nothing is sent.
  ///
  /// fails  invalid_argument: a rank outside this group, or our own is missing. Sorts, removes
  ///        duplicates.
  Result<Group> subgroup(std::vector<std::uint32_t> ranks) const;
  /// The ranks of our colour; `colors` by rank. For grids: once by node, once by index in the node.
  Result<Group> split(std::span<const std::uint32_t> colors) const;

  /// The same members with another ring order of all_reduce, a permutation of the ranks. Every
  /// member passes the same. The order of additions follows the ring, and so do the bits.
  ///
  /// fails  invalid_argument: not a permutation
  Result<Group> with_ring(std::vector<std::uint32_t> order) const;
  std::span<const std::uint32_t> ring() const;  ///< empty: the order of ranks

  /// End every operation of the group on all members.
  void abort(Error cause) const;
  /// The connection with each rank of the generation, for people: "127.0.0.1:40312", "shared memory
  /// of process 71"; empty for ourselves, and before the first operation that needs it. Not from a
  /// coroutine of the driver.
  std::vector<std::string> connections() const;
  /// The generation's rank whose loss or silence ended an operation, if known.
  std::optional<std::uint32_t> culprit() const;
  /// Bytes and frames of all connections of the generation. Not from a coroutine of the driver.
  transport::TrafficCounters traffic() const;

  /// Made by Mesh::join.
  struct Core;
  explicit Group(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  Core& core() const { return *core_; }

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace centroid::collective
