#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/in_process_transport.h"
#include "transport/collective/collectives.h"
#include "transport/collective/mesh.h"

namespace centroid::collective::testing {

using namespace std::chrono_literals;

inline TimePoint now() { return std::chrono::steady_clock::now(); }

/// What carries the frames.
enum class Carrier { kInProcess, kTcp, kShm };
inline std::string name_of(Carrier carrier) {
  if (carrier == Carrier::kShm) return "shm";
  return carrier == Carrier::kTcp ? "tcp" : "inprocess";
}
inline void PrintTo(Carrier carrier, std::ostream* out) { *out << name_of(carrier); }

/// How one rank meets the others.
struct Wire {
  Mesh::TransportFactory transports;
  MeshOptions options{};
};
using WireOf = std::function<Wire(std::uint32_t rank)>;

/// As tcp_factory, within this process.
inline Mesh::TransportFactory inprocess_factory(std::shared_ptr<transport::InProcessHub> hub) {
  transport::TransportOptions options;
  options.stall_timeout = std::chrono::hours(1);
  return [options, hub](Executor executor) {
    return transport::make_inprocess(executor, hub, options);
  };
}

/// Rank `bad` of an in-process job has the faults of `plan`, which begin when
/// `*plan.operations` is set to 0.
inline WireOf with_faults(std::uint32_t bad, transport::FaultPlan plan) {
  *plan.operations = std::uint64_t{1} << 40;
  const auto plain = inprocess_factory(transport::make_inprocess_hub());
  return [=](std::uint32_t rank) {
    if (rank != bad) return Wire{plain};
    return Wire{[=](Executor executor) { return transport::make_faulty(plain(executor), plan); }};
  };
}

/// The ranks of one job, each with a mesh of its own, as threads of this process.
class Job {
 public:
  explicit Job(Carrier carrier, std::uint32_t world, MeshOptions options = {})
      : Job(carrier, world, wires_of(carrier, std::move(options))) {}
  Job(Carrier carrier, std::uint32_t world, const WireOf& wire_of,
      std::vector<std::string> nodes = {})
      : carrier_(carrier) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      transport::Endpoint endpoint;
      if (carrier == Carrier::kInProcess) endpoint.host = "rank" + std::to_string(rank);
      const Wire wire = wire_of(rank);
      auto mesh = Mesh::open(wire.transports, endpoint, wire.options);
      EXPECT_TRUE(mesh.ok());
      meshes_.push_back(std::move(*mesh));
      roster_.endpoints.push_back(meshes_.back()->endpoint());
    }
    join(std::move(nodes));
  }

  /// Build the next generation. Without nodes: all on one for shared memory, else unknown.
  void join(std::vector<std::string> nodes = {}) {
    leave_all();
    groups_.clear();
    if (nodes.empty() && carrier_ == Carrier::kShm) nodes.resize(meshes_.size(), "here");
    roster_.nodes = std::move(nodes);
    ++roster_.generation;
    std::vector<std::optional<Group>> made(meshes_.size());
    in_parallel([&](std::uint32_t rank) {
      Roster roster = roster_;
      roster.rank = rank;
      auto group = meshes_[rank]->join(roster);
      ASSERT_TRUE(group.ok()) << group.error().to_string();
      made[rank].emplace(std::move(*group));
    });
    for (auto& group : made) groups_.push_back(std::move(group));
  }
  ~Job() { leave_all(); }

  std::uint32_t world() const { return static_cast<std::uint32_t>(meshes_.size()); }
  Group& group(std::uint32_t rank) { return *groups_[rank]; }
  void leave(std::uint32_t rank) { groups_[rank].reset(); }

  /// Run `body` for each rank on a thread of its own; a hang ends the program.
  void run(const std::function<void(Group&)>& body) {
    in_parallel([&](std::uint32_t rank) {
      if (groups_[rank]) body(*groups_[rank]);
    });
  }

 private:
  static WireOf wires_of(Carrier carrier, MeshOptions options) {
    options.shared_memory = carrier == Carrier::kShm;
    const auto factory = carrier == Carrier::kInProcess
                             ? inprocess_factory(transport::make_inprocess_hub())
                             : tcp_factory();
    return [=](std::uint32_t) { return Wire{factory, options}; };
  }

  void in_parallel(const std::function<void(std::uint32_t)>& body) {
    std::vector<std::future<void>> running;
    for (std::uint32_t rank = 0; rank < meshes_.size(); ++rank)
      running.push_back(std::async(std::launch::async, body, rank));
    for (auto& one : running) {
      if (one.wait_for(60s) == std::future_status::ready) continue;
      std::fputs("a rank hangs\n", stderr);
      std::abort();
    }
  }

  // All at once: each waits until the others have read its goodbye.
  void leave_all() {
    in_parallel([&](std::uint32_t rank) {
      if (rank < groups_.size()) groups_[rank].reset();
    });
  }

  const Carrier carrier_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
  Roster roster_;
  std::vector<std::optional<Group>> groups_;
};

/// Status as gtest prints it.
inline ::testing::AssertionResult succeeds(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.error().to_string();
}

using Floats = std::vector<float>;
inline std::span<float> view(Floats& values) { return values; }
inline std::span<const float> view(const Floats& values) { return values; }

inline CallOptions with(Reduction reduction, Algorithm algorithm = Algorithm::kAuto) {
  CallOptions options;
  options.reduction = reduction;
  options.algorithm = algorithm;
  return options;
}

}  // namespace centroid::collective::testing
