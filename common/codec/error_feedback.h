#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/codec/payload.h"
#include "common/codec/spec.h"
#include "common/codec/topk.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"

namespace centroid {

/// An ErrorFeedback's residual (and momentum) on the gradient's device. It computes the same bits
/// as the host.
///
/// thread  one at a time
class DeviceResidual {
 public:
  struct Sent {
    std::size_t bytes = 0;
    std::uint64_t elements = 0;
    bool is_dense = false;
  };
  virtual ~DeviceResidual() = default;
  /// Add the gradient to the residual of [position, position + elements) of all tensors end to end,
  /// and select at `ratio`.
  virtual Status begin(std::uint64_t position, std::uint64_t elements, const std::string& name,
                       KeepRatio ratio) = 0;
  /// Whether `encode` finds the started unit ready. Never blocks.
  virtual Result<bool> done() = 0;
  /// The payload of `elements` numbers from `first` on of the started unit; once per number.
  virtual Result<Sent> encode(std::uint64_t first, std::uint64_t elements, MutableBytes out) = 0;
  /// Copy residual and momentum at [position, position + elements), and restore that copy, after
  /// all queued work.
  virtual Status keep(std::uint64_t position, std::uint64_t elements) = 0;
  virtual Status undo(std::uint64_t position, std::uint64_t elements) = 0;
  /// The copies, to the host, as with `read`; undefined without `keep`.
  virtual Status read_copies(std::span<float> residual, std::span<float> momentum) = 0;
  /// All of it, to and from the host. `momentum` is empty without momentum correction.
  virtual Status read(std::span<float> residual, std::span<float> momentum) = 0;
  virtual Status write(std::span<const float> residual, std::span<const float> momentum) = 0;
};

/// A sender's residual: the numbers that its codec did not send, which are added to the next
/// contribution.
///
/// steps   per round and unit (a tensor, everything with scope=global, a chunk with the dense
///         codecs): residual += gradient; encode; residual -= sent
/// exact   sent + residual = residual before + gradient, bit for bit, each element, every round;
///         with `sign` within the rounding of one subtraction
/// repeat  within a round a chunk has one payload, however often it is requested: attempts send the
///         same bytes. The next round's first `encode` commits the round before
/// nonfinite  the residual is always finite. A sum that is not finite refuses its unit: the payload
///         is an error, the unit's other sums stay in the residual; or, with `pass_nonfinite`, the
///         unit is sent densely as f32, so that it arrives
/// buffers their chunks are f32 (codec_of), and leave no residual; no selection or norm has them
/// options FeedbackOptions (spec.h): u = m u + g; residual += u (Nesterov: u = m (u + g); residual
///         += u + g); u = 0 for sent elements; g scaled to a norm of clip / sqrt(world) per unit
/// undo    a void round has no effect: computing it again sends the same bytes
/// owns    two floats per element, four with momentum (the value now and before the round), a copy
///         of a unit with buffers, and a round's payloads; with Residual::kCallers only these
/// thread  one at a time; selection runs on `pool` if there is one
/// source  Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"; Lin et al. 2018, "Deep Gradient
///         Compression"
class ErrorFeedback {
 public:
  /// Owner of the residual's memory.
  enum class Residual : std::uint8_t { kOwn, kCallers };
  /// For a codec whose spec has feedback=on. `plan` outlives it.
  /// fails invalid_argument: the spec, its feedback is off, or with kCallers momentum or clip
  static Result<std::unique_ptr<ErrorFeedback>> make(const std::string& spec, const ChunkPlan& plan,
                                                     ThreadPool* pool = nullptr,
                                                     Residual residual = Residual::kOwn);

  /// Move the residual to a device: then `encode` adds the device's gradient, not its argument.
  /// Between rounds, before the first; not with clip, pass_nonfinite or buffers. The next `encode`
  /// reports an error of the device.
  void use_device(std::unique_ptr<DeviceResidual> device);
  /// Start the chunk's unit on a device. True, as always without a device: `encode` of it does not
  /// wait. Never blocks if the units are prepared one after the other until each is ready. The
  /// gradient is as for `encode`, and may change once the chunk is encoded or the round is over.
  bool prepare(ChunkId chunk, std::uint64_t round);
  /// The payload of a chunk, valid until the round is over. `gradients`: all tensors end to end;
  /// those of the chunk's unit are read at the unit's first chunk.
  /// fails invalid_argument: numbers that are not finite or, with f16, too large
  Result<Bytes> encode(ChunkId chunk, std::span<const float> gradients, std::uint64_t round);
  /// The same with kCallers, for a sender whose round may become void: `residual` is from earlier
  /// rounds and only read; `sums` has the gradients and becomes the round's remainder. The caller
  /// uses it as the next `residual` if the round counts (`commit`), or drops it (`forget`). All
  /// tensors end to end, both.
  Result<Bytes> encode_onto(ChunkId chunk, std::span<const float> residual, std::span<float> sums,
                            std::uint64_t round);
  /// The chunks whose gradients `encode` of this one reads and writes: [first, last).
  std::pair<ChunkId, ChunkId> unit_of(ChunkId chunk) const;
  /// Whether all tensors must be ready before the first `encode`.
  bool needs_all() const { return spec_.scope == Scope::kGlobal; }

