#pragma once

#include <span>

#include "server/rows/row_spec.h"

namespace centroid::server {

/// Values of a row that was never updated; `out` has spec.dim elements.
void initial_row(const RowSpec& spec, std::uint64_t key, std::span<float> out);
/// Optimizer state of a row with these values before its first update.
void initial_slots(const RowSpec& spec, std::span<const float> values, std::span<float> slots);

/// One update of one row, in float32, every operation is rounded separately: the same bits
/// everywhere. Finite gradients within kMaxRowGradient give finite rows (results are clamped to
/// 1e30).
///
/// rate     of this update: spec.learning_rate by the schedule
/// sgd      w -= rate g
/// adagrad  s += mean over the row of g^2; w -= rate g / (sqrt(s) + epsilon)
/// ftrl     per element: n' = n + g^2, S = (beta + sqrt n') / rate + l2; z = g + (w == 0 ? z
///          : -S w - sign(w) l1), which is z + g - sigma w with sigma = S - S of the step before;
///          w = |z| <= l1 ? 0 : -(z - sign(z) l1) / S; at a rate below 1e-15 only n changes
/// slots    adagrad: s; ftrl: z of all elements, then n
/// source   Duchi, Hazan, Singer 2011 (Adagrad); McMahan et al. 2013, "Ad click prediction" (FTRL)
void update_row(const RowSpec& spec, double rate, std::span<const float> gradient,
                std::span<float> values, std::span<float> slots);

}  // namespace centroid::server
