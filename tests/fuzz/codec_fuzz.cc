// Payloads from strangers: every codec must refuse them and change nothing, or decode them alike on
// both paths to numbers that encode again.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/codec/codec.h"
#include "tests/fuzz/fuzzer.h"

CENTROID_FUZZER(codec)(const std::uint8_t* data, std::size_t size) {
  using namespace centroid;
  if (size < 3) return 0;
  static const char* const kSpecs[] = {
      "topk:0.01", "topk:0.01,values=bf16", "topk:0.01,values=int8", "int8", "bf16", "f16", "f32",
      "sign"};
  static const auto codecs = [] {
    std::vector<std::unique_ptr<Codec>> all;
    for (const char* spec : kSpecs) all.push_back(make_codec(spec).value());
    return all;
  }();
  const Codec& codec = *codecs[data[0] % codecs.size()];
  const std::size_t n = data[1] | (data[2] & 0x1Fu) << 8;
  // An exact copy: a read behind its end is seen.
  const std::vector<std::byte> in(reinterpret_cast<const std::byte*>(data + 3),
                                  reinterpret_cast<const std::byte*>(data + size));
  std::vector<float> out(n, 5.0f), acc(n, 5.0f);
  const bool decoded = codec.decode(in, out).ok();
  const bool added = codec.decode_add(in, 1.0f, true, acc).ok();
  if (decoded != added || decoded != codec.check(in, n).ok()) std::abort();
  const double squares = codec.squares(in, n);  // whatever the bytes
  if (!decoded) {
    for (std::size_t i = 0; i < n; ++i)
      if (out[i] != 5.0f || acc[i] != 5.0f) std::abort();
    return 0;
  }
  for (std::size_t i = 0; i < n; ++i)
    if (!(out[i] == acc[i]) && !(std::isnan(out[i]) && std::isnan(acc[i]))) std::abort();
  if (std::isfinite(squares) != codec.check_finite(in).ok()) std::abort();
  std::vector<std::byte> again(codec.max_bytes(n));
  const auto encoded = codec.encode(out, again);
  if (!encoded.ok() || *encoded > again.size()) std::abort();
  if (!codec.decode(Bytes(again).first(*encoded), acc).ok()) std::abort();
  return 0;
}
