#pragma once

#include <string>

#include "client/command.h"

namespace centroid::client {

/// What is wrong with a command line that `app` has refused with `why`, and what was likely meant:
/// `unknown command "chekpoints"; did you mean "checkpoints"?`.
std::string explain_misuse(const CLI::App& app, const CLI::Error& why);

}  // namespace centroid::client
