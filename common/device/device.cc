#include "common/device/device.h"

#include <charconv>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/memory_limit.h"
#if defined(CENTROID_HAS_CUDA)
#include "common/device/cuda/cuda_device.h"
#endif

namespace centroid {

namespace {

constexpr std::align_val_t kAlignment{64};
/// More than any host has; rejects absurd requests before the allocator sees them.
constexpr std::size_t kMaxAllocationBytes = std::size_t{1} << 46;
constexpr unsigned kMaxDeviceNumber = 1023;

class CpuMemory final : public DeviceMemory {
 public:
  CpuMemory(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  ~CpuMemory() override { ::operator delete(data_, kAlignment); }
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

/// Copies happen in the call, so the queue is always empty.
class CpuStream final : public Stream {
 public:
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
    return {};
  }
  Result<bool> done() override { return true; }
  Status wait() override { return {}; }
  void* native() const override { return nullptr; }
};

/// Everything is done when it is recorded.
class CpuEvent final : public StreamEvent {
 public:
  Status record(Stream&) override { return {}; }
  Status hold(Stream&) override { return {}; }
  Result<bool> done() override { return true; }
  Status wait() override { return {}; }
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(unsigned number) : name_("cpu:" + std::to_string(number)) {}
  std::string name() const override { return name_; }
  bool is_host() const override { return true; }
  unsigned processors() const override { return 1; }
  Result<std::unique_ptr<DeviceMemory>> allocate_pinned(std::size_t bytes) override {
    return allocate(bytes);
  }

  Result<std::unique_ptr<DeviceMemory>> allocate(std::size_t bytes) override {
    // At least one byte, so that data() is never null.
    const std::size_t taken = bytes == 0 ? 1 : bytes;
    void* raw =
        taken > kMaxAllocationBytes ? nullptr : ::operator new(taken, kAlignment, std::nothrow);
    if (raw == nullptr)
      return Error(ErrorCode::kResourceExhausted,
                   name_ + ": no memory for " + std::to_string(bytes) + " bytes");
    std::memset(raw, 0, taken);
    return std::unique_ptr<DeviceMemory>(new CpuMemory(static_cast<std::byte*>(raw), bytes));
  }

  Result<std::unique_ptr<Stream>> make_stream(Priority) override {
    return std::unique_ptr<Stream>(new CpuStream);
  }
  Result<std::unique_ptr<StreamEvent>> make_event() override {
    return std::unique_ptr<StreamEvent>(new CpuEvent);
  }
  Result<DeviceRoom> room() const override {
    return DeviceRoom{available_memory(), memory_limit(0).bytes};
  }
  Status share_with(Device&) override { return {}; }

 private:
  std::string name_;
};

/// The number after "kind" or "kind:N"; nothing if `spec` is something else.
std::optional<unsigned> device_number(std::string_view spec, std::string_view kind) {
  if (!spec.starts_with(kind)) return std::nullopt;
  spec.remove_prefix(kind.size());
  if (spec.empty()) return 0;
  if (spec.front() != ':') return std::nullopt;
  spec.remove_prefix(1);
  unsigned number = 0;
  const auto [end, error] = std::from_chars(spec.data(), spec.data() + spec.size(), number);
  if (error != std::errc() || end != spec.data() + spec.size() || number > kMaxDeviceNumber)
    return std::nullopt;
  return number;
}

}  // namespace

Result<std::unique_ptr<Device>> make_device(const std::string& spec) {
  if (const auto number = device_number(spec, "cpu"))
    return std::unique_ptr<Device>(new CpuDevice(*number));
  if (const auto number = device_number(spec, "cuda")) {
#if defined(CENTROID_HAS_CUDA)
    auto made = cuda::make_cuda_device(*number);
    if (!made.ok()) return std::move(made).error().with_context("device '" + spec + "'");
    return made;
#else
    return Error(ErrorCode::kUnimplemented,
                 "device '" + spec + "': this build has no CUDA; use cpu:N");
#endif
  }
  return Error(ErrorCode::kInvalidArgument,
               "device '" + spec + "' is unknown: expected cpu, cpu:N or cuda:N with N from 0 to " +
                   std::to_string(kMaxDeviceNumber));
}

std::string cuda_release() {
#if defined(CENTROID_HAS_CUDA)
  return cuda::release();
#else
  return {};
#endif
}

}  // namespace centroid
