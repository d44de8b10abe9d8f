#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/checkpoint/fault_point.h"

namespace centroid {

/// How a small file gets a new content.
struct Replacement {
  fault::Stem stem;                  ///< of its fault points
  unsigned mode = 0644;              ///< less the umask
  std::filesystem::path draft = {};  ///< empty: the file's name and ".tmp"; two writers need two
  std::function<Status()> may = {};  ///< asked last, when only the name is missing
  bool lasts = true;                 ///< false: a power cut may take the new name
  bool is_undone_if_unsure = false;  ///< no file at all where the new one may not last (below)
};

/// Give the file this content, wholly or not at all, also when the process is killed or the power
/// goes: written under another name, brought to the disk, renamed, and the name brought to the
/// disk.
///
/// fails   as file.h, and as `may`. What was there before is still there then; but where only the
///         last step failed the new content is there, and may be the old one after a power cut.
/// leaves  a draft where the process is killed, which the next call takes away; and the common one
///         where `may` refuses, for another writer may have taken it by then
/// thread  blocks; one at a time for each draft
Status replace_file(const std::filesystem::path& path, std::string_view text,
                    const Replacement& how);

/// A draft for one of several servers that write this file, one after the other: who is stopped in
/// the middle of it and wakes up beside its successor has another. Removes what earlier lives of
/// the `writer` were killed over; others' stay, they may be writing. No writer: the only one.
std::filesystem::path draft_of(const std::filesystem::path& path, const std::string& writer);

}  // namespace centroid
