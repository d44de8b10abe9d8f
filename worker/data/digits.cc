#include "worker/data/digits.h"

#include <algorithm>
#include <charconv>

#include "worker/data/file.h"
#include "worker/data/split.h"

namespace centroid::worker {

namespace {

constexpr std::size_t kPixels = 64;
constexpr unsigned kMaxPixel = 16;
constexpr unsigned kClasses = 10;
constexpr std::size_t kMaxDigitsBytes = std::size_t{64} << 20;

struct LineReader {
  std::string_view left;

  /// Read one number up to `max` and, with `comma`, the comma after it.
  bool number(unsigned max, bool comma, unsigned& value) {
    const char* end = left.data() + left.size();
    const auto [at, error] = std::from_chars(left.data(), end, value);
    if (error != std::errc() || value > max) return false;
    left.remove_prefix(static_cast<std::size_t>(at - left.data()));
    if (!comma) return true;
    if (!left.starts_with(',')) return false;
    left.remove_prefix(1);
    return true;
  }
};

Error bad_line(const std::string& file, std::uint64_t line, const std::string& expected) {
  return {ErrorCode::kDataLoss, file + " line " + std::to_string(line) + ": expected " + expected +
                                    "; fetch the file again"};
}

}  // namespace

Result<Dataset> parse_digits(std::string_view csv, const std::string& file) {
  Dataset all;
  all.features = kPixels;
  all.classes = kClasses;
  for (std::uint64_t line = 1; !csv.empty(); ++line) {
    LineReader reader{csv.substr(0, csv.find('\n'))};
    csv.remove_prefix(std::min(csv.size(), reader.left.size() + 1));
    if (reader.left.ends_with('\r')) reader.left.remove_suffix(1);
    unsigned value = 0;
    for (std::size_t pixel = 0; pixel < kPixels; ++pixel) {
      if (!reader.number(kMaxPixel, true, value))
        return bad_line(file, line,
                        "a pixel from 0 to 16 and a comma as field " + std::to_string(pixel + 1));
      all.x.push_back(static_cast<float>(value) / static_cast<float>(kMaxPixel));
    }
    if (!reader.number(kClasses - 1, false, value))
      return bad_line(file, line, "a digit from 0 to 9 as field 65");
    if (!reader.left.empty()) return bad_line(file, line, "the end of the line after field 65");
    all.y.push_back(value);
    ++all.samples;
  }
  if (all.samples == 0)
    return Error(ErrorCode::kFailedPrecondition,
                 file + " contains no digits; fetch the file again");
  all.name = "digits: UCI handwritten digits, " + std::to_string(all.samples) + " images of 8x8";
  return all;
}

Result<DataSplit> load_digits(const std::string& file, std::uint64_t seed) {
  CENTROID_ASSIGN(const std::string csv,
                  read_file(file, kMaxDigitsBytes, "`./centroid build` fetches it"));
  CENTROID_ASSIGN(const Dataset all, parse_digits(csv, file));
  return stratified_split(all, seed);
}

}  // namespace centroid::worker
