#include "common/device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace centroid::cuda {
namespace {

#define CENTROID_CUDA_TRY(call, ...) CENTROID_TRY(status_of(call(__VA_ARGS__), #call))

/// Shared by memory and streams of a device; the last of them destroys it.
struct Context {
  explicit Context(int of) : number(of) {}
  ~Context() {
    cudaSetDevice(number);
    if (stream != nullptr) cudaStreamDestroy(stream);
    if (pool != nullptr) cudaMemPoolDestroy(pool);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  int number;
  unsigned processors = 1;
  int first_priority = 0;  // the numerically least has priority
  cudaMemPool_t pool = nullptr;
  cudaStream_t stream = nullptr;  // of allocations
};

class PoolMemory final : public DeviceMemory {
 public:
  PoolMemory(std::shared_ptr<Context> context, void* data, std::size_t size)
      : context_(std::move(context)), data_(data), size_(size) {}
  ~PoolMemory() override {
    cudaSetDevice(context_->number);
    cudaFreeAsync(data_, context_->stream);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;
  std::byte* data() const override { return static_cast<std::byte*>(data_); }
  std::size_t size() const override { return size_; }

 private:
  std::shared_ptr<Context> context_;
  void* data_;
  std::size_t size_;
};

class PinnedMemory final : public DeviceMemory {
 public:
  PinnedMemory(void* data, std::size_t size) : data_(data), size_(size) {}
  ~PinnedMemory() override { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const override { return static_cast<std::byte*>(data_); }
  std::size_t size() const override { return size_; }

 private:
  void* data_;
  std::size_t size_;
};

/// Not an error, but the next launch might report it as one.
bool is_not_ready() {
  (void)cudaGetLastError();
  return false;
}

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<Context> context, cudaStream_t stream)
      : context_(std::move(context)), stream_(stream) {}
  ~CudaStream() override {
    cudaSetDevice(context_->number);
    cudaStreamDestroy(stream_);  // queued work still runs
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes == 0) return {};
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, stream_);
    return {};
  }
  Result<bool> done() override {
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaErrorNotReady) return is_not_ready();
    CENTROID_TRY(status_of(state, "cudaStreamQuery"));
    return true;
  }
  Status wait() override {
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaStreamSynchronize, stream_);
    return {};
  }
  void* native() const override { return stream_; }

 private:
  std::shared_ptr<Context> context_;
  cudaStream_t stream_;
};

class CudaEvent final : public StreamEvent {
 public:
  CudaEvent(std::shared_ptr<Context> context, cudaEvent_t event)
      : context_(std::move(context)), event_(event) {}
  ~CudaEvent() override {
    cudaSetDevice(context_->number);
    cudaEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Status record(Stream& stream) override {
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaEventRecord, event_, static_cast<cudaStream_t>(stream.native()));
    return {};
  }
  Status hold(Stream& stream) override {
    CENTROID_CUDA_TRY(cudaStreamWaitEvent, static_cast<cudaStream_t>(stream.native()), event_, 0);
    return {};
  }
  Result<bool> done() override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return is_not_ready();
    CENTROID_TRY(status_of(state, "cudaEventQuery"));
    return true;
  }
  Status wait() override {
    CENTROID_CUDA_TRY(cudaEventSynchronize, event_);
    return {};
  }

 private:
  std::shared_ptr<Context> context_;
  cudaEvent_t event_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(std::shared_ptr<Context> context)
      : context_(std::move(context)), name_("cuda:" + std::to_string(context_->number)) {}
  std::string name() const override { return name_; }
  bool is_host() const override { return false; }
  unsigned processors() const override { return context_->processors; }

  Result<std::unique_ptr<DeviceMemory>> allocate(std::size_t bytes) override {
    auto memory = take(bytes);
    if (!memory.ok()) return failed(bytes, std::move(memory).error());
    return memory;
  }

  Result<std::unique_ptr<DeviceMemory>> allocate_pinned(std::size_t bytes) override {
    auto memory = pin(bytes);
    if (!memory.ok()) return failed(bytes, std::move(memory).error());
    return memory;
  }

  Result<std::unique_ptr<Stream>> make_stream(Priority priority) override {
    cudaStream_t stream = nullptr;
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking,
                      priority == Priority::kHigh ? context_->first_priority : 0);
    return std::unique_ptr<Stream>(new CudaStream(context_, stream));
  }

  Result<std::unique_ptr<StreamEvent>> make_event() override {
    cudaEvent_t event = nullptr;
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaEventCreateWithFlags, &event,
                      cudaEventDisableTiming | cudaEventBlockingSync);
    return std::unique_ptr<StreamEvent>(new CudaEvent(context_, event));
  }

  Result<DeviceRoom> room() const override {
    std::size_t free = 0, total = 0;
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaMemGetInfo, &free, &total);
    // Free memory includes what the pool has and nothing uses.
    std::uint64_t held = 0, used = 0;
    CENTROID_CUDA_TRY(cudaMemPoolGetAttribute, context_->pool, cudaMemPoolAttrReservedMemCurrent,
                      &held);
    CENTROID_CUDA_TRY(cudaMemPoolGetAttribute, context_->pool, cudaMemPoolAttrUsedMemCurrent,
                      &used);
    return DeviceRoom{free + (held - std::min(held, used)), total};
  }

  /// So that NCCL adds there without an intermediate copy.
  Status share_with(Device& other) override {
    const auto* const peer = dynamic_cast<const CudaDevice*>(&other);
    if (peer == nullptr || peer->context_->number == context_->number)
      return Error(ErrorCode::kInvalidArgument, name_ + " and " + other.name() + " are no pair");
    int reaches = 0;
    CENTROID_CUDA_TRY(cudaDeviceCanAccessPeer, &reaches, peer->context_->number, context_->number);
    if (reaches == 0) return {};
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = peer->context_->number;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    CENTROID_CUDA_TRY(cudaMemPoolSetAccess, context_->pool, &access, 1);
    return {};
  }

 private:
  Error failed(std::size_t bytes, Error cause) const {
    return std::move(cause).with_context(name_ + ": " + std::to_string(bytes) + " bytes");
  }

  Result<std::unique_ptr<DeviceMemory>> take(std::size_t bytes) {
    const std::size_t taken = std::max<std::size_t>(bytes, 1);  // so that data() is never null
    void* raw = nullptr;
    const cudaStream_t stream = context_->stream;
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaMallocFromPoolAsync, &raw, taken, context_->pool, stream);
    std::unique_ptr<DeviceMemory> memory(new PoolMemory(context_, raw, bytes));
    CENTROID_CUDA_TRY(cudaMemsetAsync, raw, 0, taken, stream);
    CENTROID_CUDA_TRY(cudaStreamSynchronize, stream);  // other streams may use it from now on
    return memory;
  }

  Result<std::unique_ptr<DeviceMemory>> pin(std::size_t bytes) {
    const std::size_t taken = std::max<std::size_t>(bytes, 1);
    void* raw = nullptr;
    CENTROID_CUDA_TRY(cudaSetDevice, context_->number);
    CENTROID_CUDA_TRY(cudaHostAlloc, &raw, taken, cudaHostAllocPortable | cudaHostAllocMapped);
    std::fill_n(static_cast<std::byte*>(raw), taken, std::byte{0});
    return std::unique_ptr<DeviceMemory>(new PinnedMemory(raw, bytes));
  }

  std::shared_ptr<Context> context_;
  std::string name_;
};

}  // namespace

