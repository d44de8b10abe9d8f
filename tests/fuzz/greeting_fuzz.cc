#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/fuzzer.h"
#include "transport/handshake.h"

// Heads of the session layer from an unauthenticated peer. What decodes must encode to the same
// bytes, but for what a later version appends.
CENTROID_FUZZER(greeting)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  using namespace centroid::transport;
  const Bytes head = std::as_bytes(std::span(data, size));
  const auto is_prefix = [&](const std::vector<std::byte>& encoded) {
    return encoded.size() <= head.size() &&
           std::equal(encoded.begin(), encoded.end(), head.begin());
  };
  if (const auto hello = decode_hello(head); hello.ok()) {
    if (!check_greeting(hello.value()).ok() || !is_prefix(encode_hello(hello.value())))
      std::abort();
    Greeting ours;
    ours.token = "secret";
    ours.run_id = "run";
    ours.manifest_hash = 1;
    const auto verdict = judge_hello(ours, hello.value(), "fuzz");
    if (verdict.ok() && hello.value().token != ours.token) std::abort();
    if (verdict.ok() && hello.value().manifest_hash > ours.manifest_hash) std::abort();
  }
  if (const auto welcome = decode_welcome(head);
      welcome.ok() && !is_prefix(encode_welcome(welcome.value())))
    std::abort();
  if (const auto credit = decode_credit(head);
      credit.ok() && !is_prefix(encode_credit(credit.value())))
    std::abort();
  (void)decode_error(head).to_string();
  return 0;
}
