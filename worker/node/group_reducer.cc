#include "worker/node/group_reducer.h"

#include "transport/collective/collectives.h"

namespace centroid::worker {

void GroupReducer::sum(std::span<float> values) { reduce(values, collective::Reduction::kSum); }

void GroupReducer::largest(std::span<float> values) { reduce(values, collective::Reduction::kMax); }

void GroupReducer::reduce(std::span<float> values, collective::Reduction reduction) {
  if (!status_.ok()) return;
  collective::CallOptions options;
  options.reduction = reduction;
  options.timeout = timeout_;
  const auto begin = std::chrono::steady_clock::now();
  const Status reduced = collective::all_reduce(group_, values, options);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  transfers_.seconds += time.count();
  transfers_.bytes += 2 * values.size_bytes() * (group_.world() - 1) / group_.world();
  if (!reduced.ok()) status_ = reduced.error().with_context("combine the parts of a layer");
}

}  // namespace centroid::worker
