#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/device/device.h"
#include "worker/model/cuda/cublas.h"
#include "worker/node/replica.h"

namespace centroid::simt {

/// A simulated GPU, "cuda:N". Queued work runs late: only when the host waits or polls, and in
/// random order between streams, as far as events permit. So tests detect a missing wait or event.
/// Kernels run in simt.h.
///
/// memory  only work on a stream can access memory from `allocate`; an access by the host faults
/// thread  any
std::unique_ptr<Device> make_late_device(unsigned number, std::size_t bytes = 64u << 20);
/// Set the seed of the order of streams.
void use_stream_seed(std::uint64_t seed);
/// Make the `count`-th copy from now on, of all devices, fail; 0: none.
void fail_copy(std::uint64_t count);
/// Limit the host memory that all devices pin at a time.
void limit_pinned(std::size_t bytes);
/// Totals of all devices since the start.
struct Traffic {
  std::uint64_t to_device = 0, to_host = 0;  ///< bytes copied
  std::uint64_t allocations = 0;             ///< of device memory and of pinned memory
  std::uint64_t waits = 0;                   ///< of the host, for unfinished work
  /// Allocations, and releases of pinned memory, while pushed work (`push`) was unfinished: a
  /// driver may block them, and all GPUs, until it is complete.
  std::uint64_t beside = 0;
  std::string shared;  ///< "cuda:0>cuda:1 ": pairs that share memory
};
Traffic traffic();
/// Queue `poll(of)` on a stream; it is called again until it returns true.
void push(void* stream, bool (*poll)(void*), void* of);

/// cuBLAS for such streams: takes the same column-major arguments and refuses those that cuBLAS
/// refuses.
std::shared_ptr<const worker::cublas::Library> host_cublas();
/// The arithmetic of the last product (cublas::kCompute...).
int last_compute();

/// Open "cuda:N" with these and host_cublas_lt, for GroupOptions::open; other devices as
/// worker::open_compute.
Result<worker::Compute> open_late(const std::string& spec, worker::Matmul matmul);

}  // namespace centroid::simt
