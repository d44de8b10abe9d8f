#include "common/codec/index_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "common/tensor/multiversion.h"

namespace centroid::index_code {
namespace {

constexpr int kMostLow = 31;

/// The best l for `count` random gaps with sum `sum`: the smallest with 2^l >= mean * ln(golden
/// ratio), 31537 / 65536.
int low_bits(std::uint64_t count, std::uint64_t sum) {
  int l = 0;
  while (l < kMostLow && (count << (l + 16)) < 31537 * sum) ++l;
  return l;
}

std::uint64_t load64(const std::byte* from) {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::uint64_t low_mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

/// One block of gaps: `previous` is the index before it, -1 at the start.
std::byte* encode_block(std::span<const std::uint32_t> index, std::uint32_t previous,
                        std::byte* out) {
  const std::size_t count = index.size();
  const std::uint64_t sum = std::uint64_t{index[count - 1]} - (previous + 1u) + 1 - count;
  const int l = low_bits(count, sum);
  const auto mask = static_cast<std::uint32_t>(low_mask(l));
  *out++ = static_cast<std::byte>(l);
  // Upper parts: bit q + j for the j-th gap, q summed up; at most count + sum / 2^l < 3.1 count
  // bits.
  std::array<std::uint64_t, 4 * kBlock / 64> ones;
  std::fill_n(ones.begin(), (count + (sum >> l)) / 64 + 1, std::uint64_t{0});
  std::uint64_t bits = 0, at = 0;
  int filled = 0;
  for (const std::uint32_t i : index) {
    const std::uint32_t gap = i - previous - 1;
    previous = i;
    bits |= static_cast<std::uint64_t>(gap & mask) << filled;
    filled += l;
    if (filled >= 32) {
      const auto half = static_cast<std::uint32_t>(bits);
      std::memcpy(out, &half, sizeof half);
      out += sizeof half;
      bits >>= 32;
      filled -= 32;
    }
    at += gap >> l;
    ones[at / 64] |= std::uint64_t{1} << (at % 64);
    ++at;
  }
  const auto rest = static_cast<std::size_t>(filled + 7) / 8;
  std::memcpy(out, &bits, rest);
  out += rest;
  const std::size_t bytes = (at + 7) / 8;
  std::memcpy(out, ones.data(), bytes);
  return out + bytes;
}

Error bad(const std::string& what) { return {ErrorCode::kInvalidArgument, "indices: " + what}; }

/// The unread rest. Loads are 8 bytes wide: that many must follow `end`.
struct Reader {
  const std::byte* at;
  const std::byte* end;
  std::uint64_t next = 0;  // the lowest valid index
};

/// Read `count` indices; returns the cause of a failure.
[[gnu::always_inline]] inline const char* read_block(Reader& in, std::uint32_t* out,
                                                     std::size_t count, const float* target) {
  if (in.at == in.end) return "too short";
  const int l = std::to_integer<int>(*in.at);
  if (l > kMostLow) return "more than 31 low bits";
  const std::size_t low_bytes = (count * static_cast<std::size_t>(l) + 7) / 8;
  if (static_cast<std::size_t>(in.end - in.at) < 1 + low_bytes) return "too short";
  const std::byte* low = in.at + 1;
  const std::byte* high = low + low_bytes;
  const std::uint64_t mask = low_mask(l);
  std::uint64_t low_at = 0, lows = in.next, passed = 0, last = 0, ones = 0;
  for (std::size_t j = 0;;) {
    if (high >= in.end) return "too short";
    ones = load64(high);
    const auto left = static_cast<std::size_t>(in.end - high);
    if (left < 8) ones &= low_mask(static_cast<int>(8 * left));
    const std::size_t stop = std::min(count, j + static_cast<std::size_t>(std::popcount(ones)));
    for (; j < stop; ++j) {
      last = static_cast<std::uint64_t>(std::countr_zero(ones));
      ones &= ones - 1;
      lows += (load64(low + low_at / 8) >> (low_at % 8)) & mask;
      low_at += static_cast<std::uint64_t>(l);
      // Of the bits before this one, j are ones; the others count upper parts.
      out[j] = static_cast<std::uint32_t>(((passed + last - j) << l) + lows + j);
      if (target != nullptr) __builtin_prefetch(target + out[j], 1, 2);
    }
    if (j == count) break;
    passed += 64;
    high += 8;
  }
  const int padding = static_cast<int>(7 - last % 8);
  if ((ones & (low_mask(padding) << last << 1)) != 0) return "padding is not 0";
  if (low_at % 8 != 0 && (std::to_integer<unsigned>(low[low_bytes - 1]) >> (low_at % 8)) != 0)
    return "padding is not 0";
  in.next = ((passed + last + 1 - count) << l) + lows + count;
  in.at = high + last / 8 + 1;
  return nullptr;
}

[[gnu::always_inline]] inline const char* read_blocks(Reader& in, std::uint64_t n,
                                                      std::span<std::uint32_t> out,
                                                      const float* target) {
  for (std::size_t begin = 0; begin < out.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, out.size() - begin);
    if (const char* cause = read_block(in, out.data() + begin, count, target)) return cause;
    if (in.next > n) return "an index is out of range";
  }
  return in.at == in.end ? nullptr : "too long";
}

const char* read_plain(Reader& in, std::uint64_t n, std::span<std::uint32_t> out,
                       const float* target) {
  return target != nullptr ? read_blocks(in, n, out, target) : read_blocks(in, n, out, nullptr);
}

#if defined(__x86_64__)
// The same text compiled with the machine's bit instructions.
[[gnu::target("bmi,bmi2,popcnt")]] const char* read_bmi(Reader& in, std::uint64_t n,
                                                        std::span<std::uint32_t> out,
                                                        const float* target) {
  return target != nullptr ? read_blocks(in, n, out, target) : read_blocks(in, n, out, nullptr);
}

bool has_bmi() {
  static const bool has = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                          __builtin_cpu_supports("popcnt");
  return has && active_isa() >= Isa::kAvx2;
}
#else
bool has_bmi() { return false; }
const char* read_bmi(Reader& in, std::uint64_t n, std::span<std::uint32_t> out,
                     const float* target) {
  return read_blocks(in, n, out, target);
}
#endif

}  // namespace

std::size_t max_bytes(std::uint64_t count, std::uint64_t n) {
  if (count == 0) return 0;
  const std::uint64_t sum = n - count;
  const int l = low_bits(count, sum);
  const std::uint64_t bits = count * static_cast<std::uint64_t>(l + 1) + (sum >> l);
  // Blocks with different means cost up to 0.12 bits more per index; each has two paddings and l.
  return (bits + count / 2) / 8 + 3 * ((count + kBlock - 1) / kBlock) + 1;
}

std::size_t encode(std::span<const std::uint32_t> index, std::byte* out) {
  const std::byte* begin = out;
  std::uint32_t previous = ~0u;
  for (std::size_t at = 0; at < index.size(); at += kBlock) {
    const auto block = index.subspan(at, std::min(kBlock, index.size() - at));
    out = encode_block(block, previous, out);
    previous = block.back();
  }
  return static_cast<std::size_t>(out - begin);
}

Status decode(Bytes in, std::size_t behind, std::uint64_t n, std::span<std::uint32_t> out,
              const float* target) {
  if (in.size() >> 32 != 0) return bad("more than 4 GiB");
  std::vector<std::byte> copy;
  if (behind < 8) {
    copy.resize(in.size() + 8);
    std::copy(in.begin(), in.end(), copy.begin());
    in = Bytes(copy).first(in.size());
  }
  Reader reader{in.data(), in.data() + in.size()};
  const char* cause =
      has_bmi() ? read_bmi(reader, n, out, target) : read_plain(reader, n, out, target);
  if (cause == nullptr) return {};
  return bad(std::string(cause) + "; " + std::to_string(in.size()) + " bytes for " +
             std::to_string(out.size()) + " of " + std::to_string(n) + " positions");
}

}  // namespace centroid::index_code
