#pragma once

#include "common/base/result.h"

namespace centroid::worker {

/// Seconds of the processor that a rank spends for a byte that it sends, while it receives as many.
struct TransferCosts {
  double gather = 0, reduce = 0;  ///< all_gather, reduce_scatter
};

/// Measure them between two ranks in this process, over loopback with checksums. The system's part
/// of a network card is not in them.
///
/// cost   about a fifth of a second, 64 MiB
/// fails  as Mesh::open, Mesh::join and the operations
Result<TransferCosts> measure_transfers();

/// Processors that this process may use.
unsigned usable_cores();

}  // namespace centroid::worker
