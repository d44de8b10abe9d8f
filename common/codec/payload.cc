#include "common/codec/payload.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "common/codec/format.h"
#include "common/codec/index_code.h"
#include "common/codec/plain.h"
#include "common/codec/sign.h"
#include "common/tensor/dtype.h"
#include "common/tensor/multiversion.h"

namespace centroid::payload {
namespace {

constexpr std::uint8_t kSparse = 16;  // the form's bit; below it the value type
constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu, kInfinity = 0x7F800000u;
constexpr std::uint16_t kLargestBf16 = 0x7F7F;
constexpr std::size_t kAhead = 24;    // elements between prefetch and addition
constexpr std::size_t kPiece = 4096;  // elements that fill half of the first-level cache

struct ShrinkBf16 {
  CENTROID_KERNEL void run(const float* x, std::byte* out, std::size_t n, bool* finite) {
    std::uint32_t largest = 0;
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t key = std::bit_cast<std::uint32_t>(x[i]) & kMagnitude;
      largest = key > largest ? key : largest;
      const std::uint16_t half = format::FiniteBf16::shrink(x[i]);
      std::memcpy(out + 2 * i, &half, 2);
    }
    *finite = largest < kInfinity;
  }
};

struct ExpandBf16 {
  CENTROID_KERNEL void run(const std::byte* in, float* out, std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      std::uint16_t half;
      std::memcpy(&half, in + 2 * i, 2);
      out[i] = f32_from_bf16(half);
    }
  }
};

/// acc = weight * x, or acc + weight * x, of plain numbers of 2 or 4 bytes.
template <bool kFirst, ValueType kType>
struct AddPlain {
  CENTROID_KERNEL void run(const std::byte* in, float weight, float* acc, std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      float x;
      if constexpr (kType == ValueType::kBf16) {
        std::uint16_t half;
        std::memcpy(&half, in + 2 * i, 2);
        x = f32_from_bf16(half);
      } else {
        std::memcpy(&x, in + 4 * i, 4);
      }
      acc[i] = kFirst ? weight * x : acc[i] + weight * x;
    }
  }
};

struct LargestF32 {
  CENTROID_KERNEL void run(const std::byte* in, std::size_t n, std::uint32_t* largest) {
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, in + 4 * i, 4);
      bits &= kMagnitude;
      most = bits > most ? bits : most;
    }
    *largest = most;
  }
};

struct LargestBf16 {
  CENTROID_KERNEL void run(const std::byte* in, std::size_t n, std::uint32_t* largest) {
    std::uint16_t most = 0;
    for (std::size_t i = 0; i < n; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, in + 2 * i, 2);
      bits &= 0x7FFF;
      most = bits > most ? bits : most;
    }
    *largest = most;
  }
};

bool write_values(ValueType type, int8::Draw draw, std::span<const float> x, std::byte* out) {
  bool finite = true;
  switch (type) {
    case ValueType::kF32:
      if (!x.empty()) std::memcpy(out, x.data(), x.size_bytes());
      break;
    case ValueType::kBf16:
      run_multiversioned<ShrinkBf16>(x.data(), out, x.size(), &finite);
      break;
    case ValueType::kInt8:
      finite = int8::quantize(x, draw, out);
      break;
    case ValueType::kSign:
      finite = sign::quantize(x, out);
      break;
  }
  return finite;
}

void read_values(ValueType type, Bytes in, std::span<float> out) {
  switch (type) {
    case ValueType::kF32:
      if (!out.empty()) std::memcpy(out.data(), in.data(), out.size_bytes());
      break;
    case ValueType::kBf16:
      run_multiversioned<ExpandBf16>(in.data(), out.data(), out.size());
      break;
    case ValueType::kInt8:
      int8::dequantize(in, out);
      break;
    case ValueType::kSign:
      sign::dequantize(in, out);
      break;
  }
}

Error bad(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

Status check_values(const View& view, std::size_t count) {
  std::uint32_t largest = 0;
  switch (view.type) {
    case ValueType::kF32:
      run_multiversioned<LargestF32>(view.values.data(), count, &largest);
      if (view.is_sparse && largest >= kInfinity) return bad("a value is not finite");
      return {};  // a dense payload may have numbers that are not finite
    case ValueType::kBf16:
      run_multiversioned<LargestBf16>(view.values.data(), count, &largest);
      if (largest > kLargestBf16) return bad("a value is not finite");
      return {};
    case ValueType::kInt8:
      return int8::check(view.values, count);
    case ValueType::kSign:
      return sign::check(view.values, count);
  }
  return {};
}

/// The count at the front of `in`, in the fewest bytes; the rest stays in `in`.
Result<std::uint32_t> read_count(Bytes& in) {
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < 5 && at < in.size(); ++at) {
    const auto byte = std::to_integer<std::uint64_t>(in[at]);
    count |= (byte & 0x7F) << (7 * at);
    if (byte >= 0x80) continue;
    if ((byte == 0 && at > 0) || count > std::numeric_limits<std::uint32_t>::max()) break;
    in = in.subspan(at + 1);
    return static_cast<std::uint32_t>(count);
  }
  return bad("the count of a sparse payload is cut short or not in its shortest form");
}

