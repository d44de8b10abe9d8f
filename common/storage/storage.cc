#include "common/storage/storage.h"

#include <cstdio>
#include <cstdlib>

namespace centroid::storage {
namespace {

thread_local constinit ThreadState state;

bool is_missing(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory;
}

}  // namespace

Storage& current() { return state.storage == nullptr ? operating_system() : *state.storage; }

ThreadState exchange(ThreadState next) { return std::exchange(state, next); }

ScopedStorage::ScopedStorage(Storage& storage) : before_(std::exchange(state.storage, &storage)) {}
ScopedStorage::~ScopedStorage() { state.storage = before_; }

ForbiddenHere::ForbiddenHere(const char* thread)
    : before_(std::exchange(state.forbidden_for, thread)) {}
ForbiddenHere::~ForbiddenHere() { state.forbidden_for = before_; }

void ForbiddenHere::check(const char* operation, const fs::path& path) {
  if (state.forbidden_for == nullptr) return;
  std::fprintf(stderr, "storage: %s %s on %s, which must not wait for a disk\n", operation,
               path.c_str(), state.forbidden_for);
  std::abort();
}

Outcome<bool> create_directories(Storage& storage, const fs::path& path) {
  const fs::path plain =
      path.has_filename() ? path : path.parent_path();  // the path ended with '/'
  const auto there = storage.attributes(plain);
  if (there.ok() && there.value.kind == Kind::kFolder) return false;
  if (there.ok()) return std::make_error_code(std::errc::not_a_directory);
  if (!is_missing(there.error)) return there.error;
  const fs::path above = plain.parent_path();
  if (!above.empty() && above != plain) {
    const auto made = create_directories(storage, above);
    if (!made.ok()) return made.error;
  }
  const std::error_code failed = storage.create_directory(plain, 0777);
  if (!failed) {
    // Otherwise a power cut removes the folder, with the files that were synced in it.
    const std::error_code synced = storage.sync_directory(above.empty() ? "." : above);
    if (synced && synced != std::errc::permission_denied) return synced;
    return true;
  }
  if (failed != std::errc::file_exists) return failed;
  const auto meanwhile = storage.attributes(plain);
  if (meanwhile.ok() && meanwhile.value.kind == Kind::kFolder) return false;
  return failed;
}

std::error_code remove_all(Storage& storage, const fs::path& path) {
  const std::error_code removed = storage.remove(path);
  if (!removed || is_missing(removed)) return {};
  if (removed != std::errc::is_a_directory) return removed;
  auto inside = storage.list(path);
  if (!inside.ok()) return is_missing(inside.error) ? std::error_code() : inside.error;
  for (const Entry& entry : inside.value)
    if (const std::error_code failed = remove_all(storage, path / entry.name)) return failed;
  const std::error_code failed = storage.remove_directory(path);
  return is_missing(failed) ? std::error_code() : failed;
}

}  // namespace centroid::storage
