#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/group_rendezvous.h"
#include "transport/collective/group.h"
#include "transport/collective/mesh.h"

namespace centroid::client {

/// A group of processes for collectives, without a server. Two steps, so that any program can carry
/// the addresses: `open`, give `address` to all, `connect` with those of all. Or `join`, where rank
/// 0 collects them.
///
/// thread  any; operations on `group`
class PeerGroup {
 public:
  /// Listens.
  /// fails  invalid_argument (rank, world, host)
  static Result<std::unique_ptr<PeerGroup>> open(PeerOptions options);
  /// Rank 0 listens at `rendezvous`, the others call it until it answers. Not connected with
  /// PeerOptions::may_be_newcomer: a job has begun there, `running`.
  ///
  /// fails  deadline_exceeded: names the ranks that did not come; failed_precondition: another
  ///        world or token, or two processes with the same rank; already_exists: port in use
  static Result<std::unique_ptr<PeerGroup>> join(PeerOptions options,
                                                 const std::string& rendezvous);

  const std::string& address() const { return address_; }
  /// `addresses` by rank. Connects every pair (up to kAllPairs ranks), so that each notices the
  /// loss of any other at once.
  ///
  /// fails  as an operation of collectives.h
  Status connect(const std::vector<std::string>& addresses);
  bool is_connected() const { return group_.has_value(); }

  /// Of these ranks, ours among them; every member makes it.
  Result<std::unique_ptr<PeerGroup>> subgroup(std::vector<std::uint32_t> ranks) const;

  /// Be a rank of a later group, in place of the one there is: of those that are left of it, and of
  /// others. Each of its ranks calls it with the same addresses by rank, its own among them, the
  /// same job and the same later generation. Subgroups of the earlier group do not change.
  ///
  /// fails  invalid_argument: not such addresses; as an operation of collectives.h
  Status regroup(const std::string& job, const std::vector<std::string>& addresses,
                 std::uint64_t generation);

  /// The place of the leader (client::Meeting) of the job that `join` found in place of a group.
  const transport::Endpoint& running() const { return running_; }
  const std::string& job() const { return roster_.run_id; }  ///< of the group
  const collective::Group& group() const { return *group_; }
  const PeerOptions& options() const { return options_; }  ///< `host`: of this rank's address

 private:
  Status meet(collective::Roster roster);
  Status probe() const;
  static constexpr std::uint32_t kAllPairs = 64;

  PeerOptions options_;
  std::string address_;
  std::shared_ptr<collective::Mesh> mesh_;
  collective::Roster roster_;  ///< of the group
  std::optional<collective::Group> group_;
  transport::Endpoint running_;
};

}  // namespace centroid::client
