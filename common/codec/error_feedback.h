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

/// An ErrorFeedback's residual (and momentum) on a device, beside the gradient: what it computes is
/// what the host would, bit for bit.
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
  /// Whether `encode` will find ready what was begun. Never blocks.
  virtual Result<bool> done() = 0;
  /// The payload of `elements` numbers from `first` on of those that were begun; once per number.
  virtual Result<Sent> encode(std::uint64_t first, std::uint64_t elements, MutableBytes out) = 0;
  /// Copy what residual and momentum are at [position, position + elements), and bring that copy
  /// back, behind what was queued.
  virtual Status keep(std::uint64_t position, std::uint64_t elements) = 0;
  virtual Status undo(std::uint64_t position, std::uint64_t elements) = 0;
  /// The copies, to the host, as with `read`. Where nothing was kept they are of no account.
  virtual Status read_kept(std::span<float> residual, std::span<float> momentum) = 0;
  /// All of it, to and from the host. `momentum` is empty without momentum correction.
  virtual Status read(std::span<float> residual, std::span<float> momentum) = 0;
  virtual Status write(std::span<const float> residual, std::span<const float> momentum) = 0;
};

/// A sender's memory of what its codec left out: what is not sent now is sent later.
///
/// steps   per round and unit (a tensor, everything with scope=global, a chunk with the dense
///         codecs): residual += gradient; encode; residual -= sent
/// exact   sent + residual = residual before + gradient, bit for bit, each element, every round;
///         with `sign` within the rounding of one subtraction
/// repeat  within a round a chunk has one payload, however often it is asked for: attempts send the
///         same bytes. The next round's first `encode` commits the round before
/// nonfinite  the residual is finite always. A sum that is not finite refuses its unit: the payload
///         is an error, the unit's other sums stay in the residual; or, with `pass_nonfinite`, the
///         unit is sent densely as f32, so that it arrives
/// options FeedbackOptions (spec.h): u = m u + g; residual += u (Nesterov: u = m (u + g); residual
///         += u + g); u = 0 where something was sent; g scaled to a norm of clip / sqrt(world) per
///         unit
/// undo    a round that never was leaves no trace: what is computed again sends the same bytes
/// owns    two floats per element, four with momentum (of each the present one and the one before
///         the round), and a round's payloads; made with Residual::kCallers only the payloads
/// thread  one at a time; selection runs on `pool` when there is one
/// source  Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"; Lin et al. 2018, "Deep Gradient
///         Compression"
class ErrorFeedback {
 public:
  /// Whose memory the residual is in.
  enum class Residual : std::uint8_t { kOwn, kCallers };
  /// For a codec whose spec says feedback=on. `plan` outlives it.
  /// fails invalid_argument: the spec, its feedback is off, or with kCallers momentum or clip
  static Result<std::unique_ptr<ErrorFeedback>> make(const std::string& spec, const ChunkPlan& plan,
                                                     ThreadPool* pool = nullptr,
                                                     Residual residual = Residual::kOwn);

  /// From now on the residual is there, and `encode` adds the device's gradient, not the one it is
  /// given. Between rounds, before the first; not with clip or pass_nonfinite. An error of the
  /// device is told by the next `encode`.
  void use_device(std::unique_ptr<DeviceResidual> device);
  /// Have a device begin with the chunk's unit; true, as always without a device: `encode` of it
  /// will not wait. Never blocks while one unit after the other is asked for until it is ready.
  /// The gradient is as for `encode`, and may change when the chunk is encoded or the round over.
  bool prepare(ChunkId chunk, std::uint64_t round);
  /// The payload of a chunk, valid until the round is over. `gradients`: all tensors end to end;
  /// those of the chunk's unit are read when the unit's first chunk is asked for.
  /// fails invalid_argument: numbers that are not finite or, with f16, too large
  Result<Bytes> encode(ChunkId chunk, std::span<const float> gradients, std::uint64_t round);
  /// The same with kCallers, for a sender whose round may turn out never to have been: `residual`
  /// is what earlier rounds left and is only read; `sums` holds the gradients and becomes what this
  /// round leaves. The caller takes it for the next `residual` when the round counts (`commit`), or
  /// drops it (`forget`). All tensors end to end, both.
  Result<Bytes> encode_onto(ChunkId chunk, std::span<const float> residual, std::span<float> sums,
                            std::uint64_t round);
  /// The chunks whose gradients `encode` of this one reads and writes: [first, last).
  std::pair<ChunkId, ChunkId> unit_of(ChunkId chunk) const;
  /// Whether all tensors must be ready before the first `encode`.
  bool needs_all() const { return spec_.scope == Scope::kGlobal; }

