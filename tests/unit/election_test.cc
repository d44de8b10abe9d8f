#include "server/election/election.h"

#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server::election_test {
namespace {

using std::chrono::milliseconds;
using Call = Election::Call;
using Role = Election::Role;

constexpr milliseconds kTtl{3000};
constexpr TimePoint kStart{std::chrono::hours(1)};

/// What etcd promises: one holder of the key, as long as its lease lives. Its clock is true time.
struct Etcd {
  struct Lease {
    std::int64_t id = 0;
    TimePoint ends;
  };
  std::vector<Lease> leases;
  std::optional<Holder> holder;
  std::int64_t last_lease = 0;
  std::uint64_t revision = 1;

  void expire(TimePoint now) {
    std::erase_if(leases, [&](const Lease& lease) { return lease.ends <= now; });
    if (holder && find(holder->lease) == nullptr) holder.reset();
  }
  Lease* find(std::int64_t id) {
    for (Lease& lease : leases)
      if (lease.id == id) return &lease;
    return nullptr;
  }
  std::optional<Election::Reply> serve(const Election::Request& request, TimePoint now) {
    Election::Reply reply;
    if (request.call == Call::kGrant) {
      leases.push_back({++last_lease, now + kTtl});
      reply.lease = last_lease;
      reply.ttl = kTtl;
      return reply;
    }
    Lease* const lease = request.lease == 0 ? nullptr : find(request.lease);
    if (request.call == Call::kAcquire && !holder) {
      if (lease == nullptr) return std::nullopt;  // etcd refuses: no such lease
      holder = Holder{.value = "", .term = ++revision, .lease = request.lease};
    }
    if (request.call == Call::kRenew) {
      if (lease == nullptr) return reply;
      lease->ends = now + kTtl;
      reply.ttl = kTtl;
    }
    reply.holder = holder;
    return reply;
  }
};

Election make_election() { return Election({.ttl = kTtl}); }

/// Sends what is due and has it answered at once.
void step(Election& election, Etcd& etcd, TimePoint now) {
  while (const auto request = election.next(now)) {
    etcd.expire(now);
    const auto reply = etcd.serve(*request, now);
    if (reply)
      election.answered(now, *reply);
    else
      election.failed(now, "no such lease");
  }
}

TEST(Election, TheFirstLeadsTheSecondStandsBy) {
  Etcd etcd;
  Election a = make_election(), b = make_election();
  step(a, etcd, kStart);
  step(b, etcd, kStart);
  EXPECT_EQ(a.role(kStart), Role::kLeader);
  EXPECT_EQ(b.role(kStart), Role::kStandby);
  EXPECT_EQ(b.holder()->term, a.term());
}

TEST(Election, WithoutRenewalALeaderStopsBeforeItsLeaseEndsInEtcd) {
  Etcd etcd;
  Election a = make_election();
  step(a, etcd, kStart);
  EXPECT_EQ(a.role(a.acts_until() - milliseconds(1)), Role::kLeader);
  EXPECT_EQ(a.role(a.acts_until()), Role::kSuspended);
  EXPECT_LT(a.acts_until(), etcd.leases.back().ends);
}

TEST(Election, ALeaderThatCouldNotRenewGoesOnInItsTermWhenNobodyTookOver) {
  Etcd etcd;
  Election a = make_election();
  step(a, etcd, kStart);
  const auto term = a.term();
  const TimePoint late = a.acts_until() + milliseconds(50);
  ASSERT_EQ(a.role(late), Role::kSuspended);
  step(a, etcd, late);  // the lease still lives
  EXPECT_EQ(a.role(late), Role::kLeader);
  EXPECT_EQ(a.term(), term);
}

TEST(Election, ALeaderWhoseLeaseIsGoneIsDeposedForEver) {
  Etcd etcd;
  Election a = make_election(), b = make_election();
  step(a, etcd, kStart);
  const TimePoint later = kStart + 2 * kTtl;
  step(b, etcd, later);
  EXPECT_EQ(b.role(later), Role::kLeader);
  EXPECT_GT(b.term(), a.term());
  step(a, etcd, later);
  EXPECT_EQ(a.role(later), Role::kDeposed);
  EXPECT_FALSE(a.next(later + kTtl));
}

TEST(Election, ALeaderWhoseKeyWasDeletedByHandIsDeposedAtTheNextRenewal) {
  Etcd etcd;
  Election a = make_election();
  step(a, etcd, kStart);
  etcd.holder.reset();
  step(a, etcd, a.wakes());
  EXPECT_EQ(a.role(kStart), Role::kDeposed);
}

TEST(Election, ALostAnswerToTheAcquisitionIsFoundOutByALook) {
  Etcd etcd;
  Election a = make_election();
  TimePoint now = kStart;
  for (bool has_lost = false; !has_lost;) {
    const auto request = a.next(now);
    ASSERT_TRUE(request);
    const auto reply = etcd.serve(*request, now);
    has_lost = request->call == Call::kAcquire;
    if (has_lost)
      a.failed(now, "timeout");
    else
      a.answered(now, *reply);
  }
  ASSERT_TRUE(etcd.holder);
  EXPECT_NE(a.role(now), Role::kLeader);
  now = a.wakes();
  step(a, etcd, now);
  EXPECT_EQ(a.role(now), Role::kLeader);
  EXPECT_EQ(a.term(), etcd.holder->term);
}

/// Several servers with clocks of their own, and a network that loses and delays.
struct World {
  struct Node {
    Election election = make_election();
    Duration offset{};
    double rate = 1;  // of its clock
    struct Flight {
      Election::Request request;
      std::optional<Election::Reply> reply;
      bool is_served = false;
    };
    std::optional<Flight> flight;
    std::vector<Election::Request> ghosts;  // given up here, still on their way to etcd
  };
  Etcd etcd;
  std::vector<Node> nodes;
  TimePoint now = kStart;
  std::uint64_t highest = 0;

