#pragma once

#include "common/base/result.h"

namespace centroid {

/// Exit statuses of centroid-server and centroid-worker (docs/how-to/runbooks.md#exit-statuses).
enum ExitStatus : int {
  kExitDone = 0,    ///< the job ended, or the program was stopped or drained
  kExitFailed = 1,  ///< could not start or go on: the log says why; another try may succeed
  kExitUsage = 2,   ///< wrong configuration, files, data or model: do not try again unchanged
  kExitHalted = 3,  ///< the job halted itself (non-finite gradients): do not try again unchanged
};

/// Of a program that ends with this error.
inline ExitStatus exit_status_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kDataLoss:
    case ErrorCode::kNotFound:
      return kExitUsage;
    default:
      return kExitFailed;
  }
}

}  // namespace centroid
