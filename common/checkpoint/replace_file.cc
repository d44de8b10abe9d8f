#include "common/checkpoint/replace_file.h"

#include <unistd.h>

#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "common/storage/file.h"

namespace centroid {

namespace {

namespace fs = std::filesystem;

Status write_draft(const fs::path& draft, std::string_view text, const Replacement& how) {
  // A new file: an existing one may have other permissions, or be a link.
  CENTROID_TRY(file::remove(draft));
  CENTROID_ASSIGN(file::Descriptor file, file::create(draft, how.mode));
  const Bytes bytes = std::as_bytes(std::span(text)), half = bytes.first(bytes.size() / 2);
  CENTROID_TRY(file::write_all(file, draft, half));
  fault::point(how.stem, "torn");
  CENTROID_TRY(file::write_all(file, draft, bytes.subspan(half.size())));
  CENTROID_TRY(file::sync(file, draft));
  CENTROID_TRY(file::close(std::move(file), draft));
  fault::point(how.stem, "drafted");
  return {};
}

}  // namespace

Status replace_file(const fs::path& path, std::string_view text, const Replacement& how) {
  const fs::path draft = how.draft.empty() ? fs::path(path.string() + ".tmp") : how.draft;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  Status written = write_draft(draft, text, how);
  if (written.ok() && how.may) {
    const Status may = how.may();
    if (!may.ok() && !how.draft.empty()) (void)file::remove(draft);
    CENTROID_TRY(may);
  }
  if (written.ok()) written = file::rename(draft, path);
  if (!written.ok()) {
    (void)file::remove(draft);  // it would occupy a full disk
    return written;
  }
  fault::point(how.stem, "renamed");
  if (!how.lasts) return {};
  const Status synced = file::sync_directory(folder);
  if (!synced.ok() && how.is_undone_if_unsure) {
    CENTROID_TRY(file::remove(path));
    (void)file::sync_directory(folder);
  }
  return synced;
}

fs::path draft_of(const fs::path& path, const std::string& writer) {
  if (writer.empty()) return {};
  const std::string begin = path.filename().string() + ".tmp-" + writer + "-";
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (const auto entries = file::list(folder); entries.ok())
    for (const file::Entry& entry : *entries) {
      const bool is_ours =
          entry.name.starts_with(begin) &&
          entry.name.find_first_not_of("0123456789", begin.size()) == std::string::npos;
      if (is_ours) (void)file::remove(folder / entry.name);
    }
  return folder / (begin + std::to_string(::getpid()));
}

}  // namespace centroid
