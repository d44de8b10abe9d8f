#pragma once

#include "common/proto/messages.h"

/// Messages of a model on several servers; docs/reference/wire.md is the contract. The leader is
/// the server that workers join; shard servers have chunks and follow it.
namespace centroid::proto {

enum class ServersKind : std::uint16_t {
  kServerJoin = 112,  ///< shard -> leader, request; answered by ServerTerms
  kModel = 113,       ///< leader -> shard, request: the model and the rule of its steps
  kPlace = 114,       ///< leader -> shard, request: Route; which chunks are yours from now on
  kLoad = 115,        ///< leader -> shard, request, payload: a chunk of a plane, float32
  kBegin = 116,       ///< leader -> shard, request: all is loaded, this is its version
  kFetch = 117,       ///< leader -> shard, request; answered by a chunk as payload, float32
  kFreeze = 118,      ///< leader -> shard, request: retain this version for `Fetch` of a checkpoint
  kMerge = 119,       ///< leader -> shard, request: sum these contributions; answered by MergeReply
  kStep = 120,        ///< leader -> shard, request: make the step; answered when it is prepared
  kCommit = 121,      ///< leader -> shard, request: the prepared state is the state
  kWhole = 122,   ///< shard -> leader: all of a contribution's chunks of this server have arrived
  kForget = 123,  ///< leader -> shard: a worker has left
  kRoute = 124,   ///< leader -> worker: where the chunks are
  kEnter = 125,   ///< worker -> shard, request: I send contributions
  kRecall = 126,  ///< leader -> shard, request; answered by RecallReply and a chunk as payload
  kOptimizer = 127,     ///< leader -> shard, request: another learning rate from the next round on
  kServerReport = 128,  ///< shard -> leader: its state
  kStatistics = 129,  ///< leader -> shard, request; answered by a payload: statistics of each chunk
  kRefused = 130,     ///< shard -> leader: a worker sends nothing more here
  kTokens = 131,      ///< leader -> shard, request: the named tokens that it accepts
  kOpened = 132,      ///< leader -> shard: the newest attempt, and who may send contributions
  kMemoryPlan = 133,  ///< leader -> shard, request: is there memory for more
};

struct ServerJoin {
  std::string name;      ///< unique among the servers
  std::string endpoint;  ///< HOST:PORT where workers reach it
  std::string run_id;    ///< of the run whose chunks it had last; empty: none
  template <class F>
  void fields(F& f) {
    f(name, kMaxNameBytes), f(endpoint, kMaxNameBytes), f(run_id, kMaxNameBytes);
  }
};

struct ServerTerms {
  std::string run_id;
  std::uint32_t lease_ms = 0;  ///< as JoinReply's
  std::uint64_t credit_bytes = 0;
  std::uint64_t term = 0;  ///< of the leader, where etcd chooses it
  template <class F>
  void fields(F& f) {
    f(run_id, kMaxNameBytes), f(lease_ms), f(credit_bytes), f(term);
  }
};

struct ServerModel {
  std::uint64_t chunk_bytes = 0, plan_hash = 0;
  bool apply_on_worker = false;
  std::uint32_t fragments = 1;
  OptimizerConfig optimizer;
  bool writes_journal = false;  ///< of what is prepared here
  std::uint32_t journal_sync_ms = 0;
  // used by the server to compute its memory
  std::uint32_t servers = 1;       ///< of the model
  std::uint32_t workers = 1;       ///< that may send contributions at once
  bool is_elastic = false;         ///< each may have a second contribution here
  bool refuses_nonfinite = true;   ///< contributions with numbers that are not finite
  std::string codec_down = "f32";  ///< of results
  std::uint64_t seed = 0;          ///< of its random numbers
  std::string aggregate = "mean";  ///< of contributions
  /// The leader names whose contributions are summed: Opened.
  static constexpr std::uint8_t kNamesSummed = 1;
  /// The learning rate depends on the number of contributions.
  static constexpr std::uint8_t kScalesRate = 2;
  std::uint8_t flags = 0;
  Manifest manifest;  ///< travels as the payload: encode_manifest
  template <class F>
  void fields(F& f) {
    f(chunk_bytes), f(plan_hash), f(apply_on_worker), f(fragments);
    optimizer_fields(f, optimizer);
    f(writes_journal), f(journal_sync_ms), f(servers), f(workers), f(is_elastic);
    f(refuses_nonfinite), f(codec_down, kMaxNameBytes), f(seed), f(aggregate, kMaxNameBytes);
    f.tail(flags, std::uint8_t{0});
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

/// The servers of the chunks. The first server is the leader; its endpoint is empty.
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
  bool frozen = false;  ///< of the version that `Freeze` retains
  template <class F>
  void fields(F& f) {
    f(version), f(plane), f(chunk), f(frozen);
  }
};

/// Begin and Commit: the state from now on. Freeze: the state to retain.
struct ServerState {
  Version version;
  std::uint64_t optimizer_step = 0;
  Round round;  ///< closed rounds; Freeze of version 0: those in a checkpoint
  template <class F>
  void fields(F& f) {
    f(version), f(optimizer_step), f(round);
  }
};

/// A chunk's numbers of a prepared round, out of a server's journal.
struct Recall {
  Round round;
  std::uint32_t attempt = 0;
  ChunkId chunk;
  template <class F>
  void fields(F& f) {
    f(round), f(attempt), f(chunk);
  }
};

struct RecallReply {
  std::uint8_t form = 0;  ///< as in the journal's format
  template <class F>
  void fields(F& f) {
    f(form);
  }
};

/// The terms of memory from now on. ServerModel has the first ones.
struct MemoryPlan {
  std::uint32_t workers = 0;  ///< that may send contributions at once
  std::uint32_t servers = 0;  ///< of the model
  template <class F>
  void fields(F& f) {
    f(workers), f(servers);
  }
  bool operator==(const MemoryPlan&) const = default;
  Status check() const;
};

struct OptimizerChange {
  double learning_rate = 0;
  std::string schedule;
  template <class F>
  void fields(F& f) {
    f(learning_rate), f(schedule, kMaxNameBytes);
  }
};

/// Of the parameters of this version, when it is the present one.
struct Statistics {
  Version version;
  template <class F>
  void fields(F& f) {
    f(version);
  }
};

/// State of a shard server. Counters since its process began.
struct ServerReport {
  std::uint64_t memory_bytes = 0;             ///< of planes, as they are in memory
  std::uint64_t staged_bytes = 0;             ///< of stored contributions
  std::uint64_t journal_bytes = 0;            ///< of its segments
  std::uint64_t bytes_in = 0, bytes_out = 0;  ///< by workers
  std::uint64_t rounds = 0;                   ///< committed
  double merge_seconds = 0;                   ///< of all of them: sums and steps
  std::uint32_t workers = 0;                  ///< with sessions here
  std::string trouble;                        ///< of its journal
  std::string busy;            ///< what it does or waits for before it can answer; empty: nothing
  std::uint64_t progress = 0;  ///< grows with its progress, and while it waits for others
  /// Of the disk with its journals; 0: no journals, or unknown.
  std::uint64_t disk_free_bytes = 0, disk_total_bytes = 0;
  template <class F>
  void fields(F& f) {
    f(memory_bytes), f(staged_bytes), f(journal_bytes), f(bytes_in), f(bytes_out), f(rounds);
    f(merge_seconds), f(workers), f(trouble, kMaxTextBytes), f(busy, kMaxTextBytes), f(progress);
    f(disk_free_bytes), f(disk_total_bytes);
  }
};

/// A contribution, by its worker and attempt.
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

/// A contribution with its weight in the sum.
struct WeighedContribution {
  ContributionKey key;
  double weight = 0;
  template <class F>
  void fields(F& f) {
    key.fields(f), f(weight);
  }
  Status check() const;
};

/// Chunks of a contribution on one server, all of which have arrived.
struct Whole {
  ContributionKey key;
  double weight = 0;   ///< that they came with
  double squares = 0;  ///< of their numbers, summed
  template <class F>
  void fields(F& f) {
    key.fields(f), f(weight), f(squares);
  }
  Status check() const;
};

struct Merge {
  Round round;
  std::uint32_t attempt = 0;
  Version version;                         ///< before the round
  double total_weight = 0;                 ///< the divisor of the sum
  std::vector<WeighedContribution> parts;  ///< in the order of the sum
  std::vector<ContributionKey> keeps;  ///< that may count in a later round; others so far do not
  std::vector<MemberId> members;       ///< who wait for the results
  bool needs_norm = false;             ///< answer with squares, and wait for Step
  std::uint64_t reply_rounds = 0;      ///< earlier rounds with codec_down; for its warm-up
  bool clears_residual = false;        ///< its earlier residual does not count any more
  double rate_factor = 1;              ///< on the learning rate of the step
  template <class F>
  void fields(F& f) {
    f(round), f(attempt), f(version), f(total_weight), f(parts), f(keeps), f(members);
    f(needs_norm);
    f(reply_rounds), f(clears_residual), f.tail(rate_factor, 1.0);
  }
  Status check() const;
};

/// Also of Step, without squares.
struct MergeReply {
  /// By chunk of the round on this server: sum of squares of the mean that the workers receive.
  std::vector<double> squares;
  std::uint32_t overflow = 0;  ///< 1 + a chunk whose sum or result is not finite; 0: none
  template <class F>
  void fields(F& f) {
    f(squares), f.tail(overflow, std::uint32_t{0});
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

/// A worker that may send contributions.
struct OpenedMember {
  MemberId member;
  std::uint32_t name_crc = 0;  ///< CRC-32C of its name: another leader numbers members differently
  template <class F>
  void fields(F& f) {
    f(member), f(name_crc);
  }
  bool operator==(const OpenedMember&) const = default;
};

/// The newest attempt and all workers; replaces the previous message.
struct Opened {
  Generation generation;
  Round round;  ///< 0: none yet
  std::uint32_t attempt = 0;
  std::vector<OpenedMember> members;  ///< ascending
  /// Members whose contributions the attempt sums as they arrive, in the order of the sum. None: no
  /// member, or they are stored complete until a Merge names them.
  std::vector<MemberId> summed;
  template <class F>
  void fields(F& f) {
    f(generation), f(round), f(attempt), f(members), f.tail(summed, std::vector<MemberId>());
  }
  Status check() const;
};

struct Forget {
  MemberId member;
  std::string reason;
  template <class F>
  void fields(F& f) {
    f(member), f(reason, kMaxTextBytes);
  }
};

/// A worker's session with a shard server has ended; its contributions cannot be completed there.
struct Refused {
  MemberId member;
  std::uint8_t code = 0;  ///< an ErrorCode
  std::string why;
  template <class F>
  void fields(F& f) {
    f(member), f(code), f(why, kMaxTextBytes);
  }
  Status check() const;
};

/// A named token of role worker or admin, with what is needed to recognize it.
struct Token {
  std::string id;                   ///< a public part of it
  std::string salt, hash;           ///< SHA-256 of salt, ":" and the token, in hexadecimal digits
  double expires_unix_seconds = 0;  ///< 0: never
  template <class F>
  void fields(F& f) {
    f(id, kMaxNameBytes), f(salt, kMaxNameBytes), f(hash, kMaxNameBytes), f(expires_unix_seconds);
  }
};

/// All tokens; replaces the previous message.
struct Tokens {
  std::vector<Token> tokens;
  template <class F>
  void fields(F& f) {
    f(tokens);
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
