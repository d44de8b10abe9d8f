#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/journal_format.h"
#include "common/tensor/fragments.h"
#include "server/aggregate/contribution_stage.h"
#include "server/aggregate/reply_encoder.h"
#include "server/store/parameter_store.h"

namespace centroid::server {

/// A contribution that was stored whole, and what it counts in the sum.
struct WeighedPart {
  const StagedContribution* contribution = nullptr;
  double weight = 0;
};

/// The chunks of a model that lie on one server, and what a round does with them: sums, means,
/// norm, results through a codec, step, commit. The leader has one, and so has each shard server:
/// the bits are the same on one server and on several.
///
/// place   `assign` says which chunks are this server's. The store follows with `apply_assignment`:
///         until then what comes is being loaded, and what goes is being fetched
/// thread  one. Each call works on one chunk: callers give other work a turn in between
class ModelShard {
 public:
  struct Terms {
    std::string codec_down = "f32";  ///< of results
    std::uint64_t seed = 0;          ///< of its random numbers
    bool apply_on_worker = false;    ///< the shard follows with the same step
    double clip_norm = 0;
    bool scales_rate = false;  ///< the learning rate depends on the number of contributions
  };
  /// All chunks lie here at first.
  /// fails  resource_exhausted: no address space; as the parser of codec_down
  static Result<std::unique_ptr<ModelShard>> make(ChunkPlan plan, FragmentPlan fragments,
                                                  std::unique_ptr<Optimizer> optimizer,
                                                  const Terms& terms);

  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  const ChunkPlan& plan() const { return store_.plan(); }
  const FragmentPlan& fragments() const { return fragments_; }

  // which chunks lie here
  /// By chunk; empty: all.
  void assign(std::vector<bool> is_mine);
  void apply_assignment();
  bool is_mine(ChunkId chunk) const { return is_mine_.empty() || is_mine_[chunk.value]; }
  std::size_t count_of_mine() const;

  // the open round
  /// Whose turn it is, until the commit.
  std::uint32_t turn() const { return fragments_.turn(store_.optimizer_step()); }
  const FragmentPlan::Fragment& fragment() const { return fragments_[turn()]; }
  bool has_turn(const Chunk& chunk) const { return fragments_.number_of(chunk.tensor) == turn(); }
  /// Chunks of this fragment that lie here.
  const std::vector<Chunk>& round_chunks() const { return parts_[turn()]; }

  /// A chunk's step needs no more than the chunk's mean, and can be taken back.
  bool is_early() const;
  /// What the journal gets of a chunk.
  journal::Form form() const;

  /// A chunk of all `parts` into the spare plane.
  void add_up(const Chunk& chunk, std::span<const WeighedPart> parts);
  /// Sum of squares of the mean in the spare plane (PlaneNorm); of a buffer 0.
  double squares(const Chunk& chunk) const;
  /// The step from the mean in the spare plane, by the server's rule or as the workers make it.
  void apply(const Chunk& chunk);

  // results through a codec
  bool encodes() const { return encoder_ != nullptr; }
  /// While it encodes.
  ReplyEncoder& encoder() { return *encoder_; }
  const ReplyEncoder& encoder() const { return *encoder_; }
  /// What was left out before is forgotten: workers with no residual follow.
  void clear_residual();
  /// The chunk's mean is in the spare plane. Emits every payload that is known now.
  /// fails  as ReplyEncoder::complete
  Status encode(const Chunk& chunk, const ReplyEncoder::Emit& emit);
  /// Sum of squares of the mean that workers decode.
  /// fails  as the codec
  Result<double> squares(const Chunk& chunk, Bytes payload);
  /// The workers' step with the mean that they decode.
  /// fails  as the codec
  Status apply(const Chunk& chunk, Bytes payload);

  /// The step has been made on every chunk of the round.
  void commit();

 private:
  ModelShard(ChunkPlan plan, FragmentPlan fragments, std::unique_ptr<Optimizer> optimizer,
             bool stores_residual, const Terms& terms);
  std::span<float> decoded(const Chunk& chunk) { return std::span(mean_).first(chunk.elements); }

  const Terms terms_;
  ParameterStore store_;
  const FragmentPlan fragments_;
  std::unique_ptr<ReplyEncoder> encoder_;  ///< nullptr: results are plain numbers
  std::vector<float> mean_;                ///< a chunk, decoded
  std::vector<bool> is_mine_;              ///< by chunk; empty: all
  std::vector<std::vector<Chunk>> parts_;  ///< by fragment: what lies here
};

}  // namespace centroid::server
