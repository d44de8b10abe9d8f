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

/// Folders with one: the `named` ones, else `journal` and `journal-NAME` beside the folder of
/// checkpoints, or within it if it is a run's without checkpoints.
std::vector<std::filesystem::path> journals_of(const std::filesystem::path& checkpoints,
                                               const std::vector<std::string>& named);

/// Read all of each, and compare what a leader has committed with the others: a line for each into
/// `out`, also for missing ones. False: something is damaged or missing. `checkpoints`: the present
/// ones, newest first; called again if a running server may have written another one meanwhile.
/// `damaged`: those that cannot be resumed.
bool check_journals(std::FILE* out,
                    const std::function<std::vector<CheckpointEntry>()>& checkpoints,
                    const std::set<std::filesystem::path>& damaged,
                    const std::vector<std::filesystem::path>& folders);

}  // namespace centroid::client
