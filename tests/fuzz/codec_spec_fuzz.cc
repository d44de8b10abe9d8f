// Codec specs from strangers: what is taken prints itself back.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/codec/spec.h"
#include "tests/fuzz/fuzzer.h"

CENTROID_FUZZER(codec_spec)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  const auto spec = CodecSpec::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!spec.ok()) return 0;
  const auto again = CodecSpec::parse(spec->to_string());
  if (!again.ok() || !(*again == *spec) || again->to_string() != spec->to_string()) std::abort();
  if (spec->ratio.count_of(1000) > 1000) std::abort();
  return 0;
}
