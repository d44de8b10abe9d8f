#pragma once

#include <memory>

#include "common/codec/codec.h"
#include "common/codec/spec.h"

namespace centroid {

/// Every number in eight bits, with a scale per 256 of them.
///
/// wire    payload.h, dense: 1 + n + 2·ceil(n / 256) bytes
/// error   int8.h; with rounding=stochastic unbiased, from `stream`, so that runs repeat
/// nonfinite  such numbers arrive: the payload is then dense f32
/// cost    less than a memcpy of the numbers with AVX-512 (docs/explanation/compression.md#speed)
/// source  Dettmers et al. 2022 (blockwise scales), Alistarh et al. 2017 (stochastic rounding)
///
/// or
///
/// The sign of every number, with the mean magnitude of each 256.
///
/// wire    payload.h, dense: 1 + ceil(n / 8) + 2·ceil(n / 256) bytes
/// error   sign.h; the sender stores it as residual (error_feedback.h)
/// nonfinite  as above
/// source  Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Zheng et al. 2019 (blocks)
///
/// or
///
/// The ceil(ratio·n) numbers of a chunk with the largest magnitude (topk.h); the others are 0.
///
/// wire    payload.h: about 1.0 byte per index at 1 %, 1.4 at 0.1 %, and 4, 2 or 1 per value
/// error   numbers that are not sent are lost unless the sender stores them (error_feedback.h);
///         sent values as exact as their type: f32 none, bf16 2^-8 relative, int8 as above over the
///         selected ones
/// nonfinite  as above
/// source  Aji and Heafield 2017, "Sparse communication for distributed gradient descent"
std::unique_ptr<Codec> make_payload_codec(const CodecSpec& spec);

}  // namespace centroid
