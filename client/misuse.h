#pragma once

#include <string>

#include "client/command.h"

namespace centroid::client {

/// Explain why `app` has refused a command line with `why`, with a suggestion: `unknown command
/// "chekpoints"; did you mean "checkpoints"?`.
std::string explain_misuse(const CLI::App& app, const CLI::Error& why);

}  // namespace centroid::client
