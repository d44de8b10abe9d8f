#include "common/codec/plain.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "common/tensor/dtype.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

// Payloads have no alignment of their own: every access to them is a memcpy, which compiles to a
// plain unaligned load or store.
template <class Format>
[[gnu::always_inline]] inline float load(const std::byte* in, std::size_t i) {
  typename Format::Stored stored;
  std::memcpy(&stored, in + i * sizeof(stored), sizeof(stored));
  return Format::expand(stored);
}

template <class Format>
struct Encode {
  CENTROID_KERNEL void run(const float* __restrict x, std::byte* __restrict out, std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const typename Format::Stored stored = Format::shrink(x[i]);
      std::memcpy(out + i * sizeof(stored), &stored, sizeof(stored));
    }
  }
};

template <class Format>
struct Decode {
  CENTROID_KERNEL void run(const std::byte* __restrict in, float* __restrict out, std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) out[i] = load<Format>(in, i);
  }
};

template <class Format>
struct DecodeFirst {
  CENTROID_KERNEL void run(const std::byte* __restrict in, float scale, float* __restrict acc,
                           std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) acc[i] = scale * load<Format>(in, i);
  }
};

template <class Format>
struct DecodeAdd {
  CENTROID_KERNEL void run(const std::byte* __restrict in, float scale, float* __restrict acc,
                           std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) acc[i] = acc[i] + scale * load<Format>(in, i);
  }
};

struct F32 {
  using Stored = float;
  static constexpr std::string_view kName = "f32";
  static float shrink(float x) { return x; }
  static float expand(float x) { return x; }
};

struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr std::string_view kName = "bf16";
  static std::uint16_t shrink(float x) { return bf16_from_f32(x); }
  static float expand(std::uint16_t x) { return f32_from_bf16(x); }
};

/// As dtype.h converts, but free of branches, so that loops become vector code.
/// source  Giesen 2012, "Float->half variants" (rounding by a float addition for subnormal results)
struct F16 {
  using Stored = std::uint16_t;
  static constexpr std::string_view kName = "f16";

  static std::uint16_t shrink(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const bool is_finite = magnitude < 0x7F800000u;
    const bool is_nan = magnitude > 0x7F800000u;
    const std::uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    magnitude = is_finite && magnitude > 0x477FE000u ? 0x477FE000u : magnitude;  // 65504
    const std::uint32_t normal =
        (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // the last bit is now 2^-24
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
    std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = is_finite ? half : 0x7C00u;
    half = is_nan ? nan : half;
    return static_cast<std::uint16_t>(sign | half);
  }

  static float expand(std::uint16_t x) {
    const std::uint32_t sign = (x & 0x8000u) << 16;
    const std::uint32_t shifted = (x & 0x7FFFu) << 13;
    const std::uint32_t exponent = shifted & 0x0F800000u;
    const std::uint32_t normal = shifted + (112u << 23);
    const float subnormal = std::bit_cast<float>(shifted + (113u << 23)) - 0x1p-14f;
    const std::uint32_t special =
        (shifted & 0x007FFFFFu) != 0 ? 0x7FC00000u | shifted : 0x7F800000u;
    std::uint32_t bits = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
    bits = exponent == 0x0F800000u ? special : bits;
    return std::bit_cast<float>(sign | bits);
  }
};

/// Every number becomes the same count of bytes, each on its own.
template <class Format>
class PlainCodec final : public Codec {
 public:
  explicit PlainCodec(const CodecSpec& spec) : spec_(spec.to_string()) {}

  std::string spec() const override { return spec_; }

  std::size_t max_bytes(std::size_t n) const override {
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
    return n > kMost / kWidth ? kMost : n * kWidth;
  }

  Result<std::size_t> encode(std::span<const float> x, MutableBytes out,
                             std::uint64_t /*stream*/) const override {
    const std::size_t bytes = max_bytes(x.size());
    if (out.size() < bytes)
      return Error(ErrorCode::kInvalidArgument, std::string(Format::kName) + " encode: out holds " +
                                                    std::to_string(out.size()) + " bytes, " +
                                                    std::to_string(x.size()) + " numbers need " +
                                                    std::to_string(bytes));
    run_multiversioned<Encode<Format>>(x.data(), out.data(), x.size());
    return bytes;
  }

  Status decode_add(Bytes in, float scale, bool first, std::span<float> acc) const override {
    CENTROID_TRY(check_length(in, acc.size()));
    if (first)
      run_multiversioned<DecodeFirst<Format>>(in.data(), scale, acc.data(), acc.size());
    else
      run_multiversioned<DecodeAdd<Format>>(in.data(), scale, acc.data(), acc.size());
    return {};
  }

  Status decode(Bytes in, std::span<float> out) const override {
    CENTROID_TRY(check_length(in, out.size()));
    run_multiversioned<Decode<Format>>(in.data(), out.data(), out.size());
    return {};
  }

 private:
  static constexpr std::size_t kWidth = sizeof(typename Format::Stored);

  static Status check_length(Bytes in, std::size_t n) {
    if (in.size() / kWidth == n && in.size() % kWidth == 0) return {};
    return Error(ErrorCode::kInvalidArgument,
                 std::string(Format::kName) + " payload: " + std::to_string(in.size()) +
                     " bytes came, " + std::to_string(n) + " numbers of " + std::to_string(kWidth) +
                     " bytes were expected");
  }

  std::string spec_;
};

}  // namespace

std::unique_ptr<Codec> make_plain_codec(const CodecSpec& spec) {
  if (spec.kind == CodecSpec::Kind::kBf16) return std::make_unique<PlainCodec<Bf16>>(spec);
  if (spec.kind == CodecSpec::Kind::kF16) return std::make_unique<PlainCodec<F16>>(spec);
  return std::make_unique<PlainCodec<F32>>(spec);
}

}  // namespace centroid
