#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "worker/parallel/shard_layout.h"

namespace centroid::parallel {

/// Divide a model's layers into consecutive stages, one for each rank of the pipeline in order. The
/// first (layers mod stages) stages have one layer more.
///
/// fails  invalid_argument: no stages, or more than there are layers
Result<std::vector<Range>> split_into_stages(std::uint64_t layers, std::uint32_t stages);

/// The same by the layers' measured costs, in any unit: the costliest stage is as cheap as it can
/// be, and among those the sum of the squares of the stages' costs is the least; then earlier
/// stages have more layers.
///
/// fails  invalid_argument: as above; a cost that is negative or not finite
/// cost   time stages * layers^2, memory stages * layers
Result<std::vector<Range>> split_into_stages(std::span<const double> costs, std::uint32_t stages);

/// Cost of the costliest stage over the mean of all, less 1: 0 if they are equal, or cost nothing.
double imbalance(std::span<const double> costs, std::span<const Range> stages);

}  // namespace centroid::parallel
