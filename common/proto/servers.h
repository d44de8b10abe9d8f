#pragma once

#include "common/proto/messages.h"

/// Messages of a model that lies on several servers; docs/wire.md is the contract. The leader is
/// the server that workers join; shard servers hold chunks and do what it says.
namespace centroid::proto {

enum class ServersKind : std::uint16_t {
  kServerJoin = 112,  ///< shard -> leader, request; answered by ServerTerms
  kModel = 113,       ///< leader -> shard, request: the model and the rule of its steps
  kPlace = 114,       ///< leader -> shard, request: Route; which chunks are yours from now on
  kLoad = 115,        ///< leader -> shard, request, payload: a chunk of a plane, float32
  kBegin = 116,       ///< leader -> shard, request: all is loaded, this is its version
  kFetch = 117,       ///< leader -> shard, request; answered by a chunk as payload, float32
  kFreeze = 118,      ///< leader -> shard, request: keep this version for `Fetch` of a checkpoint
  kMerge = 119,       ///< leader -> shard, request: sum these contributions; answered by MergeReply
  kStep = 120,        ///< leader -> shard, request: make the step; answered when it is prepared
  kCommit = 121,      ///< leader -> shard, request: what is prepared is the state
  kWhole = 122,       ///< shard -> leader: all of a contribution's chunks that lie here have come
  kForget = 123,      ///< leader -> shard: a worker is gone
  kRoute = 124,       ///< leader -> worker: where the chunks are
  kEnter = 125,       ///< worker -> shard, request: I bring contributions
};

struct ServerJoin {
  std::string name;      ///< unique among the servers
  std::string endpoint;  ///< HOST:PORT where workers reach it
  std::string run_id;    ///< of the run whose chunks it held last; empty: of none
  template <class F>
  void fields(F& f) {
    f(name, kMaxNameBytes), f(endpoint, kMaxNameBytes), f(run_id, kMaxNameBytes);
  }
};

struct ServerTerms {
  std::string run_id;
  std::uint32_t lease_ms = 0;  ///< as JoinReply's
  std::uint64_t credit_bytes = 0;
  template <class F>
  void fields(F& f) {
    f(run_id, kMaxNameBytes), f(lease_ms), f(credit_bytes);
  }
};

struct ServerModel {
  std::uint64_t chunk_bytes = 0, plan_hash = 0;
  bool apply_on_worker = false;
  std::uint32_t fragments = 1;
  std::string optimizer;
  double learning_rate = 0, momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double l1 = 0, ftrl_beta = 1;
  std::string schedule = "constant";
  double clip_norm = 0;
  Manifest manifest;
  template <class F>
  void fields(F& f) {
    f(chunk_bytes), f(plan_hash), f(apply_on_worker), f(fragments), f(optimizer, kMaxNameBytes);
    f(learning_rate), f(momentum), f(beta1), f(beta2), f(epsilon), f(weight_decay), f(l1),
        f(ftrl_beta), f(schedule, kMaxNameBytes), f(clip_norm), f(manifest);
  }
};

struct RouteServer {
  std::string name, endpoint;
  template <class F>
  void fields(F& f) {
    f(name, kMaxNameBytes), f(endpoint, kMaxNameBytes);
  }
  bool operator==(const RouteServer&) const = default;
};

/// Where the chunks are. The first server is the leader; its endpoint is empty.
struct Route {
  std::uint64_t version = 0;
  std::vector<RouteServer> servers;
  std::vector<std::uint16_t> owners;  ///< by chunk: index of a server
  template <class F>
  void fields(F& f) {
    f(version), f(servers), f(owners);
  }
  Status check() const;
};

/// Load and Fetch.
struct ServerChunk {
  Version version;
  std::uint8_t plane = 0;  ///< 0: parameters; 1..: optimizer slots
  ChunkId chunk;
  bool frozen = false;  ///< of the version that `Freeze` kept
  template <class F>
  void fields(F& f) {
    f(version), f(plane), f(chunk), f(frozen);
  }
};

/// Begin and Commit: the state from now on. Freeze: the state that is to be kept.
struct ServerState {
  Version version;
  std::uint64_t optimizer_step = 0;
  template <class F>
  void fields(F& f) {
    f(version), f(optimizer_step);
  }
};

/// A contribution by its worker and the attempt that it was made for.
struct ContributionKey {
  MemberId member;
  Generation generation;
  Round round;
  std::uint32_t attempt = 0;
  template <class F>
  void fields(F& f) {
    f(member), f(generation), f(round), f(attempt);
  }
  auto operator<=>(const ContributionKey&) const = default;
};

/// A contribution with its weight in the sum. Also Whole: with the weight its chunks came with.
struct WeighedContribution {
  ContributionKey key;
  double weight = 0;
  template <class F>
  void fields(F& f) {
    key.fields(f), f(weight);
  }
  Status check() const;
};

struct Merge {
  Round round;
  std::uint32_t attempt = 0;
  Version version;                         ///< before the round
  double total_weight = 0;                 ///< the sum is divided by it
  std::vector<WeighedContribution> parts;  ///< in the order of the sum
  std::vector<MemberId> members;           ///< who wait for the results
  bool wants_norm = false;                 ///< answer with squares, and wait for Step
  template <class F>
  void fields(F& f) {
    f(round), f(attempt), f(version), f(total_weight), f(parts), f(members), f(wants_norm);
  }
  Status check() const;
};

struct MergeReply {
  std::vector<double> squares;  ///< by chunk of the round that lies here: the mean's sum of squares
  template <class F>
  void fields(F& f) {
    f(squares);
  }
};

struct Step {
  Round round;
  std::uint32_t attempt = 0;
  double factor = 1;  ///< on the mean gradient, a float
  template <class F>
  void fields(F& f) {
    f(round), f(attempt), f(factor);
  }
};

struct Forget {
  MemberId member;
  std::string reason;
  template <class F>
  void fields(F& f) {
    f(member), f(reason, kMaxTextBytes);
  }
};

struct Enter {
  MemberId member;  ///< as the leader's JoinReply says
  std::string name;
  std::string codec;        ///< of its contributions
  std::uint64_t route = 0;  ///< version
  template <class F>
  void fields(F& f) {
    f(member), f(name, kMaxNameBytes), f(codec, kMaxNameBytes), f(route);
  }
};

}  // namespace centroid::proto
