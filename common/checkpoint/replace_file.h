#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/checkpoint/fault_point.h"

namespace centroid {

/// How to replace the content of a small file.
struct Replacement {
  fault::Stem stem;                  ///< of its fault points
  unsigned mode = 0644;              ///< less the umask
  std::filesystem::path draft = {};  ///< empty: the file's name and ".tmp"; two writers need two
  std::function<Status()> may = {};  ///< called last, before the rename
  bool lasts = true;                 ///< false: a power cut may remove the new name
  bool is_undone_if_unsure = false;  ///< no file at all if the new name may not be durable (below)
};

/// Replace the content atomically, also if the process is killed or the power fails: write it under
/// another name, sync it, rename it, and sync the name.
///
/// fails   as file.h, and as `may`. The earlier content is then still there. If only the last step
///         failed, the new content is there, and may be the old one after a power cut.
/// leaves  a draft if the process is killed, which the next call removes; and the common draft if
///         `may` refuses, because another writer may use it by then
/// thread  blocks; one at a time for each draft
Status replace_file(const std::filesystem::path& path, std::string_view text,
                    const Replacement& how);

/// A draft for one of several servers that write this file in turn: one that is stopped in the
/// middle and wakes beside its successor then has its own. Removes drafts of earlier processes of
/// the `writer`, never those of others. No writer: the only one.
std::filesystem::path draft_of(const std::filesystem::path& path, const std::string& writer);

}  // namespace centroid
