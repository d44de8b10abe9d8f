#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/checkpoint/rows_journal.h"
#include "tests/fuzz/fuzzer.h"

/// Records of the tables' journal from any bytes: an error, or a content that gives the same bytes
/// when it is written again.
CENTROID_FUZZER(rows_journal)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  (void)rows_journal::decode_head(bytes.first(std::min(size, rows_journal::kHeadBytes)));
  if (const auto base = rows_journal::decode_base(bytes); base.ok())
    CENTROID_CHECK(rows_journal::decode_base(rows_journal::encode(*base)).ok());
  const auto entries = rows_journal::decode_batch(bytes);
  if (!entries.ok()) return 0;
  std::vector<std::byte> again;
  for (const auto& entry : *entries) rows_journal::append(entry, again);
  CENTROID_CHECK(again.size() == size);
  return 0;
}
