#include "transport/collective/ring_order.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "transport/collective/collectives.h"

namespace centroid::collective {

namespace {

constexpr std::uint32_t kExactWorld = 8;  // 5040 orders
constexpr double kWorthwhile = 1.1;
constexpr std::uint64_t kMeasureTag = 0x6f72646572000000;

using Order = std::vector<std::uint32_t>;
/// The slowest hop, and the sum of all.
using Score = std::pair<double, double>;

Score score_of(const Bandwidths& bandwidths, const Order& order) {
  Score score(bandwidths.between(order.back(), order.front()), 0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double rate = bandwidths.between(order[i], order[(i + 1) % order.size()]);
    score.first = std::min(score.first, rate);
    score.second += rate;
  }
  return score;
}

Order try_all(const Bandwidths& bandwidths, Order order) {
  Order best = order;
  Score best_score = score_of(bandwidths, best);
  while (std::next_permutation(order.begin() + 1, order.end())) {
    const Score score = score_of(bandwidths, order);
    if (score <= best_score) continue;
    best = order;
    best_score = score;
  }
  return best;
}

Order improve(const Bandwidths& bandwidths, Order order) {
  for (std::size_t i = 1; i < order.size(); ++i) {  // the nearest of the remaining ranks
    const auto nearest = std::max_element(order.begin() + static_cast<std::ptrdiff_t>(i),
                                          order.end(), [&](std::uint32_t a, std::uint32_t b) {
                                            return bandwidths.between(order[i - 1], a) <
                                                   bandwidths.between(order[i - 1], b);
                                          });
    std::iter_swap(order.begin() + static_cast<std::ptrdiff_t>(i), nearest);
  }
  Score best = score_of(bandwidths, order);
  const std::size_t most_turns = order.size();
  bool has_improved = true;
  for (std::size_t turn = 0; has_improved && turn < most_turns; ++turn) {
    has_improved = false;
    for (auto from = order.begin() + 1; from != order.end(); ++from) {
      for (auto to = from + 1; to != order.end(); ++to) {
        std::reverse(from, to + 1);
        const Score score = score_of(bandwidths, order);
        if (score > best) {
          best = score;
          has_improved = true;
        } else {
          std::reverse(from, to + 1);
        }
      }
    }
  }
  return order;
}

/// The partner of `rank` in `turn` of a round-robin tournament; itself: it rests.
std::uint32_t partner_of(std::uint32_t rank, std::uint32_t turn, std::uint32_t world) {
  const std::uint32_t seats = world + world % 2,
                      last = seats - 1;                     // an odd one meets an empty seat
  const std::uint32_t fixed = (turn * (seats / 2)) % last;  // the partner of the last seat
  if (rank == last) return fixed;
  const std::uint32_t other = (turn + last - rank) % last;
  const std::uint32_t partner = other == rank ? last : other;
  return partner < world ? partner : rank;
}

Status exchange(const Group& group, std::uint32_t peer, Elements out, Elements in) {
  CallOptions options;
  options.tag = kMeasureTag;
  Handle sent = send_async(group, out, peer, options);
  const Status received = receive(group, in, peer, options);
  const Status status = sent.wait();
  return received.ok() ? status : received;
}

}  // namespace

Result<Bandwidths> measure_bandwidths(const Group& group, std::uint64_t bytes) {
  const std::uint32_t world = group.world();
  std::vector<std::byte> out(bytes), in(bytes);
  const auto first = [](std::vector<std::byte>& of, std::size_t n) {
    return Elements(DType::kU8, MutableBytes(of).first(n));
  };
  std::vector<double> row(world), rows(std::size_t{world} * world);
  for (std::uint32_t turn = 0; turn + 1 < world + world % 2; ++turn) {
    const std::uint32_t peer = partner_of(group.rank(), turn, world);
    if (peer == group.rank()) continue;
    for (int repeat = 0; repeat < 2; ++repeat) {
      CENTROID_TRY(exchange(group, peer, first(out, 1), first(in, 1)));  // both have arrived
      const auto begin = centroid::now();
      CENTROID_TRY(exchange(group, peer, first(out, bytes), first(in, bytes)));
      const std::chrono::duration<double> seconds = centroid::now() - begin;
      row[peer] = std::max(row[peer], static_cast<double>(bytes) / std::max(seconds.count(), 1e-9));
    }
  }
  CENTROID_TRY(
      all_gather(group, ConstElements(std::span<const double>(row)), Elements(std::span(rows))));
  Bandwidths out_rates;
  out_rates.world = world;
  out_rates.rates = rows;
  for (std::uint32_t a = 0; a < world; ++a) {
    for (std::uint32_t b = 0; b < world; ++b)
      out_rates.rates[a * world + b] = std::min(rows[a * world + b], rows[b * world + a]);
  }
  return out_rates;
}

std::vector<std::uint32_t> best_ring(const Bandwidths& bandwidths) {
  Order order(bandwidths.world);
  std::iota(order.begin(), order.end(), 0u);
  if (bandwidths.world < 4) return order;
  const Order best =
      bandwidths.world <= kExactWorld ? try_all(bandwidths, order) : improve(bandwidths, order);
  const double now = score_of(bandwidths, order).first;
  return score_of(bandwidths, best).first < kWorthwhile * now ? order : best;
}

Result<Group> order_by_bandwidth(const Group& group) {
  if (group.world() < 4) return group;
  CENTROID_ASSIGN(const Bandwidths bandwidths, measure_bandwidths(group));
  return group.with_ring(best_ring(bandwidths));
}

}  // namespace centroid::collective
