#pragma once

#include <cstdint>

#include "worker/data/data_source.h"

namespace centroid::worker {

/// Split every class 80/20 (rounded to the nearest sample) by `seed`; both parts keep the order of
/// `all`.
///
/// cost  one copy of the data
DataSplit stratified_split(const Dataset& all, std::uint64_t seed);

}  // namespace centroid::worker
