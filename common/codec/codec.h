#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid {

/// What a sparse payload holds; all other numbers of the chunk are 0.
struct SparseNumbers {
  std::span<const std::uint32_t> index;  ///< ascending
  std::span<const float> value;
};

/// Numbers to bytes and back, for one chunk. Stateless and thread-safe; state (error feedback) is a
/// decorator's.
class Codec {
 public:
  virtual ~Codec() = default;
  /// The spec this codec was made from, in normal form ("bf16").
  virtual std::string spec() const = 0;
  /// Upper bound of `encode`'s output for n elements; with `decode_add` the receiver's length
  /// limit.
  virtual std::size_t max_bytes(std::size_t n) const = 0;
  /// Encode x into out (at least max_bytes(x.size())); returns the bytes written. `stream` numbers
  /// the random numbers of stochastic rounding: a hash of seed, rank, round and chunk, so that runs
  /// repeat and no two chunks round alike. Others do not look at it.
  virtual Result<std::size_t> encode(std::span<const float> x, MutableBytes out,
                                     std::uint64_t stream = 0) const = 0;
  /// acc[i] += scale * x̂[i]; or acc[i] = scale * x̂[i] when `first`. Two roundings (multiply, then
  /// add), so that every path gives the same bits; where a sparse payload sends nothing, acc[i]
  /// stays (0 when `first`). Refuses a payload that is not whole and right (invalid_argument, with
  /// the cause) and changes nothing.
  virtual Status decode_add(Bytes in, float scale, bool first, std::span<float> acc) const = 0;
  /// out[i] = x̂[i].
  virtual Status decode(Bytes in, std::span<float> out) const = 0;
  /// Whether `decode` takes it, without making the numbers.
  /// fails  as `decode`
  virtual Status check(Bytes in, std::size_t n) const = 0;
  /// Sum of the squares of n x̂, in double, so that both sides of a contribution can say its norm:
  /// whatever the codec, of what the receiver adds. One pass over the payload's values, as they are
  /// coded: NaN when there are too few or too many of them, else `check` tells what is wrong. It is
  /// finite exactly when all x̂ are.
  virtual double squares(Bytes in, std::size_t n) const = 0;
  /// Whether all x̂ are finite. Looks at values alone: whether the payload is whole and right is
  /// what `decode` tells.
  /// fails invalid_argument: names the first number that is not
  virtual Status check_finite(Bytes in) const = 0;
  /// The numbers of a sparse payload of n, in memory that is good until this thread's next call;
  /// nothing when the payload is dense: `decode` it then. Fails as `decode`.
  virtual Result<std::optional<SparseNumbers>> sparse(Bytes in, std::size_t n) const;
};

/// Make a codec from its spec: "f32", "bf16", "f16", "int8:rounding=stochastic", "sign",
/// "topk:0.01,values=int8" (spec.h has all fields). What the sender alone does, error feedback and
/// its options, is part of the spec and left to ErrorFeedback.
/// fails invalid_argument, naming the field that is wrong.
Result<std::unique_ptr<Codec>> make_codec(const std::string& spec);

}  // namespace centroid
