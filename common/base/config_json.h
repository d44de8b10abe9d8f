#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/config_value.h"

// The configuration file as a flat list. Private to config.
namespace centroid::config::detail {

/// One value of the file: nested objects are joined by dots.
struct Leaf {
  std::string path;
  Scalar value;
  std::size_t line = 0;  ///< of its key
};

/// Read a JSON object.
/// fails  invalid_argument: "<source>:<line>:<column>: ..." for bad JSON; a key given twice.
Result<std::vector<Leaf>> read_leaves(std::string_view text, const std::string& source);

}  // namespace centroid::config::detail
