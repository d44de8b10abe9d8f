#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/http.h"

namespace centroid::server {

/// A file that can be requested completely or in part.
struct FileOffer {
  std::string path;
  std::uint64_t bytes = 0;  ///< by its manifest
  std::string etag;         ///< strong, with its quotes
  std::string content_type;
};

/// First byte and count of a Range field.
struct ByteRange {
  std::uint64_t begin = 0, count = 0;
};

enum class RangeVerdict : std::uint8_t { kWhole, kPart, kOutside };
/// "bytes=a-b", "bytes=a-" or "bytes=-n". A field of another form, or with several ranges, means
/// the complete file. Pure.
/// source  RFC 9110, section 14
RangeVerdict parse_range(std::string_view field, std::uint64_t bytes, ByteRange& range);

/// 200, 206, 304 or 416, by Range, If-Range and If-None-Match. The body is read on `blocking` in
/// pieces of 256 KiB as the client reads it, so that memory does not grow with the file.
/// fails not_found, data_loss: the file is missing, or has another size
Result<HttpResponse> serve_file(Executor blocking, const HttpRequest& request,
                                const FileOffer& offer);

}  // namespace centroid::server
