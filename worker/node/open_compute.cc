#if defined(CENTROID_HAS_CUDA)
#include "common/base/log.h"
#include "worker/model/cuda/cuda_backend.h"
#endif
#include "worker/node/replica.h"

namespace centroid::worker {

Result<Compute> open_compute(const std::string& spec, [[maybe_unused]] Matmul matmul) {
  Compute out;
  CENTROID_ASSIGN(out.device, make_device(spec));
  CENTROID_ASSIGN(out.stream, out.device->make_stream());
  if (out.device->is_host()) {
    out.backend = make_cpu_backend();
    return out;
  }
#if defined(CENTROID_HAS_CUDA)
  auto library = cublas::Library::load();
  if (!library.ok()) return std::move(library).error().with_context("device '" + spec + "'");
  auto layers = cublas_lt::Library::load();
  if (!layers.ok()) log::info("cublaslt.disabled", {{"device", spec}, {"why", layers.error()}});
  CENTROID_ASSIGN(out.backend, cuda::make_cuda_backend(
                                   *out.device, *out.stream, matmul, std::move(library).value(),
                                   layers.ok() ? std::move(layers).value() : nullptr));
#endif
  return out;
}

}  // namespace centroid::worker