  /// The round's payloads were added to the sum: they are forgotten.
  void commit();
  /// They were not, and will not be, nor are the gradients computed again: residual += sent.
  /// Momentum that was masked stays masked.
  void take_back();
  /// They were not, and the round is begun anew, here or by others: residual and momentum are those
  /// before it, bit for bit.
  void undo();
  /// As `commit`, of payloads that may yet be lost with who holds them, until `promise_kept` or
  /// another one. Memory as for two residuals (with momentum four) as long.
  void commit_promised();
  void promise_kept() { promised_.reset(); }
  /// They are lost, and the gradients are computed again by others: bit for bit what was before
  /// them where no round has been committed since; else what they had changed in the residual is
  /// taken out of it. Between rounds.
  void undo_promised();
  /// With kCallers: the round never was.
  void forget();
  /// residual += factor * left for the elements from `position` on: what others left out of what
  /// this sender gave, to be sent again. Between rounds. Sums that are not finite are not taken.
  void add_left(std::uint64_t position, std::span<const float> left, float factor);
  /// The same for single elements, at position + index.
  void add_left(std::uint64_t position, std::span<const std::uint32_t> index,
                std::span<const float> left, float factor);

  /// There are `world` senders now. Keeps the residual or begins at 0, as the spec says.
  void begin_generation(std::uint32_t world);
  /// Residual, momentum and warm-up from the beginning; a round under way starts again.
  void reset();

  /// What a checkpoint holds, between rounds.
  struct State {
    std::span<const float> residual;
    std::span<const float> momentum;  ///< empty without momentum correction
    std::uint64_t rounds = 0;         ///< committed ones; the warm-up goes by them
  };
  State state() const;
  /// fails invalid_argument: other lengths, numbers that are not finite; nothing changes then
  Status restore(const State& state);

  void pass_nonfinite(bool pass) { pass_nonfinite_ = pass; }
  std::string spec() const { return spec_.to_string(); }
  /// The share that this round keeps; falls during the warm-up.
  KeepRatio ratio() const;

  /// Sums since the beginning.
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
  /// Committed rounds; the warm-up goes by them.
  std::uint64_t rounds() const { return rounds_; }
  void set_rounds(std::uint64_t rounds) { rounds_ = rounds; }
  /// Euclidean norm of what is still to be sent; one pass over it.
  double residual_norm() const;

 private:
  ErrorFeedback(CodecSpec spec, std::unique_ptr<Codec> codec, const ChunkPlan& plan,
                ThreadPool* pool, Residual residual);
  struct Unit {
    std::uint64_t begin = 0, elements = 0;
    std::size_t first_chunk = 0, chunks = 0;
    std::string name;
  };
  struct Payload {
    bool is_there = false;
    std::vector<std::byte> bytes;
  };
  Result<Bytes> payload_of(ChunkId chunk, std::span<const float> added, std::uint64_t round);
  std::span<const float> correct(const Unit& unit, std::span<const float> gradient);
  Status encode_unit(const Unit& unit, std::span<const float> gradient);
  Status encode_on_device(const Unit& unit);
  void end_begun();
  Status keep(const Unit& unit);
  void drop_kept();
  void read_kept();
  void read_device() const;
  void write_device();
  static Error device_failed(const std::string& what, const Error& error);
  Status refused(const Unit& unit, std::uint64_t count, std::uint64_t first) const;
  void send_sparse(const Chunk& chunk, const Unit& unit, const TopkSelector::Selection& kept);
  Status send_dense(const Chunk& chunk, ValueType type);
  void keep_payload(const Chunk& chunk, std::size_t bytes, std::uint64_t sent);

  CodecSpec spec_;
  std::unique_ptr<Codec> codec_;
  const ChunkPlan& plan_;
  std::vector<Unit> units_;
  std::vector<std::uint32_t> units_of_;  // chunk
  TopkSelector selector_;
  bool owns_residual_;
  Buffer residual_, momentum_;
  Buffer residual_before_, momentum_before_;  // the round: of the units that are kept
  std::vector<bool> is_kept_;                 // unit; with a device its copies are there
  /// What was before a round that is promised, by unit; once there was another round: what was
  /// before less what was after it.
  struct Promised {
    enum class What : std::uint8_t { kNothing, kBefore, kDifference };
    Buffer residual, momentum;
    std::vector<What> what;
  };
  std::unique_ptr<Promised> promised_;
  std::unique_ptr<DeviceResidual> device_;  // then residual_ and momentum_ are copies for the host
  Status device_status_;
  const Unit* begun_ = nullptr;    // on the device, and not encoded
  std::span<float> sums_;          // where residual and gradient are added: mostly residual_
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
