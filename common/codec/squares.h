#pragma once

#include <span>

#include "common/codec/codec.h"

namespace centroid {

/// Sum of the squares of x̂ that a payload gives, so that both sides of a contribution can say its
/// norm: whatever the codec, of what the receiver adds. NaN when the payload is not whole and
/// right. `scratch`: of the chunk's length.
double squares_of(const Codec& codec, Bytes payload, std::span<float> scratch);

/// Whether a norm is the root of `squares`, within a thousandth: both sides add in their own order,
/// and a client of another make may add in float32.
bool is_norm_of(double norm, double squares);

}  // namespace centroid
