#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/optim/optimizer_config.h"
#include "common/proto/messages.h"
#include "server/store/parameter_store.h"

namespace centroid::server {

/// A copy of the state of all servers, for workers that need it (StateImages).
struct StateImage {
  Version version;
  std::vector<std::vector<float>> planes;
};

/// One attempt at a round, shared by the round loop (which fills it) and the members' outboxes
/// (which send from it).
struct Attempt {
  /// A finished chunk of the result, as it goes on the wire; its memory may not change while the
  /// attempt lives.
  struct Piece {
    ChunkId chunk;
    Bytes values;
    std::optional<std::uint32_t> crc;  ///< none: nobody needs it, or not yet known
  };
  Generation generation;
  Round round;
  std::uint32_t number = 0;
  bool resend = false;
  bool among_peers = false;  ///< the workers add the gradients; else this server does
  Version version;           ///< before the round
  std::uint64_t optimizer_step = 0;
  OptimizerConfig optimizer;                          ///< that makes the step
  std::vector<MemberId> members;                      ///< in rank order
  std::unordered_map<MemberId, std::uint32_t> ranks;  ///< the same, by member
  std::set<MemberId> left_out;                  ///< whose contribution the round closed without
  std::vector<std::string> late;                ///< whose contributions to earlier rounds count
  proto::Peers peers;                           ///< the same ranks, for each other
  std::vector<proto::RoundOpen> opens;          ///< one a rank
  std::vector<Piece> pieces;                    ///< in order of completion
  std::deque<std::vector<std::byte>> payloads;  ///< the pieces' memory when results are encoded
  std::optional<proto::RoundClosed> closed;
  std::vector<ParameterStore::Hold> holds;                                ///< on the pieces' memory
  std::function<void(const std::vector<ParameterStore::Hold>&)> release;  ///< gives it back
  ~Attempt() {
    if (release) release(holds);
  }
  void seat(std::vector<MemberId> in_order);
  void seat(MemberId last);
  std::optional<std::uint32_t> rank_of(MemberId member) const;
  struct Key {
    Generation generation;
    Round round;
    std::uint32_t number = 0;
    bool operator==(const Key&) const = default;
  };
  Key key() const { return {generation, round, number}; }
};

}  // namespace centroid::server
