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
  const Status reduced = collective::all_reduce(group_, values, options);
  if (!reduced.ok()) status_ = reduced.error().with_context("combine the parts of a layer");
}

}  // namespace centroid::worker
