#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "transport/collective/group.h"

namespace centroid::worker {

/// The groups of one generation in which a worker adds.
struct PeerGroups {
  collective::Group all;
  /// When compressed gradients are added in the nodes first: the ranks of our node, of whom the
  /// first leads, and if we are that one the leaders of all nodes.
  std::optional<collective::Group> node{}, leaders{};

  bool is_leader() const { return !node || leaders; }
  /// Those who exchange compressed numbers; only if we lead.
  const collective::Group& contributors() const { return leaders ? *leaders : all; }
  void abort(const Error& cause) const {
    all.abort(cause);
    if (node) node->abort(cause);
    if (leaders) leaders->abort(cause);
  }
};

/// Split by node: a rank whose node is not known is a node of its own.
inline Result<PeerGroups> split_by_node(collective::Group all) {
  const auto nodes = all.nodes();
  std::vector<std::uint32_t> leader_of, leaders;
  for (std::uint32_t rank = 0; rank < nodes.size(); ++rank) {
    const auto same = nodes[rank].empty()
                          ? nodes.begin() + rank
                          : std::find(nodes.begin(), nodes.begin() + rank, nodes[rank]);
    leader_of.push_back(static_cast<std::uint32_t>(same - nodes.begin()));
    if (leader_of.back() == rank) leaders.push_back(rank);
  }
  const std::uint32_t rank = all.rank();
  CENTROID_ASSIGN(auto node, all.split(leader_of));
  PeerGroups groups{std::move(all), std::move(node)};
  if (leader_of[rank] != rank) return groups;
  CENTROID_ASSIGN(auto first, groups.all.subgroup(std::move(leaders)));
  groups.leaders = std::move(first);
  return groups;
}

}  // namespace centroid::worker
