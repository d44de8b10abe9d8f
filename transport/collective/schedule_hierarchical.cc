#include <map>

#include "transport/collective/schedule_steps.h"

namespace centroid::collective {

namespace {

/// A rank sends at most this many segments more to the next node than it has received from the
/// previous one: so a slow node stores few segments that it cannot add yet.
constexpr std::int32_t kLead = 4;

// Steps of the three phases; a pair of ranks is in one node or in two.
constexpr std::uint32_t kGatherStep = 1 << 16;

/// Ranks by node, nodes in the order of their first ranks.
struct Grid {
  explicit Grid(std::span<const std::string> names) {
    std::map<std::string, std::size_t> known;
    for (std::uint32_t rank = 0; rank < names.size(); ++rank) {
      auto [at, is_new] = known.try_emplace(names[rank], nodes.size());
      if (is_new || names[rank].empty()) {
        at->second = nodes.size();
        nodes.emplace_back();
      }
      nodes[at->second].push_back(rank);
    }
    lanes = nodes.empty() ? 0 : nodes.front().size();
    for (const auto& node : nodes) lanes = std::min(lanes, node.size());
  }

  std::vector<std::vector<std::uint32_t>> nodes;
  std::size_t lanes = 0;  ///< ranks of each node that take part in the sums between nodes
};

/// Makes the schedule of one rank. The buffer is cut into one shard per lane, each shard into one
/// part per node, each part into segments: the same pieces in all phases, so that a piece continues
/// with the next phase as soon as it has arrived.
class Hierarchy {
 public:
  Hierarchy(const Shape& shape, std::uint64_t count, const Grid& grid)
      : shape_(shape),
        grid_(grid),
        shards_(even_parts(count, static_cast<std::uint32_t>(grid.lanes))),
        world_(static_cast<std::uint32_t>(grid.nodes.size())) {
    for (std::uint32_t node = 0; node < world_; ++node) {
      const auto& ranks = grid.nodes[node];
      const auto at = std::find(ranks.begin(), ranks.end(), shape.rank);
      if (at == ranks.end()) continue;
      node_ = node;
      place_ = static_cast<std::uint32_t>(at - ranks.begin());
      local_ = static_cast<std::uint32_t>(ranks.size());
    }
  }

  Schedule make() {
    if (local_ > 1) {
      reduce_in_node();
    } else if (shape_.weighs) {
      weigh(pieces(0, part_before(1)));
    }
    if (is_owner(place_)) reduce_across_nodes();
    if (local_ > 1) gather_in_node();
    return std::move(schedule_);
  }

 private:
  struct Piece {
    std::uint32_t part = 0;
    std::uint32_t segment = 0;
    Region region;  ///< its place is to be set
  };
  using Pieces = std::vector<Piece>;

  bool is_owner(std::uint32_t place) const { return place < grid_.lanes; }
  std::uint32_t part_before(std::uint32_t back) const {
    return (node_ + 2 * world_ - back) % world_;
  }
  std::uint32_t neighbour(std::uint32_t forward) const {
    return grid_.nodes[node_][(place_ + forward) % local_];
  }
  static Region in(Region region, Place place) {
    region.place = place;
    return region;
  }

  Pieces pieces(std::uint32_t lane, std::uint32_t part) const {
    const Range shard = shards_[lane];
    Range range = part_of(shard.size(), world_, part);
    range = Range(shard.begin + range.begin, shard.begin + range.end);
    const Segments segments(shape_, range);
    Pieces out;
    for (std::uint32_t k = 0; k < segments.count(); ++k)
      out.push_back({part, k, segments.at(k, Place::kOutput)});
    return out;
  }

  /// A shard's pieces in the order of the ring between nodes: alternately of the part it sends
  /// first and the one it receives first, then the others.
  Pieces shard_in_ring_order(std::uint32_t lane) const {
    const Pieces first = pieces(lane, part_before(1)), second = pieces(lane, part_before(2));
    Pieces out;
    for (std::size_t k = 0; k < std::max(first.size(), second.size()); ++k) {
      if (k < first.size()) out.push_back(first[k]);
      if (k < second.size()) out.push_back(second[k]);
    }
    for (std::uint32_t back = 3; back <= world_; ++back) {
      const Pieces next = pieces(lane, part_before(back));
      out.insert(out.end(), next.begin(), next.end());
    }
    return out;
  }

  void weigh(const Pieces& first) {
    for (const Piece& piece : first) {
      CopyStep copy;
      copy.from = in(piece.region, Place::kInput);
      copy.to = in(piece.region, Place::kOutput);
      copy.weighs = true;
      schedule_.before.push_back(copy);
    }
  }

  std::int32_t add(ReceiveStep receive) {
    schedule_.receives.push_back(receive);
    return last_receive(schedule_);
  }

  /// Position of this node's sum for a piece of our shard.
  std::int32_t& sum_of(const Piece& piece) { return sums_[{piece.part, piece.segment}]; }

  static ReceiveStep receive_of(std::uint32_t peer, std::uint32_t step, std::uint32_t segment,
                                const Region& to) {
    ReceiveStep receive;
    receive.peer = peer;
    receive.step = step;
    receive.segment = segment;
    receive.to = to;
    return receive;
  }

