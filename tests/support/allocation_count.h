#pragma once

#include <cstddef>

namespace centroid {

/// Bytes that this program has allocated by `new` so far, on all threads. Link allocation_count.cc:
/// it replaces operator new.
std::size_t allocated_bytes();

}  // namespace centroid