  TimePoint local(const Node& node) const {
    return kStart + node.offset + std::chrono::duration_cast<Duration>((now - kStart) * node.rate);
  }
  /// The invariants. Returns who acts.
  int check() {
    int acting = -1;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      if (node.election.role(local(node)) != Role::kLeader) continue;
      EXPECT_EQ(acting, -1) << "servers " << acting << " and " << i << " lead at once";
      acting = static_cast<int>(i);
      EXPECT_GE(node.election.term(), highest) << "the term went back";
      highest = node.election.term();
    }
    return acting;
  }
  void advance(Duration by) {
    now += by;
    etcd.expire(now);
  }
  void revive(Node& node) {
    if (node.election.role(local(node)) == Role::kDeposed) {
      node.election = make_election();
      node.flight.reset();
    }
  }
  void send(Node& node) {
    revive(node);
    if (node.flight) return;
    if (const auto request = node.election.next(local(node)))
      node.flight = Node::Flight{.request = *request, .reply = {}};
  }
  void reach(Node& node) {  // the request gets to etcd
    if (!node.flight || node.flight->is_served) return;
    node.flight->reply = etcd.serve(node.flight->request, now);
    node.flight->is_served = true;
  }
  void finish(Node& node, bool is_lost) {
    if (!node.flight) return;
    const auto flight = *node.flight;
    node.flight.reset();
    if (!flight.is_served) node.ghosts.push_back(flight.request);
    if (is_lost || !flight.reply)
      node.election.failed(local(node), "lost");
    else
      node.election.answered(local(node), *flight.reply);
  }
};

/// Every fate of every request of two servers, for some steps of half a second.
struct Exhaustive {
  std::uint64_t states = 0, led = 0, changed = 0;

  void explore(const World& before, int depth) {
    if (depth == 0 || testing::Test::HasFailure()) return;
    for (int choice = 0; choice < 16; ++choice) {
      World world = before;
      world.advance(milliseconds(750));
      for (int i = 0; i < 2; ++i) {
        World::Node& node = world.nodes[static_cast<std::size_t>(i)];
        switch ((choice >> (2 * i)) & 3) {
          case 0:  // all goes well, twice, so that a grant and an acquisition fit into one step
            for (int twice = 0; twice < 3; ++twice) {
              world.send(node), world.reach(node), world.finish(node, false);
            }
            break;
          case 1:  // carried out, the answer is lost
            world.send(node), world.reach(node), world.finish(node, true);
            break;
          case 2:  // carried out, the answer comes with the next step
            world.send(node), world.reach(node);
            break;
          case 3:  // the server is stopped
            break;
        }
      }
      ++states;
      const auto old = before.highest;
      if (world.check() >= 0) ++led;
      if (old != 0 && world.highest > old) ++changed;
      explore(world, depth - 1);
    }
  }
};

TEST(Election, NoSequenceOfLossesDelaysAndPausesGivesTwoLeaders) {
  World world;
  world.nodes.resize(2);
  world.nodes[0].rate = 1.09;
  world.nodes[1].rate = 0.92;
  world.nodes[1].offset = std::chrono::hours(7);
  Exhaustive all;
  // The first leads; then everything may happen.
  world.send(world.nodes[0]), world.reach(world.nodes[0]), world.finish(world.nodes[0], false);
  all.explore(world, 5);
  EXPECT_GT(all.led, all.states / 4);
  EXPECT_GT(all.changed, 1000u);
  RecordProperty("states", static_cast<int>(all.states));
}

TEST(Election, RandomFaultsNeverGiveTwoLeadersAndOneComesWhenTheyEnd) {
  std::uint64_t changes = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng random(seed);
    World world;
    world.nodes.resize(2 + seed % 4);
    for (World::Node& node : world.nodes) {
      node.offset = std::chrono::seconds(static_cast<long>(random.below(1000000)));
      node.rate = 0.91 + 0.0018 * static_cast<double>(random.below(100));
    }
    for (int turn = 0; turn < 4000 && !testing::Test::HasFailure(); ++turn) {
      const bool is_calm = turn % 1000 > 800;
      world.advance(milliseconds(static_cast<long>(random.below(is_calm ? 60 : 200))));
      World::Node& node = world.nodes[random.below(world.nodes.size())];
      const auto fate = is_calm ? 100 : random.below(100);
      if (fate < 4) {
        world.advance(
            milliseconds(static_cast<long>(random.below(8000))));  // everybody stands still
      } else if (fate < 8) {
        for (auto& lease : world.etcd.leases) lease.ends = world.now + kTtl;  // etcd restarted
      } else if (fate < 20 && !node.ghosts.empty()) {
        const auto late = node.ghosts[random.below(node.ghosts.size())];
        (void)world.etcd.serve(late, world.now);
      } else if (fate < 40) {
        world.send(node);
      } else if (fate < 55) {
        world.reach(node);
      } else if (fate < 65) {
        world.finish(node, true);
      } else {
        world.send(node), world.reach(node), world.finish(node, false);
      }
      const auto old = world.highest;
      world.check();
      if (old != 0 && world.highest > old) ++changes;
    }
    // No faults: within two leases and a few looks one leads.
    for (int turn = 0; turn < 200; ++turn) {
      world.advance(milliseconds(50));
      for (World::Node& node : world.nodes)
        world.send(node), world.reach(node), world.finish(node, false);
    }
    EXPECT_GE(world.check(), 0);
  }
  EXPECT_GT(changes, 500u);
}

}  // namespace
}  // namespace centroid::server::election_test
