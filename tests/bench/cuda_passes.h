#pragma once

#include <cstdint>

namespace centroid::bench {

/// What a GPU's memory allows: x += g, and reading x once, with 16-byte accesses and nothing else.
/// `n` is a multiple of 4, the arrays stand on 16-byte boundaries. Return a cudaError_t.
int add_pass(const float* g, float* x, std::uint64_t n, unsigned processors, void* stream);
/// `out`: one word.
int read_pass(const float* x, std::uint64_t n, std::uint32_t* out, unsigned processors,
              void* stream);

}  // namespace centroid::bench
