#pragma once

#include <dlfcn.h>

#include "common/base/result.h"
#include "tests/support/late_device.h"

namespace centroid::test {

/// The stand-in for NCCL (nccl_stand_in.cc), reset to its defaults, on the streams of late devices.
/// NCCL_STAND_IN is its path.
class StandIn {
 public:
  StandIn() : handle_(::dlopen(NCCL_STAND_IN, RTLD_NOW | RTLD_LOCAL)) {
    CENTROID_CHECK(handle_ != nullptr);
    find(reset, "stand_in_reset");
    find(set, "stand_in_set");
    find(aborts, "stand_in_aborts");
    find(calls, "stand_in_calls");
    find(use_streams, "stand_in_use_streams");
    reset();
    use_streams(simt::push);
  }
  ~StandIn() { ::dlclose(handle_); }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  void (*reset)() = nullptr;
  void (*set)(const char*, int, int) = nullptr;
  int (*aborts)(int) = nullptr;
  const char* (*calls)() = nullptr;
  void (*use_streams)(void (*)(void*, bool (*)(void*), void*)) = nullptr;

 private:
  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(handle_, name));
    CENTROID_CHECK(function != nullptr);
  }
  void* handle_;
};

}  // namespace centroid::test
