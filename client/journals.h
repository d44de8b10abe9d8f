#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"

/// The journals of a run on one server or several, without a server
/// (docs/how-to/recover.md#verify).
namespace centroid::client {

/// Folders that have one: those that are `named`, else `journal` and `journal-NAME` beside the
/// folder of checkpoints, or within it where it is a run's that has no checkpoints.
std::vector<std::filesystem::path> journals_of(const std::filesystem::path& checkpoints,
                                               const std::vector<std::string>& named);

/// Read all of each, and compare what a leader has committed with what the others have: a line for
/// each into `out`, also of what was not there to look at. False: something is damaged or missing.
/// `checkpoints`: those there are now, newest first; asked again where a server that runs may have
/// written another one meanwhile. `damaged`: of them, those that nobody can go on from.
bool check_journals(std::FILE* out,
                    const std::function<std::vector<CheckpointEntry>()>& checkpoints,
                    const std::set<std::filesystem::path>& damaged,
                    const std::vector<std::filesystem::path>& folders);

}  // namespace centroid::client
