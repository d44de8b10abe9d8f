#include "tests/support/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> allocated{0};

}  // namespace

std::size_t centroid::allocated_bytes() { return allocated; }

// In a separate file: if g++ 12 sees both operators it reports a mismatched pair.
void* operator new(std::size_t bytes) {
  allocated += bytes;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
