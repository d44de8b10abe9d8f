#include "common/codec/cuda/dense.cuh"
#include "common/codec/cuda/kernels.h"
#include "common/codec/cuda/select.cuh"

namespace centroid::cuda {
namespace {

/// What the last launches said; a launch that fails queues nothing.
int launched() { return static_cast<int>(cudaGetLastError()); }

}  // namespace

std::size_t select_bytes(std::uint64_t n) { return select_memory_bytes(n); }

int select(const SelectArguments& arguments, unsigned processors, CudaStream stream) {
  launch_select(arguments, processors, stream);
  return launched();
}

int settle(const std::uint32_t* index, const float* rest, std::uint64_t count, float* x,
           float* momentum, unsigned processors, CudaStream stream) {
  launch_settle(index, rest, count, x, momentum, processors, stream);
  return launched();
}

int encode(const EncodeArguments& arguments, unsigned processors, CudaStream stream) {
  launch_encode(arguments, processors, stream);
  return launched();
}

int subtract(Dense type, float* x, float* momentum, std::uint64_t n, const std::uint32_t* flags,
             unsigned processors, CudaStream stream) {
  launch_subtract(type, x, momentum, n, flags, processors, stream);
  return launched();
}

int add_dense(Dense type, const std::byte* in, float weight, bool first, float* acc,
              std::uint64_t n, unsigned processors, CudaStream stream) {
  launch_add_dense(type, in, weight, first, acc, n, processors, stream);
  return launched();
}

int add_sparse(const std::uint32_t* index, const float* value, std::uint64_t count, float weight,
               bool first, float* acc, std::uint64_t n, unsigned processors, CudaStream stream) {
  launch_add_sparse(index, value, count, weight, first, acc, n, processors, stream);
  return launched();
}

}  // namespace centroid::cuda
