#include <cstddef>
#include <cstdint>
#include <span>

#include "common/checkpoint/safetensors_header.h"
#include "tests/fuzz/fuzzer.h"

/// A safetensors file from any bytes: an error, or tensors that cover the data exactly and can be
/// written again.
CENTROID_FUZZER(safetensors)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  const auto header = parse_safetensors(std::as_bytes(std::span(data, size)));
  if (!header.ok()) {
    CENTROID_CHECK(!header.error().message().empty());
    return 0;
  }
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < header->manifest.size(); ++i) {
    CENTROID_CHECK(header->offsets[i] == at);
    at += header->manifest[i].bytes();
  }
  CENTROID_CHECK(at <= size);
  const auto built = build_safetensors_header(header->manifest, header->metadata);
  CENTROID_CHECK(built.ok());
  const auto json = std::string_view(*built).substr(8);
  const auto again = parse_safetensors_header(json, at);
  CENTROID_CHECK(again.ok() && again->manifest == header->manifest &&
                 again->offsets == header->offsets && again->metadata == header->metadata);
  return 0;
}
