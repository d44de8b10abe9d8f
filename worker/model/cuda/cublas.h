#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/shared_library.h"

namespace centroid::worker::cublas {

/// The part of cuBLAS that is used. It is declared here and loaded at run time, so that one binary
/// works with and without cuBLAS. cuBLAS has column-major matrices.
/// source  NVIDIA cuBLAS, cublas_api.h (the numbers are the same in releases 11 to 13;
///         tests/unit/models_cuda_test.cc compares them with the toolkit's header)
using Handle = struct cublasContext*;
inline constexpr int kSuccess = 0, kNoTranspose = 0, kTranspose = 1;
inline constexpr int kFloat32 = 0;  ///< cudaDataType_t
inline constexpr int kComputeF32 = 68, kComputeBf16 = 75, kComputeTf32 = 77;
inline constexpr int kDefaultAlgorithm = -1;

/// thread  any; the functions: one at a time for a handle
struct Library {
  /// Load the first of `names` that exists.
  /// fails  failed_precondition: none (says what to install), or one without the functions
  static Result<std::shared_ptr<const Library>> load(const std::vector<std::string>& names = {
                                                         "libcublas.so.13", "libcublas.so.12",
                                                         "libcublas.so.11", "libcublas.so"});
  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, void* stream) = nullptr;
  int (*set_workspace)(Handle, void* memory, std::size_t bytes) = nullptr;
  /// cublasGemmEx: C[m,n] = alpha op(A) op(B) + beta C.
  int (*gemm)(Handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
              int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c,
              int type_c, int ldc, int compute, int algorithm) = nullptr;
  /// cublasGemmBatchedEx: the same for matrices whose addresses are in arrays on the device.
  int (*gemm_batched)(Handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                      const void* const a[], int type_a, int lda, const void* const b[], int type_b,
                      int ldb, const void* beta, void* const c[], int type_c, int ldc, int count,
                      int compute, int algorithm) = nullptr;
  const char* (*status_text)(int) = nullptr;

  /// OK for kSuccess, else an error with the call and cuBLAS's message.
  Status status_of(int code, const std::string& call) const;

 private:
  SharedLibrary opened_;
};

}  // namespace centroid::worker::cublas
