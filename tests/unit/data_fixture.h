#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <zlib.h>

#include "common/base/result.h"

namespace centroid::worker {

/// An error of this code whose message matches.
MATCHER_P2(FailsWith, code, message, "") {
  if (arg.ok()) return false;
  *result_listener << arg.error().to_string();
  return arg.error().code() == code &&
         testing::ExplainMatchResult(message, arg.error().message(), result_listener);
}

/// A folder of its own for one test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "centroid-data-XXXXXX").string();
    CENTROID_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(file(name), std::ios::binary) << content;
  }
  void write_gzip(const std::string& name, const std::string& content) const {
    const gzFile out = gzopen(file(name).c_str(), "wb");
    gzwrite(out, content.data(), static_cast<unsigned>(content.size()));
    gzclose(out);
  }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Lines of a digits file.
inline std::string digit_line(unsigned pixel, unsigned label) {
  std::string line;
  for (int i = 0; i < 64; ++i) line += std::to_string(pixel) + ",";
  return line + std::to_string(label);
}

inline std::string digit_lines(std::size_t count) {
  std::string csv;
  for (std::size_t i = 0; i < count; ++i)
    csv += digit_line(static_cast<unsigned>(i % 17), static_cast<unsigned>(i % 10)) + "\n";
  return csv;
}

}  // namespace centroid::worker
