#include "worker/parallel/element_map.h"

namespace centroid::parallel {

ElementMap::ElementMap(const Manifest& model, Range own, std::span<const Manifest> parts,
                       std::uint32_t part) {
  std::uint64_t first = 0, begin = 0;
  for (std::size_t i = 0; i < own.end(); first += model[i++].elements()) {
    if (i < own.begin) continue;
    const TensorInfo& whole = model[i];
    const TensorInfo& here = parts.empty() ? whole : parts[part][i];
    Block block{begin, here.elements(), first, here.elements(), 0, true};
    if (block.elements == whole.elements()) {
      block.is_own = part == 0;
    } else if (here.shape.back() == whole.shape.back()) {  // some rows
      for (std::uint32_t rank = 0; rank < part; ++rank) block.first += parts[rank][i].elements();
    } else {
      block.width = here.shape.back();
      block.stride = whole.shape.back();
      for (std::uint32_t rank = 0; rank < part; ++rank) block.first += parts[rank][i].shape.back();
    }
    begin += block.elements;
    blocks_.push_back(block);
  }
}

std::vector<ElementMap::Run> ElementMap::runs(Range elements) const {
  std::vector<Run> out;
  for (const Block& block : blocks_) {
    const std::uint64_t end = std::min(elements.end(), block.begin + block.elements);
    for (std::uint64_t at = std::max(elements.begin, block.begin); at < end;) {
      const std::uint64_t row = (at - block.begin) / block.width,
                          column = (at - block.begin) % block.width,
                          count = std::min(end - at, block.width - column),
                          first = block.first + row * block.stride + column;
      if (!out.empty() && out.back().elements.end() == first && out.back().is_own == block.is_own)
        out.back().elements.count += count;
      else
        out.push_back({at - elements.begin, {first, count}, block.is_own});
      at += count;
    }
  }
  return out;
}

}  // namespace centroid::parallel