std::size_t count_bytes(std::uint64_t count) {
  return static_cast<std::size_t>(std::bit_width(count | 1) + 6) / 7;
}

/// The parts of a payload, by its form and lengths.
struct Parts {
  bool is_sparse = false;
  ValueType type = ValueType::kF32;
  std::size_t count = 0;
  Bytes index, values;
};

Result<Parts> parts_of(Bytes in, ValueType type, bool may_be_sparse, std::size_t n) {
  if (in.empty()) return bad("0 bytes, not even the form is there");
  const auto form = std::to_integer<std::uint8_t>(in[0]);
  Parts parts;
  parts.is_sparse = (form & kSparse) != 0;
  parts.type = static_cast<ValueType>(form & ~kSparse);
  const bool known = parts.is_sparse ? may_be_sparse && parts.type == type
                                     : parts.type == type || parts.type == ValueType::kF32;
  if (!known) return bad("form " + std::to_string(form) + " is not one of this codec");
  Bytes rest = in.subspan(1);
  if (!parts.is_sparse) {
    const std::size_t needed = value_bytes(parts.type, n);
    if (rest.size() != needed)
      return bad("dense " + std::string(to_string(parts.type)) + ", " + std::to_string(needed + 1) +
                 " bytes were expected for " + std::to_string(n) + " numbers");
    parts.count = n;
    parts.values = rest;
    return parts;
  }
  CENTROID_ASSIGN(parts.count, read_count(rest));
  if (parts.count > n)
    return bad(std::to_string(parts.count) + " numbers are more than the " + std::to_string(n) +
               " there are");
  const std::size_t values = value_bytes(parts.type, parts.count);
  if (values > rest.size())
    return bad("too short for " + std::to_string(parts.count) + " values of " +
               std::string(to_string(parts.type)));
  parts.index = rest.first(rest.size() - values);
  parts.values = rest.subspan(parts.index.size());
  return parts;
}

void add_sparse(const View& view, std::span<const float> values, float weight, bool first,
                std::span<float> acc) {
  const std::uint32_t* index = view.index.data();
  std::size_t j = 0;
  if (first) {  // zeros and numbers together, piece by piece, while the piece is cached
    for (std::size_t begin = 0; begin < acc.size(); begin += kPiece) {
      const std::size_t end = std::min(acc.size(), begin + kPiece);
      std::fill(acc.data() + begin, acc.data() + end, 0.0f);
      for (; j < values.size() && index[j] < end; ++j) acc[index[j]] = weight * values[j];
    }
    return;
  }
  const std::size_t near = values.size() - std::min(values.size(), kAhead);
  for (; j < near; ++j) {
    __builtin_prefetch(&acc[index[j + kAhead]], 1);
    acc[index[j]] += weight * values[j];
  }
  for (; j < values.size(); ++j) acc[index[j]] += weight * values[j];
}

}  // namespace

std::size_t value_bytes(ValueType type, std::size_t n) {
  switch (type) {
    case ValueType::kF32:
      return 4 * n;
    case ValueType::kBf16:
      return 2 * n;
    case ValueType::kInt8:
      return int8::bytes(n);
    case ValueType::kSign:
      return sign::bytes(n);
  }
  return 0;
}

std::size_t sparse_bytes(ValueType type, std::uint64_t count, std::uint64_t n) {
  return 1 + count_bytes(count) + index_code::max_bytes(count, n) + value_bytes(type, count);
}

std::size_t sparse_bytes(ValueType type, std::uint64_t count, std::uint64_t n,
                         std::uint64_t chunks) {
  // More than one: form, count, two paddings, l, and the paddings of values and bounds.
  constexpr std::uint64_t kChunk = 16;
  // Chunks with different means cost up to 0.12 bits more per index, as blocks do (index_code.cc).
  return sparse_bytes(type, count, n) + count / 64 + 1 + chunks * kChunk;
}

