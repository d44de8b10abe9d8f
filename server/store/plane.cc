#include "server/store/plane.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/base/result.h"

namespace centroid::server {
namespace {

/// Set to zero without touching: private pages that are given back read as zero when next touched.
void zero_lazily(const Buffer& buffer) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  const std::size_t head = std::min(buffer.size(), (page - address % page) % page);
  const std::size_t whole = (buffer.size() - head) / page * page;
  std::byte* const pages = buffer.data() + head;
  std::fill_n(buffer.data(), head, std::byte{0});
  if (whole != 0 && madvise(pages, whole, MADV_DONTNEED) != 0)  // refused for locked pages
    std::fill_n(pages, whole, std::byte{0});
  std::fill_n(pages + whole, buffer.size() - head - whole, std::byte{0});
}

}  // namespace

Plane::Plane(const ChunkPlan& plan, std::uint32_t tag)
    : memory_(static_cast<std::size_t>(plan.total_elements()) * sizeof(float)),
      holds_(plan.chunks().size()),
      tag_(tag) {
  zero_lazily(memory_);
}

void Plane::release(ChunkId chunk) {
  CENTROID_CHECK(holds_[chunk.value] != 0);
  --holds_[chunk.value];
}

}  // namespace centroid::server
