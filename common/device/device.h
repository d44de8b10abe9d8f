#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid {

/// Memory of a device; freed with the object. On the CPU 64-byte aligned and zeroed.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data()
      const = 0;  ///< a device address: only the CPU device's may be dereferenced by the host
  virtual std::size_t size() const = 0;
};

/// An ordered queue of work on a device.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Copy between any two of host and this device, in stream order.
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  /// Block this thread until everything queued so far is done.
  virtual Status wait() = 0;
};

/// One GPU or the CPU. "cpu:0" and "cpu:1" are two replicas on one machine, each driven by its own
/// thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< "cpu:0"
  virtual bool is_host() const = 0;
  virtual Result<std::unique_ptr<DeviceMemory>> allocate(std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Stream>> make_stream() = 0;
};

/// "cpu" or "cpu:N"; "cuda:N" when built with CUDA. fails invalid_argument (names what is known),
/// unimplemented (no CUDA here).
Result<std::unique_ptr<Device>> make_device(const std::string& spec);

}  // namespace centroid
