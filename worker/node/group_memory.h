#pragma once

#include <cstdint>

#include "common/base/memory_limit.h"
#include "common/base/result.h"
#include "worker/data/data_source.h"
#include "worker/model/model.h"

namespace centroid::worker {

/// Samples of one forward pass of an evaluation.
std::uint64_t evaluate_samples(const Model& model);

/// Whether a model can be trained on a data set.
/// fails  invalid_argument: names the shapes of both.
Status check_fits(const Model& model, const Dataset& data);

/// Memory of a worker without that of the exchange. Bytes.
struct GroupMemory {
  std::uint64_t shared = 0;      ///< parameters, the reduced gradient, frozen weights
  std::uint64_t state = 0;       ///< of an optimizer that is here
  std::uint64_t data = 0;        ///< the data sets
  std::uint64_t batch = 0;       ///< one loaded batch of all devices
  std::uint64_t per_device = 0;  ///< of the device with the largest share: gradient, work space
  std::uint64_t devices = 1;
  std::uint64_t total() const { return shared + state + data + batch + devices * per_device; }
};
/// `on_gpus`: work space and gradients are on GPUs and not counted.
GroupMemory memory_of(const Model& model, std::uint64_t devices, std::uint64_t batch,
                      const DataSplit& data, bool on_gpus = false);
/// fails  failed_precondition: with both numbers, their parts, and what to change
Status check_memory(const GroupMemory& need, const MemoryLimit& limit);

}  // namespace centroid::worker
