#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace centroid {

/// Storage of a chunk's numbers in a payload. The values are on the wire
/// (docs/explanation/compression.md#payloads).
enum class ValueType : std::uint8_t { kF32 = 0, kBf16 = 1, kInt8 = 2, kSign = 3 };
std::string_view to_string(ValueType type);

enum class Rounding : std::uint8_t { kNearest, kStochastic };

/// The selected share of elements of top-k, in billionths, so that every machine counts the same.
struct KeepRatio {
  std::uint32_t billionths = 0;
  /// max(1, ceil(ratio * n)), at most n; 0 of nothing. In integers.
  std::uint64_t count_of(std::uint64_t n) const;
  bool operator==(const KeepRatio&) const = default;
};

/// The range of a top-k selection.
enum class Scope : std::uint8_t {
  kTensor,  ///< each tensor has its own share; may be sent while others are computed
  kGlobal   ///< one share of the complete gradient; nothing is sent before all of it is computed
};

/// The sender's state from round to round.
///
/// source  Lin et al. 2018, "Deep Gradient Compression", section 3 (momentum correction, local
///         clipping, momentum factor masking, warm-up)
struct FeedbackOptions {
  bool enabled = false;   ///< residual += gradient - sent
  float momentum = 0;     ///< 0: no momentum correction; the server then runs without momentum
  bool nesterov = false;  ///< of the momentum correction
  bool masking = true;    ///< momentum becomes 0 for sent elements
  float clip = 0;  ///< 0: none; else the cluster's norm limit; a worker's is clip / sqrt(world)
  std::uint32_t warmup = 0;  ///< rounds in which the ratio falls in steps of 4 from 25 %
  bool carry = true;         ///< a new generation retains the residual; otherwise it begins at 0
  bool operator==(const FeedbackOptions&) const = default;
};

/// A parsed text such as "topk:0.01,values=int8".
///
/// f32, bf16, f16          no selection, no scale
/// int8                    one scale per 256 numbers
/// sign                    a bit per number, one scale per 256
/// topk:RATIO              the largest magnitudes, RATIO in [0, 1] with at most nine decimals
///
/// field        of                 values                default
/// values       topk               f32, bf16, int8       f32
/// rounding     int8, topk         nearest, stochastic   nearest
/// scope        topk               tensor, global        tensor
/// feedback     all but f32        on, off               on for topk and sign, else off
/// momentum     topk               [0, 1)                0
/// nesterov     topk               on, off               off
/// masking      topk               on, off               on
/// clip         topk               > 0, or 0             0
/// warmup       topk               rounds                0
/// generation   all but f32        carry, reset          carry
struct CodecSpec {
  enum class Kind : std::uint8_t { kF32, kBf16, kF16, kInt8, kTopk, kSign };
  static constexpr std::size_t kKinds = 6;
  Kind kind = Kind::kF32;
  KeepRatio ratio;
  ValueType values = ValueType::kF32;
  Rounding rounding = Rounding::kNearest;
  Scope scope = Scope::kTensor;
  FeedbackOptions feedback;
  bool operator==(const CodecSpec&) const = default;

  /// fails invalid_argument: names the wrong field and its values.
  static Result<CodecSpec> parse(std::string_view text);
  /// "f32" to "sign".
  std::string_view name() const;
  /// Its payloads begin with a form (payload.h); other payloads are only the numbers.
  bool has_form() const {
    return kind == Kind::kInt8 || kind == Kind::kTopk || kind == Kind::kSign;
  }
  /// The normal form: fields that differ from their default, in the order of the table.
  std::string to_string() const;
};

}  // namespace centroid
