#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/base/ids.h"

namespace centroid {

/// What the name of a checkpoint's directory says.
struct Place {
  Version version;
  std::uint64_t number = 0;
};

std::string directory_name(const Place& place);
/// Nothing when it is no name of a checkpoint's directory.
std::optional<Place> place_of(const std::filesystem::path& path);

}  // namespace centroid
