#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/fuzzer.h"
#include "worker/data/digits.h"
#include "worker/data/packages.h"
#include "worker/data/split.h"

/// Digits and package lists from any text: an error, or a data set whose parts fit each other and
/// can be split.
CENTROID_FUZZER(digits)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid::worker;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto check = [](const centroid::Result<Dataset>& all) {
    if (!all.ok()) return;
    CENTROID_CHECK(all->samples >= 1 && all->y.size() == all->samples);
    for (const std::uint32_t label : all->y) CENTROID_CHECK(label < all->classes);
    for (const std::uint32_t column : all->cols) CENTROID_CHECK(column < all->features);
    const DataSplit split = stratified_split(*all, 1);
    CENTROID_CHECK(split.train.samples + split.test.samples == all->samples);
  };
  check(parse_digits(text, "fuzz"));
  check(parse_packages(text, "fuzz", 64));
  return 0;
}
