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

/// The content of a sparse payload; all other numbers of the chunk are 0.
struct SparseNumbers {
  std::span<const std::uint32_t> index;  ///< ascending
  std::span<const float> value;
};

/// Numbers to bytes and back, for one chunk. Stateless and thread-safe; ErrorFeedback adds state.
class Codec {
 public:
  virtual ~Codec() = default;
  /// The spec of this codec in normal form ("bf16").
  virtual std::string spec() const = 0;
  /// Upper bound of `encode`'s output for n elements; with `decode_add` the receiver's length
  /// limit.
  virtual std::size_t max_bytes(std::size_t n) const = 0;
  /// Encode x into out (at least max_bytes(x.size())); returns the bytes written. `stream` numbers
  /// the random numbers of stochastic rounding: a hash of seed, rank, round and chunk, so that runs
  /// repeat and no two chunks round alike. Other codecs ignore it.
  virtual Result<std::size_t> encode(std::span<const float> x, MutableBytes out,
                                     std::uint64_t stream = 0) const = 0;
  /// acc[i] += scale * x̂[i]; or acc[i] = scale * x̂[i] if `first`. Two roundings (multiply, then
  /// add), so that every path computes the same bits; numbers missing in a sparse payload do not
  /// change acc[i] (0 if `first`). Refuses an incomplete or invalid payload (invalid_argument, with
  /// the cause) and changes nothing.
  virtual Status decode_add(Bytes in, float scale, bool first, std::span<float> acc) const = 0;
  /// out[i] = x̂[i].
  virtual Status decode(Bytes in, std::span<float> out) const = 0;
  /// Check a payload without decoding its numbers.
  /// fails  as `decode`
  virtual Status check(Bytes in, std::size_t n) const = 0;
  /// Sum of the squares of n x̂, in double, so that both sides of a contribution can state its
  /// norm: for every codec, the norm of what the receiver adds. One pass over the payload's values:
  /// NaN if their number is wrong; `check` reports other faults. It is finite exactly if all x̂
  /// are.
  virtual double squares(Bytes in, std::size_t n) const = 0;
  /// Whether all x̂ are finite. Reads values only: `decode` checks the payload.
  /// fails invalid_argument: names the first number that is not
  virtual Status check_finite(Bytes in) const = 0;
  /// The numbers of a sparse payload of n, valid until this thread's next call; none if the payload
  /// is dense: use `decode` then. Fails as `decode`.
  virtual Result<std::optional<SparseNumbers>> sparse(Bytes in, std::size_t n) const;
};

/// Make a codec from its spec: "f32", "bf16", "f16", "int8:rounding=stochastic", "sign",
/// "topk:0.01,values=int8" (spec.h has all fields). The sender's own part, error feedback and its
/// options, is in the spec too and done by ErrorFeedback.
/// fails invalid_argument, names the wrong field.
Result<std::unique_ptr<Codec>> make_codec(const std::string& spec);

}  // namespace centroid
