#include "worker/node/nccl_library.h"

#include <dlfcn.h>

namespace centroid::worker::nccl {

namespace {

std::string version_text(int code) {
  // Before 2.9 the code had one digit less for the major version.
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int minor = code >= 10000 ? code / 100 % 100 : code / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(code % 100);
}

constexpr const char* kRemedy =
    "; install NCCL 2.11 or later (libnccl2), or give each GPU a worker of its own";

}  // namespace

Library::~Library() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

Result<std::shared_ptr<const Library>> Library::load(const std::string& name) {
  std::shared_ptr<Library> library(new Library);
  library->handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle_ == nullptr) {
    const char* const why = ::dlerror();
    return Error(
        ErrorCode::kFailedPrecondition,
        std::string("NCCL cannot be loaded: ") + (why != nullptr ? why : name.c_str()) + kRemedy);
  }
  std::string missing;
  const auto find = [&](auto*& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        ::dlsym(library->handle_, symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  int (*get_version)(int*) = nullptr;
  find(get_version, "ncclGetVersion");
  if (get_version != nullptr) (void)get_version(&library->version);
  find(library->get_error_string_, "ncclGetErrorString");
  find(library->comm_init_all, "ncclCommInitAll");
  find(library->comm_destroy, "ncclCommDestroy");
  find(library->comm_abort, "ncclCommAbort");
  find(library->comm_get_async_error, "ncclCommGetAsyncError");
  find(library->group_start, "ncclGroupStart");
  find(library->group_end, "ncclGroupEnd");
  find(library->op_create_scaled_sum, "ncclRedOpCreatePreMulSum");
  find(library->op_destroy, "ncclRedOpDestroy");
  find(library->all_reduce, "ncclAllReduce");
  find(library->reduce_scatter, "ncclReduceScatter");
  find(library->all_gather, "ncclAllGather");
  find(library->broadcast, "ncclBroadcast");
  if (!missing.empty() || library->version < kLeastVersion) {
    std::string why = name;
    why += " is NCCL " + version_text(library->version);
    if (!missing.empty()) why += " without " + missing;
    return Error(ErrorCode::kFailedPrecondition, why + ", 2.11 is needed" + kRemedy);
  }
  return std::shared_ptr<const Library>(std::move(library));
}

Status Library::status_of(int code, const std::string& call) const {
  if (code == kSuccess || code == kInProgress) return {};
  return Error(ErrorCode::kInternal,
               call + ": " + get_error_string_(code) + " (NCCL " + std::to_string(code) + ")");
}

}  // namespace centroid::worker::nccl
