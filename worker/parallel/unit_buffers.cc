#include "worker/parallel/unit_buffers.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

namespace centroid::parallel {
namespace {

/// Not aligned to huge pages: that takes up to 2 MiB more of a limited address space for each.
Buffer allocate(std::uint64_t elements) {
  constexpr std::align_val_t kLine{64};
  const std::size_t bytes = elements * sizeof(float);
  const std::shared_ptr<void> memory(::operator new(bytes, kLine),
                                     [](void* taken) { ::operator delete(taken, kLine); });
  return Buffer(static_cast<std::byte*>(memory.get()), bytes, memory);
}

std::uint64_t elements_of(const Buffer& buffer) { return buffer.size() / sizeof(float); }

}  // namespace

Buffer UnitBuffers::take(std::uint64_t elements) {
  if (elements == 0) return {};
  used_ += elements;
  most_ = std::max(most_, used_);
  // The last one given back: it may still be in the cache. Units of a model have few sizes.
  const auto found = std::find_if(spares_.rbegin(), spares_.rend(), [&](const Buffer& spare) {
    return elements_of(spare) == elements;
  });
  if (found != spares_.rend()) {
    Buffer out = std::move(*found);
    spares_.erase(std::next(found).base());
    spare_ -= elements;
    return out;
  }
  trim();  // first, so that both never exist at once
  return allocate(elements);
}

void UnitBuffers::give_back(Buffer buffer) {
  const std::uint64_t elements = elements_of(buffer);
  if (elements == 0) return;
  used_ -= elements;
  spare_ += elements;
  spares_.push_back(std::move(buffer));
  trim();
}

void UnitBuffers::drop_spares() {
  spares_.clear();
  spare_ = 0;
}

void UnitBuffers::trim() {
  auto end = spares_.begin();
  for (; used_ + spare_ > most_; ++end) spare_ -= elements_of(*end);
  spares_.erase(spares_.begin(), end);
}

std::span<float> UnitParts::find(std::uint64_t elements) {
  for (Slab& slab : slabs_) {
    if (elements_of(slab.memory) - slab.used < elements) continue;
    return slab.memory.as<float>().subspan(std::exchange(slab.used, slab.used + elements),
                                           elements);
  }
  return {};
}

std::span<float> UnitParts::add(Buffer unit, std::uint64_t used) {
  slabs_.push_back({std::move(unit), used});
  return slabs_.back().memory.as<float>().first(used);
}

void UnitParts::clear() {
  for (Slab& slab : slabs_) buffers_.give_back(std::move(slab.memory));
  slabs_.clear();
}

}  // namespace centroid::parallel
