#pragma once

#include <cstdint>
#include <string>

namespace centroid::bench {

/// GPU 0 and its driver.
struct CudaFacts {
  std::string name, capability, driver_cuda;  ///< "9.0"; the newest CUDA of the driver, "13.0"
  std::uint64_t memory_bytes = 0;
};
CudaFacts cuda_facts();

/// What a GPU's memory allows: x += g, and reading x once, with 16-byte accesses and nothing else.
/// `n` is a multiple of 4, the arrays stand on 16-byte boundaries. Return a cudaError_t.
int add_pass(const float* g, float* x, std::uint64_t n, unsigned processors, void* stream);
/// `out`: one word.
int read_pass(const float* x, std::uint64_t n, std::uint32_t* out, unsigned processors,
              void* stream);

}  // namespace centroid::bench
