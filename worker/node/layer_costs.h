#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "transport/collective/group.h"
#include "worker/model/model.h"

namespace centroid::worker {

/// Seconds that a layer takes for some samples.
struct LayerCost {
  double forward = 0, backward = 0;  ///< a model may do both of its last layer in the forward
  double accumulate = 0;             ///< adding its gradient to that of other micro-batches
  double sum() const { return forward + backward + accumulate; }
};
std::vector<double> sums_of(std::span<const LayerCost> costs);

/// More than processors cache, of the other layers.
inline constexpr std::uint64_t kCacheBytes = 64 << 20;

/// Bytes that measure_layers needs at once: a layer with its gradient and its activations, and at
/// most kCacheBytes that empty the caches.
///
/// fails  as measure_layers
Result<std::uint64_t> measuring_bytes(const Model& model, std::uint64_t samples);

/// Measure the layers on this machine, each alone, the median of some runs. Its parameters are not
/// in the caches, as in a step that has used the other layers since. Layers of equal shapes are
/// measured once. The time of many samples is estimated from that of fewer.
///
/// cost   some tenths of a second for each kind of layer; one pass of a sample if that is longer
/// fails  invalid_argument: the model has no passes
Result<std::vector<LayerCost>> measure_layers(const Model& model, std::uint64_t samples);

/// The costs of rank `from` on every rank, also if it has none; those of the others do not count.
///
/// order  every rank of the group calls it
/// fails  as an operation of collectives.h
Result<std::vector<double>> agree_on_costs(const collective::Group& group, std::size_t layers,
                                           std::vector<double> own, std::uint32_t from = 0);

}  // namespace centroid::worker
