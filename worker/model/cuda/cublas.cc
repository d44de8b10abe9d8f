#include "worker/model/cuda/cublas.h"

#include <dlfcn.h>

#include <type_traits>

namespace centroid::worker::cublas {

namespace {

constexpr const char* kRemedy =
    "; models on GPUs need cuBLAS 11.4 or later (libcublas of the CUDA toolkit, in the library "
    "path)";

}  // namespace

Library::~Library() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

Result<std::shared_ptr<const Library>> Library::load(const std::vector<std::string>& names) {
  const auto library = std::make_shared<Library>();
  std::string why, name;
  for (const std::string& one : names) {
    library->handle_ = ::dlopen(one.c_str(), RTLD_NOW | RTLD_LOCAL);
    name = one;
    if (library->handle_ != nullptr) break;
    const char* const said = ::dlerror();
    if (why.empty()) why = said != nullptr ? said : one;
  }
  if (library->handle_ == nullptr)
    return Error(ErrorCode::kFailedPrecondition, "cuBLAS cannot be loaded: " + why + kRemedy);
  std::string missing;
  const auto find = [&](auto*& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        ::dlsym(library->handle_, symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  find(library->create, "cublasCreate_v2");
  find(library->destroy, "cublasDestroy_v2");
  find(library->set_stream, "cublasSetStream_v2");
  find(library->set_workspace, "cublasSetWorkspace_v2");
  find(library->gemm, "cublasGemmEx");
  find(library->gemm_batched, "cublasGemmBatchedEx");
  find(library->status_text, "cublasGetStatusString");
  if (!missing.empty())
    return Error(ErrorCode::kFailedPrecondition, name + " has no " + missing + kRemedy);
  return std::shared_ptr<const Library>(library);
}

Status Library::status_of(int code, const std::string& call) const {
  if (code == kSuccess) return {};
  return Error(ErrorCode::kInternal,
               call + ": " + status_text(code) + " (cuBLAS " + std::to_string(code) + ")");
}

}  // namespace centroid::worker::cublas