Status status_of(int code, std::string_view call) {
  const auto error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // reported here: the next launch must not report it again
  ErrorCode kind = ErrorCode::kInternal;
  switch (error) {
    case cudaErrorMemoryAllocation:
      kind = ErrorCode::kResourceExhausted;
      break;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNotSupported:
      kind = ErrorCode::kFailedPrecondition;
      break;
    default:
      break;
  }
  return Error(kind, std::string(call) + ": " + cudaGetErrorString(error));
}

Result<unsigned> device_count() {
  int count = 0;
  CENTROID_CUDA_TRY(cudaGetDeviceCount, &count);
  return static_cast<unsigned>(count);
}

std::string release() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

Result<std::unique_ptr<Device>> make_cuda_device(unsigned number) {
  CENTROID_ASSIGN(const unsigned count, device_count());
  if (number >= count)
    return Error(ErrorCode::kInvalidArgument,
                 "there are " + std::to_string(count) + " GPUs here, numbered from 0");
  const auto context = std::make_shared<Context>(static_cast<int>(number));
  int processors = 0;
  CENTROID_CUDA_TRY(cudaSetDevice, context->number);
  CENTROID_CUDA_TRY(cudaDeviceGetAttribute, &processors, cudaDevAttrMultiProcessorCount,
                    context->number);
  context->processors = static_cast<unsigned>(std::max(processors, 1));
  CENTROID_CUDA_TRY(cudaStreamCreateWithFlags, &context->stream, cudaStreamNonBlocking);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;  // on the GPU: it does not move
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = context->number;
  CENTROID_CUDA_TRY(cudaMemPoolCreate, &context->pool, &properties);
  // Freed memory stays here for the next allocation: otherwise the driver takes it back at the next
  // wait.
  std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();
  CENTROID_CUDA_TRY(cudaMemPoolSetAttribute, context->pool, cudaMemPoolAttrReleaseThreshold,
                    &unlimited);
  int last_priority = 0;
  CENTROID_CUDA_TRY(cudaDeviceGetStreamPriorityRange, &last_priority, &context->first_priority);
  return std::unique_ptr<Device>(new CudaDevice(context));
}

Result<Event> Event::make(unsigned number) {
  CENTROID_CUDA_TRY(cudaSetDevice, static_cast<int>(number));
  cudaEvent_t event = nullptr;
  CENTROID_CUDA_TRY(cudaEventCreate, &event);
  return Event(event);
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

Status Event::record(Stream& stream) {
  CENTROID_CUDA_TRY(cudaEventRecord, event_, static_cast<cudaStream_t>(stream.native()));
  return {};
}

Result<bool> Event::done() {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return is_not_ready();
  CENTROID_TRY(status_of(state, "cudaEventQuery"));
  return true;
}

Status Event::hold(Stream& stream) {
  CENTROID_CUDA_TRY(cudaStreamWaitEvent, static_cast<cudaStream_t>(stream.native()), event_, 0);
  return {};
}

Result<double> Event::milliseconds_since(const Event& earlier) const {
  float milliseconds = 0;
  CENTROID_CUDA_TRY(cudaEventElapsedTime, &milliseconds, earlier.event_, event_);
  return double{milliseconds};
}

}  // namespace centroid::cuda
