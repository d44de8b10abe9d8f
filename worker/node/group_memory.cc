#include "worker/node/group_memory.h"

#include <algorithm>
#include <string>

#include "common/tensor/chunk_plan.h"
#include "worker/data/batch_loader.h"

namespace centroid::worker {

namespace {

/// Rows of one forward pass of `evaluate`, samples or tokens: bounds the work space, and is large
/// enough for an efficient BLAS product.
constexpr std::uint64_t kEvaluateRows = 256;
constexpr std::uint64_t kEvaluateTokens = 2048;

std::uint64_t bytes_of(const Dataset& data) {
  return sizeof(float) * (data.x.size() + data.vals.size()) +
         sizeof(std::uint32_t) * (data.y.size() + data.cols.size() + data.tokens.size()) +
         sizeof(std::uint64_t) * (data.row_begin.size() + data.token_begin.size());
}

}  // namespace

std::uint64_t evaluate_samples(const Model& model) {
  if (model.vocabulary() == 0) return kEvaluateRows;
  return std::max<std::uint64_t>(kEvaluateTokens / model.features(), 1);
}

Status check_fits(const Model& model, const Dataset& data) {
  const auto has = [](std::uint64_t features, std::uint32_t vocabulary, std::uint64_t classes,
                      bool is_language) {
    std::string text;
    if (vocabulary == 0)
      text = std::to_string(features) + " features";
    else
      text = "sequences of " + std::to_string(features) + " tokens out of " +
             std::to_string(vocabulary);
    return text +
           (is_language ? " without classes" : " and " + std::to_string(classes) + " classes");
  };
  const bool of_data = data.targets() > 1, of_model = model.targets() > 1;
  const bool fits = data.features == model.features() && data.vocabulary == model.vocabulary() &&
                    of_data == of_model && data.classes == model.classes();
  if (fits) return {};
  return Error(ErrorCode::kInvalidArgument,
               "model " + model.spec() + " does not fit the data: it takes " +
                   has(model.features(), model.vocabulary(), model.classes(), of_model) + ", '" +
                   data.name + "' has " +
                   has(data.features, data.vocabulary, data.classes, of_data));
}

GroupMemory memory_of(const Model& model, std::uint64_t devices, std::uint64_t batch,
                      const DataSplit& data, bool on_gpus) {
  std::uint64_t plane = 0;
  for (const auto& tensor : model.manifest()) plane += tensor.bytes();
  const std::uint64_t share = part_of(batch, devices, 0).size();
  const std::uint64_t rows = evaluate_samples(model);
  GroupMemory need;
  need.shared = 2 * plane + model.frozen_bytes();
  need.data = bytes_of(data.train) + bytes_of(data.test);
  need.batch = batch_bytes(data.train, batch);
  need.per_device = (devices > 1 ? plane : 0) + batch_bytes(data.test, rows);
  if (on_gpus)
    need.per_device += 2 * batch_bytes(data.train, share);  // the sources of its copies
  else
    need.per_device += std::max(model.work_bytes(share, true), model.work_bytes(rows, false));
  need.devices = devices;
  return need;
}

Status check_memory(const GroupMemory& need, const MemoryLimit& limit) {
  if (need.total() <= limit.bytes) return {};
  const auto text = [](std::uint64_t bytes) { return std::to_string(bytes); };
  return Error(ErrorCode::kFailedPrecondition,
               "model, data and batch need " + text(need.total()) + " bytes, " + limit.source +
                   " allows " + text(limit.bytes) + ": " + text(need.shared) +
                   " for parameters, gradient and frozen weights, " + text(need.state) +
                   " for the optimizer, " + text(need.data) + " for the data, " + text(need.batch) +
                   " for a batch, and for each of " + text(need.devices) + " devices " +
                   text(need.per_device) +
                   ". Lower --batch, the model's context or width, or the number of devices; "
                   "memory_limit overrides the limit");
}

}  // namespace centroid::worker
