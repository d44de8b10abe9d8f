#include "server/tokens/private_file.h"

#include "common/checkpoint/replace_file.h"

namespace centroid::server {

Error private_file_error(std::string_view what, const Error& why) {
  const ErrorCode code = why.code();
  const bool may_succeed = code == ErrorCode::kResourceExhausted ||
                           code == ErrorCode::kUnavailable || code == ErrorCode::kInternal;
  return {
      may_succeed ? ErrorCode::kUnavailable : ErrorCode::kFailedPrecondition,
      std::string(what) + ": " + why.message() + " (look at the disk and the rights of run_dir)"};
}

Status replace_private(std::string_view what, const std::string& path, std::string_view text,
                       fault::Stem stem) {
  Replacement how{stem};
  how.mode = kPrivateMode;
  const Status written = replace_file(path, text, how);
  if (written.ok()) return {};
  return private_file_error(what, written.error());
}

}  // namespace centroid::server
