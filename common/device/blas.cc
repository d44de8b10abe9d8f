#include "common/device/blas.h"

#include <cblas.h>
#include <climits>

#include "common/base/result.h"

#ifdef CENTROID_HAS_OPENBLAS
// Declared here as well, so that OpenBLAS may be linked behind another library's cblas.h.
extern "C" void openblas_set_num_threads(int threads);
extern "C" char* openblas_get_config(void);
#endif

namespace centroid::blas {

namespace {

void set_library_threads([[maybe_unused]] int threads) {
#ifdef CENTROID_HAS_OPENBLAS
  openblas_set_num_threads(threads);
#endif
}

/// Replicas have their own threads: a library that also splits each call only adds switches.
void use_one_thread_once() {
  static const bool is_done = (set_library_threads(1), true);
  (void)is_done;
}

CBLAS_TRANSPOSE op(bool transpose) { return transpose ? CblasTrans : CblasNoTrans; }

int narrow(std::size_t n) {
  CENTROID_CHECK(n <= INT_MAX);
  return static_cast<int>(n);
}

}  // namespace

void gemm(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
          float alpha, const float* a, std::size_t lda, const float* b, std::size_t ldb, float beta,
          float* c, std::size_t ldc) {
  use_one_thread_once();
  if (m == 0 || n == 0) return;
  cblas_sgemm(CblasRowMajor, op(transpose_a), op(transpose_b), narrow(m), narrow(n), narrow(k),
              alpha, a, narrow(lda), b, narrow(ldb), beta, c, narrow(ldc));
}

void set_threads(int threads) {
  use_one_thread_once();  // otherwise a later first gemm would undo the caller's choice
  set_library_threads(threads < 1 ? 1 : threads);
}

const char* version() {
#ifdef CENTROID_HAS_OPENBLAS
  return openblas_get_config();
#else
  return "another BLAS than OpenBLAS: its own settings decide how many threads it uses";
#endif
}

}  // namespace centroid::blas