  /// The round's payloads were added to the sum: drop them.
  void commit();
  /// The payloads were not added and never will be, and the gradients are not computed again:
  /// residual += sent. Masked momentum stays masked.
  void take_back();
  /// The round is repeated without these payloads. Residual and momentum return to their state
  /// before the round, bit for bit.
  void undo();
  /// As `commit`, for payloads that may still be lost with their receiver, until `confirm_promised`
  /// or another promise. Uses memory for two residuals (four with momentum) until then.
  void commit_promised();
  void confirm_promised() { promised_.reset(); }
  /// The promised payloads are lost, and the gradients are computed again elsewhere: the state
  /// before them, bit for bit, if no round was committed since; otherwise their change of the
  /// residual is subtracted. Between rounds.
  void undo_promised();
  /// With kCallers: the round is void.
  void forget();
  /// residual += factor * left for the elements from `position` on: the part of this sender's
  /// contribution that others did not send, to be sent again. Between rounds. Sums that are not
  /// finite are not added.
  void add_residual(std::uint64_t position, std::span<const float> left, float factor);
  /// The same for single elements, at position + index.
  void add_residual(std::uint64_t position, std::span<const std::uint32_t> index,
                    std::span<const float> left, float factor);

  /// There are `world` senders now. The residual stays or becomes 0, as the spec defines.
  void begin_generation(std::uint32_t world);
  /// Reset residual, momentum and warm-up; an open round starts again.
  void reset();

  /// The state in a checkpoint, between rounds.
  struct State {
    std::span<const float> residual;
    std::span<const float> momentum;  ///< empty without momentum correction
    std::uint64_t rounds = 0;         ///< committed ones; determines the warm-up
  };
  State state() const;
  /// fails invalid_argument: other lengths, numbers that are not finite; nothing changes then
  Status restore(const State& state);

  void pass_nonfinite(bool pass) { pass_nonfinite_ = pass; }
  std::string spec() const { return spec_.to_string(); }
  /// The selected share in this round; falls during the warm-up.
  KeepRatio ratio() const;

  /// Totals since the start.
  struct Totals {
    std::uint64_t chunks = 0;
    std::uint64_t dense_chunks = 0;  ///< of top-k: dense was not longer, or not finite
    std::uint64_t elements = 0;      ///< 4 bytes each without a codec
    std::uint64_t sent = 0;          ///< elements
    std::uint64_t bytes = 0;
  };
  const Totals& totals() const { return totals_; }
  /// The round has payloads that are neither committed nor taken back.
  bool is_open() const { return is_open_; }
  /// Committed rounds; they determine the warm-up.
  std::uint64_t rounds() const { return rounds_; }
  void set_rounds(std::uint64_t rounds) { rounds_ = rounds; }
  /// Euclidean norm of the unsent remainder; one pass over it.
  double residual_norm() const;

 private:
  ErrorFeedback(CodecSpec spec, std::unique_ptr<Codec> codec, const ChunkPlan& plan,
                ThreadPool* pool, Residual residual);
  struct Unit {
    std::uint64_t begin = 0, elements = 0;
    std::uint64_t trained = 0;  ///< elements that are not of buffers
    std::size_t first_chunk = 0, chunks = 0;
    std::string name;
  };
  struct Payload {
    bool is_there = false;
    std::vector<std::byte> bytes;
  };
  Result<Bytes> payload_of(ChunkId chunk, std::span<const float> added, std::uint64_t round);
  std::span<const float> correct(const Unit& unit, std::span<const float> gradient);
  Result<std::span<const float>> send_buffers(const Unit& unit, std::span<const float> added);
  Status encode_unit(const Unit& unit, std::span<const float> gradient);
  Status encode_on_device(const Unit& unit);
  void finish_started();
  std::span<float> keep(const Unit& unit);
  Status keep_on_device(const Unit& unit);
  void drop_copies();
  void read_copies();
  void read_device() const;
  void write_device();
  static Error device_failed(const std::string& what, const Error& error);
  Status refused(const Unit& unit, std::uint64_t count, std::uint64_t first) const;
  void send_sparse(const Chunk& chunk, const Unit& unit, const TopkSelector::Selection& selected);
  Status send_dense(const Chunk& chunk, ValueType type);
  void store_payload(const Chunk& chunk, Bytes bytes, std::uint64_t sent);

  CodecSpec spec_;
  std::unique_ptr<Codec> codec_;
  const ChunkPlan& plan_;
  std::vector<Unit> units_;
  std::vector<std::uint32_t> units_of_;  // chunk
  TopkSelector selector_;
  bool owns_residual_;
  Buffer residual_, momentum_;
  Buffer residual_before_, momentum_before_;  // the round: of the units with copies
  std::vector<bool> has_copy_;                // unit; with a device it has the copies
  /// The state before a promised round, by unit; after another round: the difference of the states
  /// before and after it.
  struct Promised {
    enum class What : std::uint8_t { kNothing, kBefore, kDifference };
    Buffer residual, momentum;
    std::vector<What> what;
  };
  std::unique_ptr<Promised> promised_;
  std::unique_ptr<DeviceResidual> device_;  // then residual_ and momentum_ are copies for the host
  Status device_status_;
  const Unit* started_ = nullptr;  // on the device, and not encoded
  std::span<float> sums_;          // receives residual + gradient: usually residual_
  std::vector<Payload> payloads_;  // of the round
  std::uint64_t round_ = 0, rounds_ = 0;
  std::uint32_t world_ = 1;
  bool is_open_ = false;  // the round has payloads
  bool pass_nonfinite_ = false;
  Totals totals_;
  std::vector<float> corrected_, decoded_;
  std::vector<std::uint32_t> index_;
  std::vector<std::byte> out_;
  payload::Scratch scratch_;
};

}  // namespace centroid
