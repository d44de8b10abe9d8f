#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/fuzz/fuzzer.h"
#include "worker/data/idx.h"

/// Either kind of IDX file from any bytes: an error, or sizes that fit the bytes.
CENTROID_FUZZER(idx)(const std::uint8_t* data, std::size_t size) {
  const auto content = std::as_bytes(std::span(data, size));
  if (const auto images = centroid::worker::parse_idx_images(content, "fuzz"); images.ok())
    CENTROID_CHECK(images->count >= 1 &&
                   images->pixels.size() == images->count * images->rows * images->columns);
  if (const auto labels = centroid::worker::parse_idx_labels(content, "fuzz"); labels.ok())
    CENTROID_CHECK(!labels->empty() && labels->size() + 8 == size);
  return 0;
}
