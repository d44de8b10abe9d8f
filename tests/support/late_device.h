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

/// A GPU of the tests, "cuda:N". What is queued on its streams runs late: not before somebody waits
/// or asks, and then in a random order between streams, but for what events forbid. So a copy or a
/// kernel that nobody waits for, or that no event holds back, is seen. Kernels run as simt.h says.
///
/// memory  the host cannot touch what `allocate` gives (it faults), only what runs on a stream
/// thread  any
std::unique_ptr<Device> make_late_device(unsigned number, std::size_t bytes = 64u << 20);
/// The order of streams from now on.
void use_stream_seed(std::uint64_t seed);
/// Let the `count`-th copy of all devices from now on fail; 0: none.
void fail_copy(std::uint64_t count);
/// Let all devices pin no more than so many bytes of the host's memory at a time.
void limit_pinned(std::size_t bytes);
/// What all devices did since the beginning.
struct Traffic {
  std::uint64_t to_device = 0, to_host = 0;  ///< bytes copied
  std::uint64_t allocations = 0;             ///< of device memory and of pinned memory
  std::uint64_t waits = 0;                   ///< of the host, for what was not over yet
  /// Memory that was taken, and pinned memory that was freed, while something pushed (`push`) was
  /// not over: a driver may hold that up until it is, and all GPUs with it.
  std::uint64_t beside = 0;
  std::string shared;  ///< "cuda:0>cuda:1 ": whose memory was shared with whom
};
Traffic traffic();
/// Queue `poll(of)` on a stream; it is tried again until it says that it is done.
void push(void* stream, bool (*poll)(void*), void* of);

/// cuBLAS for such streams: takes the same column-major arguments, refuses what cuBLAS would.
std::shared_ptr<const worker::cublas::Library> host_cublas();
/// The arithmetic that the last product asked for (cublas::kCompute...).
int last_compute();

/// "cuda:N" with them and host_cublas_lt, for GroupOptions::open; all else as worker::open_compute.
Result<worker::Compute> open_late(const std::string& spec, worker::Matmul matmul);

}  // namespace centroid::simt