  /// The lanes' shards circle the node, to the right, an earlier one every turn: `first` defines
  /// what is sent first and after which receive; `take` adds received pieces to the schedule.
  template <class Order, class First, class Take>
  void go_round(std::uint32_t first_step, std::uint32_t first_shard, Order pieces_of, First first,
                Take take) {
    const std::uint32_t right = neighbour(1), left = neighbour(local_ - 1);
    std::vector<std::int32_t> previous;
    for (std::uint32_t turn = 0; turn + 1 < local_; ++turn) {
      const std::uint32_t step = first_step + turn;
      const std::uint32_t out = (first_shard + local_ - turn) % local_;
      if (is_owner(out)) {
        const Pieces all = pieces_of(out);
        for (std::uint32_t k = 0; k < all.size(); ++k) {
          auto send = std::pair(all[k].region, turn == 0 ? kAtOnce : previous[k]);
          if (turn == 0) send = first(all[k]);
          schedule_.sends.push_back({right, step, k, send.first, send.second});
        }
      }
      previous.clear();
      const std::uint32_t back = (out + local_ - 1) % local_;
      if (!is_owner(back)) continue;
      const Pieces all = pieces_of(back);
      for (std::uint32_t k = 0; k < all.size(); ++k)
        previous.push_back(take(turn, all[k], receive_of(left, step, k, all[k].region)));
    }
  }

  void reduce_in_node() {
    const auto first = [&](const Piece& piece) {
      if (shape_.weighs) weigh({piece});
      const Place from = shape_.weighs ? Place::kOutput : Place::kInput;
      return std::pair(in(piece.region, from), kAtOnce);
    };
    const auto take = [&](std::uint32_t turn, const Piece& piece, ReceiveStep receive) {
      receive.own = in(piece.region, Place::kInput);
      receive.combines = true;
      const std::int32_t made = add(receive);
      if (turn + 2 == local_) sum_of(piece) = made;
      return made;
    };
    go_round(
        0, (place_ + local_ - 1) % local_,
        [&](std::uint32_t lane) { return shard_in_ring_order(lane); }, first, take);
  }

  void reduce_across_nodes() {
    const std::uint32_t right = grid_.nodes[(node_ + 1) % world_][place_];
    const std::uint32_t left = grid_.nodes[(node_ + world_ - 1) % world_][place_];
    const bool is_alone = local_ == 1;
    std::vector<std::int32_t> previous;
    for (std::uint32_t step = 0; step + 1 < world_; ++step) {
      const std::size_t first_send = schedule_.sends.size();
      const bool sends_own = step == 0 && is_alone && !shape_.weighs;
      for (const Piece& piece : pieces(place_, part_before(step + 1))) {
        const std::int32_t ready = is_alone ? kAtOnce : sum_of(piece);
        const Region from = in(piece.region, sends_own ? Place::kInput : Place::kOutput);
        schedule_.sends.push_back(
            {right, step, piece.segment, from, step == 0 ? ready : previous[piece.segment]});
      }
      previous.clear();
      for (const Piece& piece : pieces(place_, part_before(step + 2))) {
        ReceiveStep receive = receive_of(left, step, piece.segment, piece.region);
        receive.own = in(piece.region, is_alone ? Place::kInput : Place::kOutput);
        receive.combines = true;
        receive.is_last = step + 2 == world_;
        receive.after = is_alone ? kAtOnce : sum_of(piece);
        previous.push_back(add(receive));
      }
      for (std::size_t k = kLead; first_send + k < schedule_.sends.size(); ++k) {
        if (k - kLead < previous.size())
          schedule_.sends[first_send + k].also_after = previous[k - kLead];
      }
    }
    for (const Piece& piece : pieces(place_, node_)) sum_of(piece) = previous[piece.segment];
    for (std::uint32_t turn = 0; turn + 1 < world_; ++turn) {
      const std::uint32_t step = world_ - 1 + turn;
      for (const Piece& piece : pieces(place_, part_before(turn)))
        schedule_.sends.push_back({right, step, piece.segment, piece.region, sum_of(piece)});
      for (const Piece& piece : pieces(place_, part_before(turn + 1)))
        sum_of(piece) = add(receive_of(left, step, piece.segment, piece.region));
    }
  }

  void gather_in_node() {
    const auto first = [&](const Piece& piece) { return std::pair(piece.region, sum_of(piece)); };
    const auto take = [&](std::uint32_t, const Piece&, const ReceiveStep& receive) {
      return add(receive);
    };
    go_round(
        kGatherStep, place_, [&](std::uint32_t lane) { return shard_as_completed(lane); }, first,
        take);
  }

  /// The part of this node is complete first, then those from the left.
  Pieces shard_as_completed(std::uint32_t lane) const {
    Pieces out;
    for (std::uint32_t back = 0; back < world_; ++back) {
      const Pieces next = pieces(lane, part_before(back));
      out.insert(out.end(), next.begin(), next.end());
    }
    return out;
  }

  const Shape& shape_;
  const Grid& grid_;
  const Parts shards_;
  const std::uint32_t world_;  ///< nodes
  std::uint32_t node_ = 0, place_ = 0, local_ = 1;
  Schedule schedule_;
  /// Part and segment of our shard -> the receive that makes it: the node's sum, later the total.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int32_t> sums_;
};

}  // namespace

Schedule hierarchical_all_reduce(const Shape& shape, std::uint64_t count,
                                 std::span<const std::string> nodes) {
  const Grid grid(nodes);
  if (grid.nodes.size() == 1 || grid.nodes.size() == shape.world)
    return ring_all_reduce(shape, count);
  return Hierarchy(shape, count, grid).make();
}

bool pays_hierarchy(std::span<const std::string> nodes) {
  const Grid grid(nodes);
  return grid.nodes.size() > 1 && grid.nodes.size() < nodes.size();
}

}  // namespace centroid::collective
