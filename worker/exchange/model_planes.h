#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/codec/codec.h"
#include "common/proto/messages.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"
#include "common/tensor/fragments.h"
#include "worker/exchange/cluster_exchange.h"

namespace centroid::worker {

/// The model as server and worker have agreed on it: the server's terms, how the model is cut, and
/// the planes of parameters, results and optimizer state.
///
/// thread  the link's; the loop reads when it has its first RoundOpen, and may swap the planes
///         between a round's end and its next `ready`
class ModelPlanes {
 public:
  ModelPlanes(const ClusterOptions& options, ExchangeMemory memory)
      : options_(options), memory_(std::move(memory)) {}

  /// Of the first join: make the planes.
  Status open(const proto::JoinReply& terms);
  /// Of a later join.
  /// fails  failed_precondition: what was fixed at the first join is not so any more
  Status check_unchanged(const proto::JoinReply& terms) const;
  void set_terms(proto::JoinReply terms) { terms_ = std::move(terms); }

  const proto::JoinReply& terms() const { return terms_; }
  bool checks_nonfinite() const {
    return terms_.nonfinite != static_cast<std::uint8_t>(proto::NonFinite::kPropagate);
  }
  const ExchangeMemory& memory() const { return memory_; }
  const ChunkPlan& plan() const { return plan_; }
  const FragmentPlan& fragments() const { return fragments_; }
  const FragmentPlan::Fragment& fragment_of(const proto::RoundOpen& open) const {
    return fragments_[fragments_.turn(open.optimizer_step)];
  }

  std::span<float> params() const { return params_; }
  std::span<float> results() const { return results_; }  ///< the plane in which they arrive
  void swap_planes() { std::swap(params_, results_); }
  std::span<std::vector<float>> slots() { return slots_; }
  std::span<const std::vector<float>> slots() const { return slots_; }
  std::size_t planes() const { return 1 + slots_.size(); }
  /// 0: the parameters, then the slots.
  std::span<float> plane(std::size_t number) {
    return number == 0 ? params_ : std::span<float>(slots_[number - 1]);
  }
  std::span<const float> gradients_of(const Chunk& chunk) const {
    return memory_.gradients.subspan(chunk.position, chunk.elements);
  }
  /// Whether all parameters of a fragment are moderate (common/tensor/finite.h), and its slots come
  /// from moderate gradients; false: it is not known.
  bool is_moderate(std::uint32_t fragment) const { return moderate_[fragment]; }
  void set_moderate(std::uint32_t fragment, bool is) { moderate_[fragment] = is; }
  /// Of a step that was tried: the same of what it would make, and the factor of its mean.
  struct Tried {
    bool is_moderate = false;
    float clip_factor = 1;
  };
  void set_tried(Tried tried) { tried_ = tried; }
  std::optional<Tried> take_tried() { return std::exchange(tried_, std::nullopt); }
  /// The values that the seed gives.
  void initialize();

  /// Results come through a codec: one chunk of them, decoded into `out` (chunk.elements).
  bool results_are_encoded() const { return codec_down_ != nullptr; }
  Status decode_result(const Chunk& chunk, std::span<float> out) const;
  /// Its numbers, when they are few (Codec::sparse).
  Result<std::optional<SparseNumbers>> sparse_result(const Chunk& chunk) const;

  /// Memory for so many bytes of a result, or of a chunk of a plane.
  /// fails  invalid_argument: no such chunk or plane, or it has another size
  Result<MutableBytes> result_memory(const Chunk& chunk, std::uint64_t bytes);
  Result<MutableBytes> plane_memory(const proto::StateChunk& head, std::uint64_t bytes);

 private:
  const Codec& codec_of_result(const Chunk& chunk) const;
  Status begin_local(const proto::JoinReply& terms);
  Status open_results(const proto::JoinReply& terms);

  const ClusterOptions& options_;
  ExchangeMemory memory_;
  proto::JoinReply terms_;
  ChunkPlan plan_;
  FragmentPlan fragments_;
  Buffer second_plane_;
  std::span<float> params_, results_;
  std::vector<std::vector<float>> slots_;
  std::vector<bool> moderate_;  // by fragment
  std::optional<Tried> tried_;
  std::unique_ptr<Codec> codec_down_;                    // nullptr: results are floats
  std::vector<std::vector<std::byte>> encoded_results_;  // per chunk
};

}  // namespace centroid::worker
