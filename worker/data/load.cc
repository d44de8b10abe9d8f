#include <filesystem>
#include <new>

#include "worker/data/data_source.h"
#include "worker/data/digits.h"
#include "worker/data/idx.h"
#include "worker/data/packages.h"
#include "worker/data/text.h"

namespace centroid::worker {

namespace {

constexpr std::uint32_t kGreyLevels = 17;  // of the digits

Result<DataSplit> load(const DataOptions& options) {
  const std::size_t colon = options.spec.find(':');
  const std::string kind = options.spec.substr(0, colon);
  const std::string place = colon == std::string::npos ? "" : options.spec.substr(colon + 1);
  const bool has_empty_place = colon != std::string::npos && place.empty();
  if ((kind == "digits" || kind == "digits-tokens") && !has_empty_place) {
    const auto cached = std::filesystem::path(options.cache_dir) / "digits.csv.gz";
    CENTROID_ASSIGN(DataSplit split,
                    load_digits(place.empty() ? cached.string() : place, options.seed));
    if (kind == "digits") return split;
    return DataSplit{as_tokens(split.train, kGreyLevels), as_tokens(split.test, kGreyLevels)};
  }
  if (kind == "text" && !place.empty())
    return load_text(place, options.vocabulary_file, options.context, options.seed);
  if (kind == "idx" && !place.empty()) return load_idx(place);
  if (kind == "packages" && !has_empty_place) return load_packages(place, options.seed);
  return Error(ErrorCode::kInvalidArgument,
               "data set '" + options.spec +
                   "' is unknown: expected digits, digits:FILE.csv.gz, digits-tokens, idx:DIR, "
                   "packages, packages:FILE or text:PLACE,...");
}

}  // namespace

Result<DataSplit> load_data(const DataOptions& options) {
  try {
    return load(options);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "data set '" + options.spec + "' does not fit in memory");
  }
}

}  // namespace centroid::worker
