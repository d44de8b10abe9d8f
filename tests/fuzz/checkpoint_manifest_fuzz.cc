#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/checkpoint/manifest_json.h"
#include "tests/fuzz/fuzzer.h"

/// manifest.json from any bytes: an error, or a content that is read the same after it was written
/// again.
CENTROID_FUZZER(checkpoint_manifest)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  const auto manifest =
      parse_checkpoint_manifest(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!manifest.ok()) return 0;
  const auto text = to_json(*manifest);
  CENTROID_CHECK(text.ok());
  const auto again = parse_checkpoint_manifest(*text);
  CENTROID_CHECK(again.ok() && *to_json(*again) == *text);
  return 0;
}
