#include "server/store/plane.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/base/result.h"

namespace centroid::server {
namespace {

/// Set to zero without touching: released private pages read as zero when next touched.
void zero_lazily(MutableBytes memory) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t head = std::min(memory.size(), (page - address % page) % page);
  const std::size_t in_pages = (memory.size() - head) / page * page;
  std::byte* const pages = memory.data() + head;
  std::fill_n(memory.data(), head, std::byte{0});
  if (in_pages != 0 && madvise(pages, in_pages, MADV_DONTNEED) != 0)  // refused for locked pages
    std::fill_n(pages, in_pages, std::byte{0});
  std::fill_n(pages + in_pages, memory.size() - head - in_pages, std::byte{0});
}

}  // namespace

Plane::Plane(const ChunkPlan& plan, std::uint32_t tag)
    : memory_(static_cast<std::size_t>(plan.total_elements()) * sizeof(float)),
      holds_(plan.chunks().size()),
      tag_(tag) {
  zero_lazily({memory_.data(), memory_.size()});
}

void Plane::discard(const Chunk& chunk) {
  CENTROID_CHECK(!is_held(chunk.id));
  zero_lazily(std::as_writable_bytes(values(chunk)));
}

void Plane::release(ChunkId chunk) {
  CENTROID_CHECK(holds_[chunk.value] != 0);
  --holds_[chunk.value];
}

}  // namespace centroid::server
