#include "common/codec/plain.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "common/codec/format.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

// Payloads are unaligned: every access is a memcpy, which compiles to a plain unaligned load or
// store.
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

/// Storage of a number, its name, and the exponent bits, which are all set only in NaN and
/// infinities.
struct F32 : format::F32 {
  static constexpr std::string_view kName = "f32";
  using Bits = std::uint32_t;
  static constexpr Bits kExponent = 0x7F800000u;
};
struct Bf16 : format::Bf16 {
  static constexpr std::string_view kName = "bf16";
  using Bits = std::uint16_t;
  static constexpr Bits kExponent = 0x7F80u;
};
struct F16 : format::F16 {
  static constexpr std::string_view kName = "f16";
  using Bits = std::uint16_t;
  static constexpr Bits kExponent = 0x7C00u;
};

template <class Format>
struct HasBad {
  CENTROID_KERNEL void run(const std::byte* in, std::size_t n, bool* found) {
    using Bits = typename Format::Bits;
    Bits bad = 0;
    for (std::size_t i = 0; i < n; ++i) {
      Bits bits;
      std::memcpy(&bits, in + i * sizeof(bits), sizeof(bits));
      bad = static_cast<Bits>(bad | ((bits & Format::kExponent) == Format::kExponent ? 1 : 0));
    }
    *found = bad != 0;
  }
};

template <class Format>
struct AddSquares {
  CENTROID_KERNEL void run(const std::byte* in, std::size_t rows, double* lanes) {
    double sum[16];
    for (std::size_t l = 0; l < 16; ++l) sum[l] = lanes[l];
    for (std::size_t row = 0; row < rows; ++row) {
      CENTROID_INDEPENDENT
      for (std::size_t l = 0; l < 16; ++l) {
        const auto x = static_cast<double>(load<Format>(in, row * 16 + l));
        sum[l] += x * x;
      }
    }
    for (std::size_t l = 0; l < 16; ++l) lanes[l] = sum[l];
  }
};

/// As squares_of in common/tensor/squares.h, for stored numbers.
template <class Format>
double squares_of(Bytes in) {
  const std::size_t n = in.size() / sizeof(typename Format::Stored), rows = n / 16;
  double lanes[16] = {};
  run_multiversioned<AddSquares<Format>>(in.data(), rows, lanes);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (std::size_t i = rows * 16; i < n; ++i) {
    const auto x = static_cast<double>(load<Format>(in.data(), i));
    sum += x * x;
  }
  return sum;
}

template <class Format>
Status check_finite_of(Bytes in) {
  const std::size_t n = in.size() / sizeof(typename Format::Stored);
  bool has_bad = false;
  run_multiversioned<HasBad<Format>>(in.data(), n, &has_bad);
  if (!has_bad) return {};
  std::size_t i = 0;
  while (std::isfinite(load<Format>(in.data(), i))) ++i;
  return Error(ErrorCode::kInvalidArgument, "number " + std::to_string(i) + " is " +
                                                std::to_string(load<Format>(in.data(), i)) +
                                                ", which is not finite");
}

/// Every number becomes the same number of bytes, independently.
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
      return Error(ErrorCode::kInvalidArgument, std::string(Format::kName) + " encode: out has " +
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

  Status check(Bytes in, std::size_t n) const override { return check_length(in, n); }

  double squares(Bytes in, std::size_t n) const override {
    if (in.size() / kWidth != n || in.size() % kWidth != 0)
      return std::numeric_limits<double>::quiet_NaN();
    return squares_of<Format>(in);
  }

  Status check_finite(Bytes in) const override { return check_finite_of<Format>(in); }

 private:
  static constexpr std::size_t kWidth = sizeof(typename Format::Stored);

  static Status check_length(Bytes in, std::size_t n) {
    if (in.size() / kWidth == n && in.size() % kWidth == 0) return {};
    return Error(ErrorCode::kInvalidArgument,
                 std::string(Format::kName) + " payload: " + std::to_string(in.size()) +
                     " bytes received, " + std::to_string(n) + " numbers of " +
                     std::to_string(kWidth) + " bytes were expected");
  }

  std::string spec_;
};

}  // namespace

Status check_finite_f32(Bytes numbers) { return check_finite_of<F32>(numbers); }
double squares_f32(Bytes numbers) { return squares_of<F32>(numbers); }
double squares_bf16(Bytes numbers) { return squares_of<Bf16>(numbers); }

std::unique_ptr<Codec> make_plain_codec(const CodecSpec& spec) {
  if (spec.kind == CodecSpec::Kind::kBf16) return std::make_unique<PlainCodec<Bf16>>(spec);
  if (spec.kind == CodecSpec::Kind::kF16) return std::make_unique<PlainCodec<F16>>(spec);
  return std::make_unique<PlainCodec<F32>>(spec);
}

}  // namespace centroid
