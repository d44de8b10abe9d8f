#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::server {

/// Mode of files of run_dir that nobody else may read.
inline constexpr unsigned kPrivateMode = 0600;

/// An error of a file of run_dir, of what `what` names, as REST tells it: unavailable where the
/// same call may succeed later (a full or absent disk), else failed_precondition; with where to
/// look.
Error private_file_error(std::string_view what, const Error& why);

/// Replace a file of run_dir that nobody else may read (mode 0600), as replace_file does.
///
/// fails   as REST tells it, with `what` and where to look: unavailable where the same call may
///         succeed later (a full or absent disk), else failed_precondition
Status replace_private(std::string_view what, const std::string& path, std::string_view text,
                       fault::Stem stem);

}  // namespace centroid::server
