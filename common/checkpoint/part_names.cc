#include <algorithm>
#include <string_view>

#include "common/checkpoint/checkpoint.h"

namespace centroid {
namespace {

constexpr std::string_view kRowsPrefix = "rows-";
constexpr std::string_view kSuffix = ".safetensors";

}  // namespace

std::string rows_file_name(const std::string& table) {
  return std::string(kRowsPrefix) + table + std::string(kSuffix);
}

std::string pushes_file_name(std::size_t server) {
  if (server == 0) return kPushesFile;
  return std::string("pushes-").append(std::to_string(server)).append(kSuffix);
}

bool is_pushes_file(const std::string& file) {
  constexpr std::string_view kPrefix = "pushes-";
  if (file == kPushesFile) return true;
  if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) return false;
  const std::string_view number(
      file.data() + kPrefix.size(),
      std::max(file.size(), kPrefix.size() + kSuffix.size()) - kPrefix.size() - kSuffix.size());
  return !number.empty() && number.size() <= 3 && number.front() != '0' &&
         std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<std::string> table_of_rows_file(const std::string& file) {
  const std::size_t around = kRowsPrefix.size() + kSuffix.size();
  if (file.size() <= around || !file.starts_with(kRowsPrefix) || !file.ends_with(kSuffix) ||
      file.find('/') != std::string::npos)
    return std::nullopt;
  return file.substr(kRowsPrefix.size(), file.size() - around);
}

}  // namespace centroid
