#pragma once

#include <cstddef>

namespace centroid::blas {

/// C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C, row-major, float32. thread: any;
/// single-threaded per call by default.
void gemm(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
          float alpha, const float* a, std::size_t lda, const float* b, std::size_t ldb, float beta,
          float* c, std::size_t ldc);

/// Threads the library may use in one call, for the whole process.
void set_threads(int threads);
const char* version();

}  // namespace centroid::blas
