#include "worker/model/cuda/cublas.h"

#include <utility>

namespace centroid::worker::cublas {

namespace {

constexpr const char* kRemedy =
    "; models on GPUs need cuBLAS 11.4 or later (libcublas of the CUDA toolkit, in the library "
    "path)";

}  // namespace

Result<std::shared_ptr<const Library>> Library::load(const std::vector<std::string>& names) {
  auto opened = SharedLibrary::open(names);
  if (!opened.ok())
    return Error(ErrorCode::kFailedPrecondition,
                 "cuBLAS cannot be loaded: " + opened.error().message() + kRemedy);
  const auto library = std::make_shared<Library>();
  SharedLibrary& in = library->opened_ = std::move(opened).value();
  in.find(library->create, "cublasCreate_v2");
  in.find(library->destroy, "cublasDestroy_v2");
  in.find(library->set_stream, "cublasSetStream_v2");
  in.find(library->set_workspace, "cublasSetWorkspace_v2");
  in.find(library->gemm, "cublasGemmEx");
  in.find(library->gemm_batched, "cublasGemmBatchedEx");
  in.find(library->status_text, "cublasGetStatusString");
  if (!in.missing().empty())
    return Error(ErrorCode::kFailedPrecondition, in.name() + " has no " + in.missing() + kRemedy);
  return std::shared_ptr<const Library>(library);
}

Status Library::status_of(int code, const std::string& call) const {
  if (code == kSuccess) return {};
  return Error(ErrorCode::kInternal,
               call + ": " + status_text(code) + " (cuBLAS " + std::to_string(code) + ")");
}

}  // namespace centroid::worker::cublas
