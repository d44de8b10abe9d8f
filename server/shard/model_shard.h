#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/journal_format.h"
#include "common/tensor/finite.h"
#include "common/tensor/fragments.h"
#include "server/aggregate/contribution_stage.h"
#include "server/aggregate/reply_encoder.h"
#include "server/store/parameter_store.h"

namespace centroid::server {

/// A stored contribution and its weight in the sum.
struct WeighedPart {
  const StagedContribution* contribution = nullptr;
  double weight = 0;
};

/// The chunks of a model on one server, and the operations of a round on them: sums, means, norm,
/// encoded results, step, commit. The leader and each shard server have one, so one server and
/// several compute the same bits.
///
/// place   `assign` says which chunks are this server's. The store follows with `apply_assignment`:
///         until then new chunks are being loaded, and chunks that leave are being fetched
/// thread  one. Each call works on one chunk: callers yield between calls
class ModelShard {
 public:
  struct Terms {
    std::string codec_down = "f32";  ///< of results
    std::uint64_t seed = 0;          ///< of its random numbers
    bool apply_on_worker = false;    ///< the shard makes the same step
    double clip_norm = 0;
    bool scales_rate = false;  ///< the learning rate depends on the number of contributions
  };
  /// Initially the shard has all chunks.
  /// fails  resource_exhausted: no address space; otherwise as the parser of codec_down
  static Result<std::unique_ptr<ModelShard>> make(ChunkPlan plan, FragmentPlan fragments,
                                                  std::unique_ptr<Optimizer> optimizer,
                                                  const Terms& terms);

  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  const ChunkPlan& plan() const { return store_.plan(); }
  const FragmentPlan& fragments() const { return fragments_; }

  // chunks of this server
  /// Set which chunks are this server's, by chunk; empty: all.
  void assign(std::vector<bool> is_mine);
  void apply_assignment();
  bool is_mine(ChunkId chunk) const { return is_mine_.empty() || is_mine_[chunk.value]; }
  std::size_t count_of_mine() const;

  // the open round
  /// Index of the fragment of the open round.
  std::uint32_t turn() const { return fragments_.turn(store_.optimizer_step()); }
  const FragmentPlan::Fragment& fragment() const { return fragments_[turn()]; }
  bool has_turn(const Chunk& chunk) const { return fragments_.number_of(chunk.tensor) == turn(); }
  /// Chunks of this fragment on this server.
  const std::vector<Chunk>& round_chunks() const { return parts_[turn()]; }

  /// Whether a chunk's step needs only the chunk's mean, and can be undone.
  bool is_early() const;
  /// What the journal stores of a chunk.
  journal::Form form() const;

  /// Sum a chunk of all `parts` into the spare plane.
  void add_up(const Chunk& chunk, std::span<const WeighedPart> parts);
  /// Sum of squares of the mean in the spare plane (PlaneNorm); 0 for a buffer.
  double squares(const Chunk& chunk) const;
  /// Make the step with the mean in the spare plane, by the server's rule or the workers'.
  void apply(const Chunk& chunk);
  /// Of the sum or mean in the spare plane, and of what the step made. While they are in the cache.
  Magnitude size_of_sum(const Chunk& chunk) const { return magnitude_of(store_.spare(chunk)); }
  /// Parameters and slots. `is_large`: a sum of the round was; else slots cannot have overflowed.
  bool is_result_finite(const Chunk& chunk, bool is_large);

  // the workers' step, before it is made: it cannot be undone
  /// Whether parameters and slots may not be finite after it. `is_large`: a sum of the round is
  bool may_overflow(bool is_large) const;
  /// Of what it makes of a chunk, with the mean in the spare plane, or as workers decode it.
  /// fails  as the codec
  Magnitude try_step(const Chunk& chunk) { return store_.try_step(chunk, store_.spare(chunk)); }
  Result<Magnitude> try_step(const Chunk& chunk, Bytes payload);
  /// Of all chunks of the round, if it is committed.
  void tried(Magnitude largest) { is_tried_moderate_ = largest == Magnitude::kModerate; }

  // encoded results
  bool encodes() const { return encoder_ != nullptr; }
  /// Valid only if encodes().
  ReplyEncoder& encoder() { return *encoder_; }
  const ReplyEncoder& encoder() const { return *encoder_; }
  /// Clear the residual, because workers join that have none.
  void clear_residual();
  /// Encode the chunk's mean, which is in the spare plane. Emits every payload that is complete.
  /// fails  as ReplyEncoder::complete
  Status encode(const Chunk& chunk, const ReplyEncoder::Emit& emit);
  /// Sum of squares of the mean as workers decode it; 0 for a buffer.
  /// fails  as the codec
  Result<double> squares(const Chunk& chunk, Bytes payload);
  /// Make the workers' step with the mean as they decode it.
  /// fails  as the codec
  Status apply(const Chunk& chunk, Bytes payload);

  /// Commit the round. The step has been made on each of its chunks.
  void commit();

 private:
  ModelShard(ChunkPlan plan, FragmentPlan fragments, std::unique_ptr<Optimizer> optimizer,
             bool stores_residual, const Terms& terms);
  std::span<float> decoded(const Chunk& chunk) { return std::span(mean_).first(chunk.elements); }

  const Terms terms_;
  ParameterStore store_;
  const FragmentPlan fragments_;
  std::unique_ptr<ReplyEncoder> encoder_;  ///< nullptr: results are not encoded
  std::vector<float> mean_;                ///< a chunk, decoded
  std::vector<bool> is_mine_;              ///< by chunk; empty: all
  std::vector<std::vector<Chunk>> parts_;  ///< by fragment: chunks of this server
  /// By fragment: `ParameterStore::loads` when its state was found moderate; 0: it is not
  std::vector<std::uint64_t> moderate_;
  bool is_tried_moderate_ = false;  ///< what the step makes that was tried last
};

}  // namespace centroid::server
