#include "client/group.h"

#include <algorithm>
#include <cstdio>

#include "client/group_frames.h"
#include "common/base/random.h"
#include "transport/collective/collectives.h"

namespace centroid::client {

using collective::Mesh;
using transport::Endpoint;

namespace {

constexpr std::chrono::milliseconds kProbe{500};

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// What an address says: "HOST:PORT NONCE NODE".
struct Place {
  Endpoint endpoint;
  std::string node;
};

Result<Place> parse_place(const std::string& address) {
  const std::size_t first = address.find(' ');
  const std::size_t second = first == std::string::npos ? first : address.find(' ', first + 1);
  if (second == std::string::npos)
    return Error(ErrorCode::kInvalidArgument, "not an address of a group: \"" + address + "\"");
  Place place;
  CENTROID_ASSIGN(place.endpoint, Endpoint::parse(address.substr(0, first)));
  place.node = address.substr(second + 1);
  return place;
}

/// The ranks with these addresses.
Result<collective::Roster> roster_of(const std::vector<std::string>& addresses,
                                     std::uint32_t rank) {
  collective::Roster roster;
  roster.rank = rank;
  for (const std::string& address : addresses) {
    CENTROID_ASSIGN(Place place, parse_place(address));
    roster.endpoints.push_back(std::move(place.endpoint));
    roster.nodes.push_back(std::move(place.node));
  }
  return roster;
}

/// The same for all who have the same addresses, and not to be guessed by others.
std::string run_id_of(const std::vector<std::string>& addresses) {
  std::uint64_t left = 1, right = 2;
  for (const std::string& address : addresses) {
    for (const char c : address) {
      left = mix64(left, static_cast<unsigned char>(c));
      right = mix64(right, static_cast<unsigned char>(c));
    }
    left = mix64(left, address.size());
  }
  return "group-" + hex(left) + hex(right);
}

Status check(const PeerOptions& options) {
  if (options.world == 0 || options.rank >= options.world)
    return Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(options.rank) +
                                                  " of world " + std::to_string(options.world) +
                                                  ": ranks are 0 to world - 1");
  return {};
}

struct Opened {
  std::shared_ptr<Mesh> mesh;
  std::string address;
};

/// `advertised`: the host in the address.
Result<Opened> open_mesh(const PeerOptions& options, const std::string& listen,
                         const std::string& advertised) {
  collective::MeshOptions mesh;
  mesh.token = options.token;
  mesh.timeout = options.timeout;
  mesh.shared_memory = options.shared_memory;
  transport::TransportOptions wire;
  wire.layer = options.layer;
  Endpoint here;
  here.host = listen;
  CENTROID_ASSIGN(auto made, Mesh::open(collective::tcp_factory(wire, options.make_transport), here,
                                        std::move(mesh)));
  Endpoint there = made->endpoint();
  there.host = advertised;
  Opened opened;
  opened.address = there.to_string() + " " + hex(random_seed()) + " " + transport::this_node();
  opened.mesh = std::move(made);
  return opened;
}

}  // namespace

Result<std::unique_ptr<PeerGroup>> PeerGroup::open(PeerOptions options) {
  CENTROID_TRY(check(options));
  if (options.host.empty()) options.host = "127.0.0.1";
  CENTROID_ASSIGN(auto opened, open_mesh(options, options.host, options.host));
  auto made = std::make_unique<PeerGroup>();
  made->options_ = std::move(options);
  made->mesh_ = std::move(opened.mesh);
  made->address_ = std::move(opened.address);
  return made;
}

