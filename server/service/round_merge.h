#pragma once

#include "server/service/chunk_moves.h"
#include "server/service/job_part.h"
#include "server/service/peer_exchange.h"
#include "server/service/round_attempts.h"

namespace centroid::server {

/// The end of a round: from its sums to the next version, on one server or on several. Of one
/// thread; long work gives others a turn.
class RoundMerge : private JobPart {
 public:
  RoundMerge(JobContext& context, LocalShard& local, RoundServers& round_servers,
             RoundJournal& round_journal, StateImages& images, ElasticRound& elastic,
             ChunkMoves& moves, RoundAttempts& attempts)
      : JobPart(context),
        local_(local),
        round_servers_(round_servers),
        round_journal_(round_journal),
        images_(images),
        elastic_(elastic),
        moves_(moves),
        attempts_(attempts) {}

  /// True: the next version is committed. False: it is not: a server was lost, or a number is not
  /// finite (OpenRound::overflow).
  Task<Result<bool>> merge(RoundDecision decision);
  /// A round whose numbers are not finite does not count: on no server it is left half made.
  Task<void> skip();
  void chunk_complete(ChunkId chunk, double total_weight);
  /// Why a round is not committed of which every contribution is finite, but not what they make;
  /// its culprit is the largest of them, where that is known.
  void explain_overflow(RoundDecision& decision) const;
  /// Wait for a checkpoint whose copies would not fit.
  Task<void> snapshot_room();

 private:
  /// A round on its way from its sums to the next version.
  struct Merging {
    Merging(Executor executor, RoundDecision what)
        : decision(std::move(what)),
          contributors(
              static_cast<std::uint32_t>(decision.contributors.size() + decision.late.size())),
          elsewhere(std::move(executor)) {}
    RoundDecision decision;
    std::uint32_t contributors;
    bool is_spread = false;     ///< the model lies on several servers
    std::uint64_t written = 0;  ///< its number in the journal, on one server
    Status prepared;            ///< by the other servers
    TaskGroup elsewhere;        ///< what they do of it; joined on every path
  };
  Task<Status> await_chunks();
  Task<Result<bool>> step_as_workers(Merging& round);
  Task<Result<bool>> step_here(Merging& round);
  Task<Status> write_commit(Merging& round);
  void close(const Merging& round);
  void count_round(const Merging& round);
  void add_to_curves(const Merging& round, double elapsed);
  bool give_up(const Error& why);
  Error halt_on_overflow(Merging& round);
  void emit(const Chunk& chunk);
  void encode_reply(ChunkId chunk);
  Task<void> sum_parts(double total_weight);

  LocalShard& local_;
  RoundServers& round_servers_;
  RoundJournal& round_journal_;
  StateImages& images_;
  ElasticRound& elastic_;
  ChunkMoves& moves_;
  RoundAttempts& attempts_;
};

}  // namespace centroid::server
