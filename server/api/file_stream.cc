#include "server/api/file_stream.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "common/async/task.h"
#include "common/storage/file.h"
#include "server/api/problem.h"

namespace centroid::server {

namespace {

constexpr std::uint64_t kPieceBytes = 256 * 1024;

class FileStream final : public BodyStream {
 public:
  FileStream(Executor blocking, file::Descriptor file, ByteRange range, std::string path)
      : blocking_(std::move(blocking)),
        file_(std::move(file)),
        range_(range),
        path_(std::move(path)) {}

  Task<Result<std::string>> next() override {
    auto read = [this] { return read_piece(); };
    co_return co_await run_on(blocking_, std::move(read));
  }
  std::optional<std::uint64_t> length() const override { return range_.count; }

 private:
  Result<std::string> read_piece() {
    std::string piece(static_cast<std::size_t>(std::min(kPieceBytes, range_.count - sent_)), '\0');
    const MutableBytes into = std::as_writable_bytes(std::span(piece));
    const Status read = file::read_at(file_, path_, range_.begin + sent_, into);
    if (!read.ok()) return Error(ErrorCode::kDataLoss, read.error().message());
    sent_ += piece.size();
    return piece;
  }

  const Executor blocking_;
  const file::Descriptor file_;
  const ByteRange range_;
  const std::string path_;
  std::uint64_t sent_ = 0;
};

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failed != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

/// Whether an entity tag is in the list of If-None-Match, or with `is_strong` of If-Match.
/// source  RFC 9110, sections 13.1.1 and 13.1.2
bool lists(std::string_view field, std::string_view etag, bool is_strong) {
  while (!field.empty()) {
    const auto comma = field.find(',');
    std::string_view one = field.substr(0, comma);
    field.remove_prefix(comma == std::string_view::npos ? field.size() : comma + 1);
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (!is_strong && one.starts_with("W/")) one.remove_prefix(2);
    if (one == "*" || one == etag) return true;
  }
  return false;
}

}  // namespace

RangeVerdict parse_range(std::string_view field, std::uint64_t bytes, ByteRange& range) {
  range = {0, bytes};
  constexpr std::string_view kUnit = "bytes=";
  if (!field.starts_with(kUnit) || field.find(',') != std::string_view::npos)
    return RangeVerdict::kWhole;
  field.remove_prefix(kUnit.size());
  const auto dash = field.find('-');
  if (dash == std::string_view::npos) return RangeVerdict::kWhole;
  const auto first = number(field.substr(0, dash)), last = number(field.substr(dash + 1));
  const bool has_last = dash + 1 < field.size();
  if ((dash > 0 && !first) || (has_last && !last) || (!first && !last)) return RangeVerdict::kWhole;
  if (!first) {  // the last bytes
    if (*last == 0 || bytes == 0) return RangeVerdict::kOutside;
    const std::uint64_t count = std::min(*last, bytes);
    range = {bytes - count, count};
    return RangeVerdict::kPart;
  }
  if (last && *last < *first) return RangeVerdict::kWhole;
  if (*first >= bytes) return RangeVerdict::kOutside;
  const std::uint64_t end = last ? std::min(*last, bytes - 1) : bytes - 1;
  range = {*first, end - *first + 1};
  return RangeVerdict::kPart;
}

Result<HttpResponse> serve_file(Executor blocking, const HttpRequest& request,
                                const FileOffer& offer) {
  HttpResponse response;
  response.content_type = offer.content_type;
  response.fields.emplace_back("ETag", offer.etag);
  response.fields.emplace_back("Accept-Ranges", "bytes");
  response.fields.emplace_back("Cache-Control", "no-cache");  // revalidate by the tag
  const std::string* const needed = request.field("if-match");
  if (needed != nullptr && !lists(*needed, offer.etag, true)) {
    auto problem = make_problem(412, ErrorCode::kFailedPrecondition,
                                "the file is another one: its ETag is " + offer.etag,
                                request.target.substr(0, request.target.find('?')));
    problem.fields.emplace_back("ETag", offer.etag);
    return problem;
  }
  const std::string* const known = request.field("if-none-match");
  if (known != nullptr && lists(*known, offer.etag, false)) {
    response.status = 304;
    response.content_type.clear();
    return response;
  }
  ByteRange range{0, offer.bytes};
  const std::string* const requested = request.field("range");
  const std::string* const only_if = request.field("if-range");
  const bool is_same = only_if == nullptr || *only_if == offer.etag;
  if (requested != nullptr && is_same) {
    const RangeVerdict verdict = parse_range(*requested, offer.bytes, range);
    const std::string all = std::string("/").append(std::to_string(offer.bytes));
    if (verdict == RangeVerdict::kOutside) {
      auto problem = make_problem(416, ErrorCode::kInvalidArgument,
                                  "the file has " + std::to_string(offer.bytes) + " bytes",
                                  request.target.substr(0, request.target.find('?')));
      problem.fields.emplace_back("Content-Range", std::string("bytes *").append(all));
      return problem;
    }
    if (verdict == RangeVerdict::kPart) {
      response.status = 206;
      std::string bytes = "bytes ";
      bytes.append(std::to_string(range.begin)).append("-");
      bytes.append(std::to_string(range.begin + range.count - 1)).append(all);
      response.fields.emplace_back("Content-Range", bytes);
    }
  }
  auto file = file::open_regular(offer.path, file::Links::kRefused);
  if (!file.ok()) return Error(ErrorCode::kNotFound, file.error().message());
  const auto bytes = file::size_of(*file, offer.path);
  if (!bytes.ok() || *bytes != offer.bytes)
    return Error(ErrorCode::kDataLoss, offer.path + ": its size differs from its manifest");
  response.stream =
      std::make_shared<FileStream>(std::move(blocking), std::move(*file), range, offer.path);
  return response;
}

}  // namespace centroid::server
