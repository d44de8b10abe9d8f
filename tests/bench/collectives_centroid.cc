#include <cstdio>
#include <cstdlib>
#include <span>

#include "tests/bench/collectives_bench.h"
#include "transport/collective/collectives.h"
#include "transport/collective/mesh.h"

namespace centroid::bench {
namespace {

using namespace std::chrono_literals;

class Centroid final : public Contestant {
 public:
  Centroid(const Place& place, bool shares_memory, collective::Algorithm algorithm) {
    options_.algorithm = algorithm;
    transport::TransportOptions options;
    options.congestion_control = place.congestion_control;
    collective::MeshOptions mesh_options;
    mesh_options.spin = std::chrono::microseconds(place.spin_us);
    mesh_options.shared_memory = shares_memory;
    transport::Endpoint endpoint;
    endpoint.host = place.hosts[place.rank];
    auto mesh = collective::Mesh::open(collective::tcp_factory(options), endpoint, mesh_options);
    if (!mesh.ok()) die(mesh.error());
    mesh_ = std::move(*mesh);
    collective::Roster roster;
    roster.rank = place.rank;
    for (const std::uint32_t port : place.exchange(mesh_->endpoint().port)) {
      endpoint.host = place.hosts[roster.endpoints.size()];
      endpoint.port = static_cast<std::uint16_t>(port);
      roster.endpoints.push_back(endpoint);
    }
    // Namespaces stand for machines.
    for (const std::string& host : place.hosts) {
      const bool is_loopback = host.starts_with("127.");
      roster.nodes.push_back(is_loopback ? "here" : host);
    }
    auto group = mesh_->join(roster);
    if (!group.ok()) die(group.error());
    group_.emplace(std::move(*group));
  }

  void reduce(float* data, std::uint64_t count) override {
    const Status status = collective::all_reduce(*group_, std::span<float>(data, count), options_);
    if (!status.ok()) die(status.error());
  }

 private:
  [[noreturn]] static void die(const Error& error) {
    std::fprintf(stderr, "%s\n", error.to_string().c_str());
    std::_Exit(3);
  }

  collective::CallOptions options_;
  std::unique_ptr<collective::Mesh> mesh_;
  std::optional<collective::Group> group_;
};

}  // namespace

std::vector<Entry> centroid_entries() {
  using collective::Algorithm;
  const auto make = [](bool shares_memory, Algorithm algorithm) {
    return [=](const Place& place) {
      return std::make_unique<Centroid>(place, shares_memory, algorithm);
    };
  };
  std::vector<Entry> out = {{"centroid", make(false, Algorithm::kAuto)},
                            {"centroid_shm", make(true, Algorithm::kAuto)},
                            {"algorithm_ring", make(false, Algorithm::kRing)},
                            {"algorithm_halving", make(false, Algorithm::kHalvingDoubling)},
                            {"algorithm_chain", make(false, Algorithm::kChain)},
                            {"algorithm_doubling", make(false, Algorithm::kRecursiveDoubling)}};
  out.back().most_bytes = 16 << 20;
  for (Entry& entry : out) entry.is_asked_for = entry.name.starts_with("algorithm");
  return out;
}

}  // namespace centroid::bench
