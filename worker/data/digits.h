#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "worker/data/data_source.h"

namespace centroid::worker {

/// Parse the handwritten digits as scikit-learn ships them.
///
/// shape   per line 64 pixels 0..16 (8 rows of 8) and the digit 0..9, comma-separated; pixels are
///         scaled to [0, 1]
/// fails   data_loss: names `file`, the line, and what was expected; failed_precondition: no line
///         at all
/// source  Alpaydin, Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI (the test part
///         of it)
Result<Dataset> parse_digits(std::string_view csv, const std::string& file);

/// Read and split them.
/// fails  as parse_digits; not_found: names the file and the command that fetches it.
Result<DataSplit> load_digits(const std::string& file, std::uint64_t seed);

}  // namespace centroid::worker
