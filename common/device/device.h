#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid {

/// Memory of a device, zeroed, on a boundary of at least 64 bytes. Freed with the object: wait for
/// the work that uses it before.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data()
      const = 0;  ///< a device address: the host may dereference the CPU device's only
  virtual std::size_t size() const = 0;
};

/// An ordered queue of work on a device. thread: one at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Copy between any two of host and this device, in stream order. From or to host memory that is
  /// not pinned, the call may block until the copy is done.
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  /// Whether all queued work is done. Never blocks.
  /// fails  as the queued work did, here and in all later calls
  virtual Result<bool> done() = 0;
  /// Block this thread until all queued work is done.
  virtual Status wait() = 0;
  /// The cudaStream_t of a CUDA device, for launching kernels; nullptr on the CPU.
  virtual void* native() const = 0;
};

/// A point in a stream's queue. thread: one at a time.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  /// Set the point to the stream's present end.
  virtual Status record(Stream& stream) = 0;
  /// Later work of `stream`, of a device of the same kind, waits for the point that was recorded
  /// last; this thread does not.
  virtual Status hold(Stream& stream) = 0;
  /// Whether all work before the point is done. Never blocks.
  virtual Result<bool> done() = 0;
  /// Block this thread until then.
  virtual Status wait() = 0;
};

/// Memory of a device, in bytes.
struct DeviceRoom {
  std::uint64_t free = 0;  ///< for this process, and for others
  std::uint64_t total = 0;
};

/// Which stream's work has priority if processors are short; running work continues.
enum class Priority : std::uint8_t { kNormal, kHigh };

/// One GPU or the CPU. "cpu:0" and "cpu:1" are two replicas on one machine, each driven by its own
/// thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< "cpu:0"
  virtual bool is_host() const = 0;
  /// Processors that share a kernel's blocks (1 for a CPU device: its thread).
  virtual unsigned processors() const = 0;
  virtual Result<std::unique_ptr<DeviceMemory>> allocate(std::size_t bytes) = 0;
  /// Host memory that the device copies from and to directly, and that its kernels may write at the
  /// same address. Expensive to make: reuse it (HostMemory).
  virtual Result<std::unique_ptr<DeviceMemory>> allocate_pinned(std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Stream>> make_stream(Priority priority) = 0;
  Result<std::unique_ptr<Stream>> make_stream() { return make_stream(Priority::kNormal); }
  virtual Result<std::unique_ptr<StreamEvent>> make_event() = 0;
  virtual Result<DeviceRoom> room() const = 0;
  /// Give `other`, of the same kind, access to this one's memory, now and later, if the machine
  /// can; otherwise copies go through the host. Call before work is queued.
  virtual Status share_with(Device& other) = 0;
};

/// "cpu", "cpu:N", "cuda", "cuda:N".
/// fails  invalid_argument (names the kinds, or the number of GPUs), unimplemented (built without
///        CUDA), failed_precondition (no GPU or no driver, with the driver's reason)
Result<std::unique_ptr<Device>> make_device(const std::string& spec);

/// CUDA release this program was built with, "13.0"; empty when built without.
std::string cuda_release();

}  // namespace centroid
