#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/checkpoint/journal_format.h"
#include "tests/fuzz/fuzzer.h"

/// Records of the journal of rounds from any bytes: an error, or a content that is read the same
/// after it was written again.
CENTROID_FUZZER(journal)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  const Bytes front = bytes.first(std::min(size, journal::kHeadBytes));
  if (const auto head = journal::decode_head(front); head.ok())
    CENTROID_CHECK(std::ranges::equal(journal::encode(*head), front));
  const Bytes payload = bytes.subspan(front.size());
  const auto is_stable = [](const auto& content, auto decode) {
    const auto written = journal::encode(content);
    const auto again = decode(Bytes(written));
    return again.ok() && journal::encode(*again) == written;
  };
  for (const Bytes part : {bytes, payload}) {
    if (const auto base = journal::decode_base(part); base.ok())
      CENTROID_CHECK(is_stable(*base, journal::decode_base));
    if (const auto commit = journal::decode_commit(part); commit.ok())
      CENTROID_CHECK(is_stable(*commit, journal::decode_commit));
    if (const auto route = journal::decode_route(part); route.ok())
      CENTROID_CHECK(is_stable(*route, journal::decode_route));
  }
  return 0;
}
