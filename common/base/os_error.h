#pragma once

#include <cerrno>

#include "common/base/result.h"

namespace centroid {

/// What an errno of a file means for who waits: unavailable where the same call may succeed later
/// (a full or absent disk, too many open files), else failed_precondition.
inline ErrorCode code_of_os_error(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case ESTALE:
    case EMFILE:
    case ENFILE:
    case ETIMEDOUT:
      return ErrorCode::kUnavailable;
    default:
      return ErrorCode::kFailedPrecondition;
  }
}

}  // namespace centroid
