#pragma once

#include <memory>

#include "common/codec/codec.h"

namespace centroid {

/// Four bytes per number, the bits as they are.
///
/// wire    4·n bytes, little-endian float32
/// error   none
/// cost    one pass, no allocation; thread any
std::unique_ptr<Codec> make_f32_codec();

/// Two bytes per number: the upper half of float32, rounded to nearest even.
///
/// wire    2·n bytes, little-endian bfloat16
/// error   |x - x̂| <= 2^-8 · |x| for normal x; NaN stays NaN, infinities stay
/// cost    one pass, no allocation; thread any
std::unique_ptr<Codec> make_bf16_codec();

}  // namespace centroid
