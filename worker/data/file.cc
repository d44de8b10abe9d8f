#include "worker/data/file.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <type_traits>

#include <zlib.h>

namespace centroid::worker {

namespace {

constexpr unsigned kBlockBytes = 1U << 18;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose_r(file); }
};
using GzipFile = std::unique_ptr<std::remove_pointer_t<gzFile>, CloseGzip>;

Error damaged(const std::string& path, const std::string& what) {
  return {ErrorCode::kDataLoss, path + ": " + what + "; fetch the file again"};
}

}  // namespace

Result<std::string> read_file(const std::string& path, std::size_t limit_bytes,
                              const std::string& how_to_get) {
  errno = 0;
  const GzipFile file(gzopen(path.c_str(), "rbe"));
  if (!file) {
    const int reason = errno;
    if (reason == ENOENT || reason == ENOTDIR)
      return Error(ErrorCode::kNotFound, path + " does not exist: " + how_to_get);
    return Error(ErrorCode::kDataLoss,
                 path + " cannot be opened: " + std::generic_category().message(reason));
  }
  std::string content;
  for (;;) {
    const std::size_t before = content.size();
    content.resize(before + kBlockBytes);
    const int got = gzread(file.get(), content.data() + before, kBlockBytes);
    content.resize(before + (got > 0 ? static_cast<std::size_t>(got) : 0));
    if (content.size() > limit_bytes)
      return damaged(path, "has more than " + std::to_string(limit_bytes) + " bytes");
    if (got > 0) continue;
    int code = Z_OK;
    const std::string what = gzerror(file.get(), &code);
    // A truncated gzip file also ends with no more bytes, but with Z_BUF_ERROR.
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
      return damaged(
          path, "cannot be read past byte " + std::to_string(content.size()) + " (" + what + ")");
    return content;
  }
}

}  // namespace centroid::worker
