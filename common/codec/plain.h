#pragma once

#include <memory>

#include "common/codec/codec.h"
#include "common/codec/spec.h"

namespace centroid {

/// Every number separately, in the bytes of its type. One of
///
/// f32     4·n bytes, unchanged bits; no error
/// bf16    2·n bytes, the upper half of float32, rounded to nearest even;
///         |x - x̂| <= 2^-8 · |x| for normal x
/// f16     2·n bytes, IEEE half, rounded to nearest even; |x - x̂| <= 2^-11 · |x| from 2^-14 on,
///         2^-25 below; finite numbers beyond 65504 become 65504
///
/// wire    little-endian; only the numbers
/// nonfinite  NaN and infinities are preserved
/// thread  any
/// cost    one pass, no allocation
std::unique_ptr<Codec> make_plain_codec(const CodecSpec& spec);

/// Codec::check_finite of f32, also for payloads of f32 after a form byte.
Status check_finite_f32(Bytes numbers);
/// Codec::squares of all numbers in the bytes.
double squares_f32(Bytes numbers);
double squares_bf16(Bytes numbers);

}  // namespace centroid
