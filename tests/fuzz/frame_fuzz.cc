// Frame headers and endpoints from strangers: decode_header and Endpoint::parse must refuse or give
// back what encodes alike.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/base/crc32c.h"
#include "tests/fuzz/fuzzer.h"
#include "transport/frame.h"
#include "transport/transport.h"

CENTROID_FUZZER(frame)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  using namespace centroid::transport;
  const Bytes input(reinterpret_cast<const std::byte*>(data), size);
  const FrameLimits limits;
  if (!decode_header(input, limits).ok() && size >= kFrameHeaderBytes) {
    // A right checksum lets the fuzzer reach the checks behind it.
    std::array<std::byte, kFrameHeaderBytes> raw;
    std::copy_n(input.begin(), raw.size(), raw.begin());
    std::memcpy(raw.data(), &kFrameMagic, sizeof kFrameMagic);
    const std::uint32_t crc = crc32c(Bytes(raw).first(44));
    std::memcpy(raw.data() + 44, &crc, sizeof crc);
    const auto header = decode_header(raw, limits);
    if (header.ok()) {
      if (encode_header(*header) != raw) std::abort();
      if (header->head_bytes > limits.max_head_bytes) std::abort();
      if (header->payload_bytes > limits.max_payload_bytes) std::abort();
    }
  }
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto endpoint = Endpoint::parse(text);
  if (endpoint.ok()) {
    const auto again = Endpoint::parse(endpoint->to_string());
    if (!again.ok() || !(*again == *endpoint)) std::abort();
  }
  return 0;
}
