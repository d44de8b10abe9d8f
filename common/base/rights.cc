#include "common/base/rights.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <vector>

namespace centroid {
namespace {

/// " (nobody)"; nothing if the system has no name, as in containers.
std::string name_of(uid_t user) {
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> space(16 * 1024);
  if (::getpwuid_r(user, &entry, space.data(), space.size(), &found) != 0 || found == nullptr)
    return "";
  return " (" + std::string(found->pw_name) + ")";
}

}  // namespace

std::string rights_text(const std::string& path) {
  std::error_code failed;
  std::filesystem::path at = std::filesystem::absolute(path, failed);
  struct stat info{};
  while (::stat(at.c_str(), &info) != 0) {
    if (!at.has_relative_path()) return "";
    at = at.parent_path();
  }
  char mode[8] = "";
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
  const uid_t user = ::geteuid();
  return "this process is user " + std::to_string(user) + name_of(user) + ", " + at.string() +
         " is user " + std::to_string(info.st_uid) + "'s" + name_of(info.st_uid) + ", mode " + mode;
}

}  // namespace centroid
