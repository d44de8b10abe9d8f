#include "common/codec/cuda/dense.cuh"
#include "common/codec/cuda/kernels.h"
#include "common/codec/cuda/select.cuh"
#include "common/device/cuda/launch.h"

namespace centroid::cuda {
std::size_t select_bytes(std::uint64_t n) { return select_memory_bytes(n); }

Status select(const SelectArguments& arguments, const Queue& queue) {
  launch_select(arguments, queue.processors, stream_of(queue));
  return launched("kernels of select");
}

Status settle(const std::uint32_t* index, const float* rest, std::uint64_t count, float* x,
              float* momentum, const Queue& queue) {
  launch_store_rest(index, rest, count, x, momentum, queue.processors, stream_of(queue));
  return launched("kernels of settle");
}

Status encode(const EncodeArguments& arguments, const Queue& queue) {
  launch_encode(arguments, queue.processors, stream_of(queue));
  return launched("kernels of encode");
}

Status subtract(Dense type, float* x, float* momentum, std::uint64_t n, const std::uint32_t* flags,
                const Queue& queue) {
  launch_subtract(type, x, momentum, n, flags, queue.processors, stream_of(queue));
  return launched("kernels of subtract");
}

}  // namespace centroid::cuda
