#pragma once

#include <map>
#include <mutex>
#include <string>

#include "transport/collective/group.h"
#include "transport/collective/network.h"

namespace centroid::collective {

/// Shared by the groups of one generation; closes the network with the last of them.
struct Generation {
  explicit Generation(std::shared_ptr<Network> peers) : network(std::move(peers)) {}
  ~Generation() { network->close(); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  const std::shared_ptr<Network> network;
  std::shared_ptr<Driver> driver;  ///< of the network, for handles
  std::vector<std::string> nodes;  ///< by rank of the generation
  const std::shared_ptr<ScratchPool> scratch = std::make_shared<ScratchPool>();
  std::mutex mutex;
  std::map<std::vector<std::uint32_t>, std::uint64_t> made;  ///< groups so far, by members
};

struct Group::Core {
  std::shared_ptr<Generation> generation;
  std::vector<std::uint32_t> members;
  std::vector<std::string> nodes;   ///< by rank of the group; empty: unknown
  std::vector<std::uint32_t> ring;  ///< order of the ranks in rings; empty: in order
  std::uint32_t rank = 0;
  std::uint64_t id = 0;
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> sequences;  ///< next, by tag

  std::uint64_t next_sequence(std::uint64_t tag) {
    const std::lock_guard lock(mutex);
    return sequences[tag]++;
  }
};

/// The group of these members (sorted ranks of the generation); `rank` is our index among them.
Group make_group(std::shared_ptr<Generation> generation, std::vector<std::uint32_t> members,
                 std::uint32_t rank);

}  // namespace centroid::collective
