#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "worker/data/data_source.h"

namespace centroid::worker {

/// Turn a list of Debian packages (`apt-cache dumpavail`) into a text classification task: predict
/// the section (libs, games, python, …) from the name and the first line of the description.
///
/// shape   the 20 largest sections are the classes, by size (ties by name); a component
///         ("universe/net") is dropped; CSR rows of `text_features` columns in ascending order;
///         packages of other sections and repeated entries of a package are skipped
/// units   counts of hashed n-grams (1 and 2 words; 3 to 5 characters inside a word with its
///         borders), scaled to length 1
/// fails   invalid_argument: text_features not in 16..1048576; failed_precondition: fewer than 2
///         sections
/// source  Weinberger et al. 2009, "Feature hashing for large scale multitask learning" (without
///         the sign)
Result<Dataset> parse_packages(std::string_view list, const std::string& file,
                               std::uint64_t text_features);

/// Read `file`, or the output of `apt-cache dumpavail` if `file` is empty, and split it. 4096
/// features.
///
/// fails   as parse_packages; not_found
Result<DataSplit> load_packages(const std::string& file, std::uint64_t seed);

}  // namespace centroid::worker
