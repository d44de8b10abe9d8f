#include "worker/node/nccl_library.h"

#include <utility>

namespace centroid::worker::nccl {

namespace {

std::string version_text(int code) {
  // Before 2.9 the code had one digit less for the major version.
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int minor = code >= 10000 ? code / 100 % 100 : code / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(code % 100);
}

constexpr const char* kRemedy =
    "; install NCCL 2.11 or later (libnccl2), or start one worker for each GPU";

}  // namespace

Result<std::shared_ptr<const Library>> Library::load(const std::string& name) {
  auto opened = SharedLibrary::open({&name, 1});
  if (!opened.ok())
    return Error(ErrorCode::kFailedPrecondition,
                 "NCCL cannot be loaded: " + opened.error().message() + kRemedy);
  std::shared_ptr<Library> library(new Library);
  SharedLibrary& in = library->opened_ = std::move(opened).value();
  int (*get_version)(int*) = nullptr;
  in.find(get_version, "ncclGetVersion");
  if (get_version != nullptr) (void)get_version(&library->version);
  in.find(library->get_error_string_, "ncclGetErrorString");
  in.find(library->comm_init_all, "ncclCommInitAll");
  in.find(library->comm_destroy, "ncclCommDestroy");
  in.find(library->comm_abort, "ncclCommAbort");
  in.find(library->comm_get_async_error, "ncclCommGetAsyncError");
  in.find(library->group_start, "ncclGroupStart");
  in.find(library->group_end, "ncclGroupEnd");
  in.find(library->op_create_scaled_sum, "ncclRedOpCreatePreMulSum");
  in.find(library->op_destroy, "ncclRedOpDestroy");
  in.find(library->all_reduce, "ncclAllReduce");
  in.find(library->reduce_scatter, "ncclReduceScatter");
  in.find(library->all_gather, "ncclAllGather");
  in.find(library->broadcast, "ncclBroadcast");
  if (!in.missing().empty() || library->version < kLeastVersion) {
    std::string why = name;
    why += " is NCCL " + version_text(library->version);
    if (!in.missing().empty()) why += " without " + in.missing();
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
