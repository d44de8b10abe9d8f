#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/result.h"
#include "common/device/device.h"

struct CUevent_st;

namespace centroid::cuda {

/// Nothing for cudaSuccess, else an error with the name of the call and the runtime's message:
/// "cudaMallocFromPoolAsync: out of memory". `code` is a cudaError_t.
///
/// fails  resource_exhausted (memory), failed_precondition (no GPU, no driver, or the wrong kind: a
///        task for the operator), internal (all others; after a fault of a kernel every later call
///        of the process fails)
Status status_of(int code, std::string_view call);

/// GPUs this process may use.
/// fails  failed_precondition with the driver's reason; then there is none.
Result<unsigned> device_count();

/// "13.0"
std::string release();

/// GPU `number` of those this process may use.
///
/// Memory is from a pool of the object, so that neither allocating nor freeing waits for other work
/// on the GPU; it returns to the driver with the object. Streams do not wait for the default
/// stream, and nothing here waits for the whole device. Only the driver may, when pinned memory is
/// made or freed: reuse it.
///
/// thread  any; calls change the thread's current CUDA device. Memory and streams may outlive the
///         Device object
Result<std::unique_ptr<Device>> make_cuda_device(unsigned number);

/// A point in a stream's queue. thread: one at a time.
class Event {
 public:
  /// For streams of GPU `number`.
  static Result<Event> make(unsigned number);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();
  /// Set the point to the stream's present end.
  Status record(Stream& stream);
  /// Whether all work before the point is done. Never blocks.
  Result<bool> done();
  /// Later work of `stream` waits for the point; this thread does not.
  Status hold(Stream& stream);
  /// Between two points that are done.
  Result<double> milliseconds_since(const Event& earlier) const;

 private:
  explicit Event(CUevent_st* event) : event_(event) {}
  CUevent_st* event_;
};

}  // namespace centroid::cuda
