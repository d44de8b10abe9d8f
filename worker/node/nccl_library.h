#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/shared_library.h"

namespace centroid::worker::nccl {

/// The part of NCCL that is used. It is declared here and loaded at run time, so that one binary
/// works with and without NCCL, and the build needs no header of it.
/// source  NVIDIA NCCL 2, nccl.h (the C interface keeps its layout within a major version)
using Comm = struct ncclComm*;
inline constexpr int kSuccess = 0, kInProgress = 7;
inline constexpr int kFloat32 = 7, kSum = 0, kScalarOnHost = 1;
/// 2.11, the first with sums whose inputs are scaled by each rank (ncclRedOpCreatePreMulSum).
inline constexpr int kLeastVersion = 21100;

/// thread  any; the functions as NCCL documents
class Library {
 public:
  /// fails failed_precondition: not found, or too old (names what was found and what to do)
  static Result<std::shared_ptr<const Library>> load(const std::string& name = "libnccl.so.2");
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  int version = 0;  ///< 21805: 2.18.5
  int (*comm_init_all)(Comm*, int, const int*) = nullptr;
  int (*comm_destroy)(Comm) = nullptr;
  int (*comm_abort)(Comm) = nullptr;
  int (*comm_get_async_error)(Comm, int*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*op_create_scaled_sum)(int*, void*, int, int, Comm) = nullptr;
  int (*op_destroy)(int, Comm) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, void*) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int, int, Comm, void*) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, Comm, void*) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int, int, Comm, void*) = nullptr;

  /// OK for kSuccess and kInProgress, else an error with the call and NCCL's message.
  Status status_of(int code, const std::string& call) const;

 private:
  Library() = default;
  const char* (*get_error_string_)(int) = nullptr;
  SharedLibrary opened_;
};

}  // namespace centroid::worker::nccl
