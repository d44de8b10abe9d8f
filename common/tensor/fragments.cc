#include "common/tensor/fragments.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace centroid {

Result<FragmentPlan> FragmentPlan::make(const ChunkPlan& plan, std::uint32_t count) {
  const Manifest& manifest = plan.manifest();
  const auto tensors = static_cast<std::uint32_t>(
      std::ranges::count_if(manifest, [](const TensorInfo& info) { return info.elements() > 0; }));
  if (count == 0 || (count > 1 && count > tensors))
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(count) + " fragments of a model of " + std::to_string(tensors) +
                     " tensors: each fragment needs at least one (fragments)");
  FragmentPlan made;
  made.fragments_.resize(count);
  made.number_of_.resize(manifest.size());
  std::vector<std::uint32_t> order(manifest.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(
      order, [&](auto a, auto b) { return manifest[a].elements() > manifest[b].elements(); });
  for (const std::uint32_t tensor : order) {
    const auto lightest = std::ranges::min_element(
        made.fragments_, {}, [](const Fragment& fragment) { return fragment.elements; });
    lightest->elements += manifest[tensor].elements();
    made.number_of_[tensor] = static_cast<std::uint32_t>(lightest - made.fragments_.begin());
  }
  for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor) {
    Fragment& fragment = made.fragments_[made.number_of_[tensor]];
    fragment.tensors.emplace_back(tensor);
    const auto chunks = plan.chunks_of(TensorId(tensor));
    fragment.chunks.insert(fragment.chunks.end(), chunks.begin(), chunks.end());
  }
  return made;
}

}  // namespace centroid