std::size_t encode_dense(ValueType type, int8::Draw draw, std::span<const float> x,
                         std::byte* out) {
  *out = static_cast<std::byte>(type);
  if (write_values(type, draw, x, out + 1)) return dense_bytes(type, x.size());
  *out = static_cast<std::byte>(ValueType::kF32);
  write_values(ValueType::kF32, draw, x, out + 1);
  return dense_bytes(ValueType::kF32, x.size());
}

std::size_t encode_sparse(ValueType type, int8::Draw draw, std::span<const std::uint32_t> index,
                          std::span<const float> value, std::byte* out) {
  const std::byte* begin = out;
  *out++ = static_cast<std::byte>(kSparse | static_cast<std::uint8_t>(type));
  std::size_t count = index.size();
  for (; count >= 0x80; count >>= 7) *out++ = static_cast<std::byte>(0x80 | (count & 0x7F));
  *out++ = static_cast<std::byte>(count);
  out += index_code::encode(index, out);
  CENTROID_CHECK(write_values(type, draw, value, out));
  return static_cast<std::size_t>(out - begin) + value_bytes(type, value.size());
}

Result<View> read(Bytes in, ValueType type, bool may_be_sparse, std::size_t n, Scratch& scratch,
                  const float* target) {
  CENTROID_ASSIGN(const Parts parts, parts_of(in, type, may_be_sparse, n));
  View view;
  view.is_sparse = parts.is_sparse;
  view.type = parts.type;
  view.values = parts.values;
  if (view.is_sparse) {
    if (scratch.index.size() < parts.count) scratch.index.resize(parts.count);
    const std::span<std::uint32_t> indices = std::span(scratch.index).first(parts.count);
    CENTROID_TRY(index_code::decode(parts.index, parts.values.size(), n, indices, target));
    view.index = indices;
  }
  CENTROID_TRY(check_values(view, parts.count));
  return view;
}

double squares(Bytes in, ValueType type, bool may_be_sparse, std::size_t n) {
  const auto parts = parts_of(in, type, may_be_sparse, n);
  if (!parts.ok()) return std::numeric_limits<double>::quiet_NaN();
  switch (parts->type) {
    case ValueType::kF32:
      return squares_f32(parts->values);
    case ValueType::kBf16:
      return squares_bf16(parts->values);
    case ValueType::kInt8:
      return int8::squares(parts->values, parts->count);
    case ValueType::kSign:
      return sign::squares(parts->values, parts->count);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

bool is_sparse_payload(Bytes in) {
  return !in.empty() && (std::to_integer<std::uint8_t>(in[0]) & kSparse) != 0;
}

Status check_finite(Bytes in) {
  if (in.empty() || std::to_integer<std::uint8_t>(in[0]) != static_cast<int>(ValueType::kF32))
    return {};
  return check_finite_f32(in.subspan(1));
}

std::span<const float> sent(const View& view, Scratch& scratch) {
  const std::size_t count = view.index.size();
  if (scratch.value.size() < count) scratch.value.resize(count);
  const std::span<float> values = std::span(scratch.value).first(count);
  read_values(view.type, view.values, values);
  return values;
}

void decode(const View& view, Scratch& scratch, std::span<float> out) {
  if (!view.is_sparse) return read_values(view.type, view.values, out);
  std::fill(out.begin(), out.end(), 0.0f);
  const auto values = sent(view, scratch);
  for (std::size_t j = 0; j < values.size(); ++j) out[view.index[j]] = values[j];
}

void add(const View& view, Scratch& scratch, float weight, bool first, std::span<float> acc) {
  if (view.is_sparse) return add_sparse(view, sent(view, scratch), weight, first, acc);
  const std::byte* in = view.values.data();
  const std::size_t n = acc.size();
  if (view.type == ValueType::kInt8)
    int8::dequantize_add(view.values, weight, first, acc);
  else if (view.type == ValueType::kSign)
    sign::dequantize_add(view.values, weight, first, acc);
  else if (view.type == ValueType::kBf16 && first)
    run_multiversioned<AddPlain<true, ValueType::kBf16>>(in, weight, acc.data(), n);
  else if (view.type == ValueType::kBf16)
    run_multiversioned<AddPlain<false, ValueType::kBf16>>(in, weight, acc.data(), n);
  else if (first)
    run_multiversioned<AddPlain<true, ValueType::kF32>>(in, weight, acc.data(), n);
  else
    run_multiversioned<AddPlain<false, ValueType::kF32>>(in, weight, acc.data(), n);
}

}  // namespace centroid::payload
