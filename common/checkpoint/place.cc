#include "common/checkpoint/place.h"

#include <charconv>
#include <string_view>

namespace centroid {
namespace {

constexpr std::string_view kPlacePrefix = "checkpoint-";

std::string padded(std::uint64_t value, std::size_t width) {
  std::string digits = std::to_string(value);
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return digits;
}

}  // namespace

std::string directory_name(const Place& place) {
  std::string name = std::string(kPlacePrefix) + padded(place.version.value, 12);
  if (place.number > 0) name.append("-").append(padded(place.number, 6));
  return name;
}

std::optional<Place> place_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPlacePrefix)) return std::nullopt;
  Place place;
  const char* const end = name.data() + name.size();
  const char* const dash =
      std::from_chars(name.data() + kPlacePrefix.size(), end, place.version.value).ptr;
  if (dash != end) std::from_chars(dash + 1, end, place.number);
  if (name != directory_name(place)) return std::nullopt;
  return place;
}

}  // namespace centroid
