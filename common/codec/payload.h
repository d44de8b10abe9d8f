#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/codec/int8.h"
#include "common/codec/spec.h"

namespace centroid {

/// The payloads of `int8`, `sign` and `topk`: dense or a selection of the numbers, by the first
/// byte.
///
/// wire    dense: u8 form (value type), values of all n. Sparse: u8 form (16 + value type), count
///         as LEB128, indices (index_code.h), values in the order of the indices. Values: f32 4
///         bytes; bf16 2; int8 and sign as in int8.h and sign.h
/// rule    dense wherever that is not longer, by count and n alone; dense f32 if a number is not
///         finite (or beyond int8::limit), so that it arrives
namespace payload {

std::size_t value_bytes(ValueType type, std::size_t n);
inline std::size_t dense_bytes(ValueType type, std::size_t n) { return 1 + value_bytes(type, n); }
/// Upper bound of `encode_sparse`.
std::size_t sparse_bytes(ValueType type, std::uint64_t count, std::uint64_t n);
/// Upper bound of the payloads of all `chunks` together, wherever the `count` numbers are; a chunk
/// whose part would be longer is dense.
std::size_t sparse_bytes(ValueType type, std::uint64_t count, std::uint64_t n,
                         std::uint64_t chunks);
inline bool is_dense_better(ValueType type, std::uint64_t count, std::uint64_t n) {
  return sparse_bytes(type, count, n) >= dense_bytes(type, n);
}

/// Write all of x as `type`, or as f32 if x has a number that is not finite; returns the bytes.
/// `out` has dense_bytes(kF32, n). bf16 is rounded to nearest even and stays finite.
std::size_t encode_dense(ValueType type, int8::Draw draw, std::span<const float> x, std::byte* out);
/// Write a selection of n numbers, finite and ascending; returns the bytes.
std::size_t encode_sparse(ValueType type, int8::Draw draw, std::span<const std::uint32_t> index,
                          std::span<const float> value, std::byte* out);

/// Memory for `read`, reused between calls.
struct Scratch {
  std::vector<std::uint32_t> index;
  std::vector<float> value;
};

/// A complete and valid payload.
struct View {
  bool is_sparse = false;
  ValueType type = ValueType::kF32;
  Bytes values;
  std::span<const std::uint32_t> index;  ///< of a sparse one, in the scratch memory

  std::size_t count(std::size_t n) const { return is_sparse ? index.size() : n; }
};

/// Check a payload of n numbers of `type` (dense f32 is always allowed, sparse only if
/// `may_be_sparse`) and unpack its indices. Prefetches the indexed numbers of `target`.
/// fails  invalid_argument with the cause: form, lengths, order or range of indices, values of a
///        sparse payload that are not finite
Result<View> read(Bytes in, ValueType type, bool may_be_sparse, std::size_t n, Scratch& scratch,
                  const float* target = nullptr);

/// As Codec::squares; ignores the indices.
double squares(Bytes in, ValueType type, bool may_be_sparse, std::size_t n);

/// Whether the first byte marks a sparse payload; the rest is unchecked.
bool is_sparse_payload(Bytes in);
/// As Codec::check_finite: only dense f32 may have numbers that are not finite, `read` refuses the
/// others.
Status check_finite(Bytes in);

/// out[i] = x̂[i], 0 for numbers that were not sent.
void decode(const View& view, Scratch& scratch, std::span<float> out);
/// acc[i] += weight * x̂[i] for sent numbers; `first`: acc[i] = weight * x̂[i], else 0.
void add(const View& view, Scratch& scratch, float weight, bool first, std::span<float> acc);
/// The sent numbers of a sparse payload, in the order of its indices (in the scratch memory).
std::span<const float> sent(const View& view, Scratch& scratch);

}  // namespace payload
}  // namespace centroid