Result<std::unique_ptr<PeerGroup>> PeerGroup::join(PeerOptions options,
                                                   const std::string& rendezvous) {
  CENTROID_TRY(check(options));
  CENTROID_ASSIGN(const Endpoint place, Endpoint::parse(rendezvous));
  std::string listen = options.host;
  if (options.host.empty() && options.rank == 0) {
    listen = listening_host(place);
    options.host = place.host;  // the others reach it there
  } else if (options.host.empty()) {
    CENTROID_ASSIGN(options.host, transport::local_address_towards(place));
    listen = options.host;
  }
  CENTROID_ASSIGN(auto opened, open_mesh(options, listen, options.host));
  auto made = std::make_unique<PeerGroup>();
  made->options_ = std::move(options);
  made->mesh_ = std::move(opened.mesh);
  made->address_ = std::move(opened.address);
  CENTROID_ASSIGN(Found found, find_group(made->options_, place, made->address_));
  made->running_ = std::move(found.leader);
  if (!found.addresses.empty()) CENTROID_TRY(made->connect(found.addresses));
  return made;
}

Status PeerGroup::connect(const std::vector<std::string>& addresses) {
  if (group_)
    return Error(ErrorCode::kFailedPrecondition, "the group is connected: open another one");
  if (addresses.size() != options_.world)
    return Error(ErrorCode::kInvalidArgument, std::to_string(addresses.size()) +
                                                  " addresses for a world of " +
                                                  std::to_string(options_.world));
  if (addresses[options_.rank] != address_)
    return Error(ErrorCode::kInvalidArgument, "address " + std::to_string(options_.rank) +
                                                  " is not the one of this rank, " + address_);
  CENTROID_ASSIGN(auto roster, roster_of(addresses, options_.rank));
  roster.run_id = run_id_of(addresses);
  roster.generation = 1;
  Status met = meet(std::move(roster));
  if (!met.ok()) group_.reset();
  return met;
}

Status PeerGroup::meet(collective::Roster roster) {
  CENTROID_ASSIGN(collective::Group made, mesh_->join(roster));
  group_.emplace(std::move(made));
  roster_ = std::move(roster);
  const std::uint32_t world = group_->world();
  if (world > kAllPairs) return collective::barrier(*group_);
  std::vector<std::byte> out(world), in(world);
  collective::Handle met =
      collective::all_to_all_async(*group_, collective::ConstElements(DType::kU8, Bytes(out)),
                                   collective::Elements(DType::kU8, MutableBytes(in)));
  while (!met.wait_for(kProbe))
    if (Status all = probe(); !all.ok()) group_->abort(std::move(all).error());
  return met.wait();
}

/// All listened before others learned their addresses: one that refuses a connection is gone. The
/// mesh calls it until the deadline.
Status PeerGroup::probe() const {
  const std::vector<std::string> connections = group_->connections();
  for (std::uint32_t rank = 0; rank < connections.size(); ++rank) {
    if (rank == group_->rank() || !connections[rank].empty()) continue;
    Status reached = mesh_->reach_now(roster_.endpoints[rank], kProbe);
    if (!reached.ok() && is_gone(reached.error()))
      return std::move(reached).error().with_context("rank " + std::to_string(rank) + " is gone");
  }
  return {};
}

Status PeerGroup::regroup(const std::string& job, const std::vector<std::string>& addresses,
                          std::uint64_t generation) {
  const auto own = std::ranges::find(addresses, address_);
  if (own == addresses.end() || generation <= roster_.generation)
    return Error(ErrorCode::kInvalidArgument,
                 "regroup: addresses, ours among them, and a later generation");
  CENTROID_ASSIGN(auto roster,
                  roster_of(addresses, static_cast<std::uint32_t>(own - addresses.begin())));
  roster.run_id = job;
  roster.generation = generation;
  return meet(std::move(roster));
}

Result<std::unique_ptr<PeerGroup>> PeerGroup::subgroup(std::vector<std::uint32_t> ranks) const {
  auto made = std::make_unique<PeerGroup>();
  CENTROID_ASSIGN(collective::Group group, group_->subgroup(std::move(ranks)));
  made->options_ = options_;
  made->address_ = address_;
  made->mesh_ = mesh_;
  made->group_.emplace(std::move(group));
  return made;
}

}  // namespace centroid::client
