#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/base/ids.h"

namespace centroid {

/// The content of a checkpoint directory's name.
struct Place {
  Version version;
  std::uint64_t number = 0;
};

std::string directory_name(const Place& place);
/// Nothing if it is not the name of a checkpoint's directory.
std::optional<Place> place_of(const std::filesystem::path& path);

}  // namespace centroid
