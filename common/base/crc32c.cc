#include "common/base/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "common/base/crc32c_fold.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace centroid {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41, bits reversed

using Table = std::array<std::uint32_t, 256>;

constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> slices{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    slices[0][byte] = crc;
  }
  for (std::size_t byte = 0; byte < 256; ++byte)
    for (std::size_t k = 1; k < 8; ++k)
      slices[k][byte] = (slices[k - 1][byte] >> 8) ^ slices[0][slices[k - 1][byte] & 0xFF];
  return slices;
}
constexpr auto kSlices = make_slices();

std::uint64_t load64(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// Register in, register out: without the inversions at both ends.
std::uint32_t update_portable(std::uint32_t crc, const std::byte* at, std::size_t n) {
  for (; n >= 8; at += 8, n -= 8) {
    const std::uint64_t x = load64(at) ^ crc;
    crc = kSlices[7][x & 0xFF] ^ kSlices[6][(x >> 8) & 0xFF] ^ kSlices[5][(x >> 16) & 0xFF] ^
          kSlices[4][(x >> 24) & 0xFF] ^ kSlices[3][(x >> 32) & 0xFF] ^
          kSlices[2][(x >> 40) & 0xFF] ^ kSlices[1][(x >> 48) & 0xFF] ^ kSlices[0][x >> 56];
  }
  for (; n > 0; ++at, --n)
    crc = (crc >> 8) ^ kSlices[0][(crc ^ std::to_integer<std::uint32_t>(*at)) & 0xFF];
  return crc;
}

#if defined(__x86_64__) || defined(__aarch64__)

// The instruction takes 3 cycles but starts one per cycle: three parts of the input run side by
// side, and "this register after n zero bytes" joins them. That is linear in the register, so four
// tables of 256 represent it.
class ZeroBytes {
 public:
  constexpr explicit ZeroBytes(std::size_t n) {
    std::array<std::uint32_t, 32> columns{};  // image of each single bit under one zero byte
    for (std::size_t bit = 0; bit < 32; ++bit) {
      std::uint32_t crc = std::uint32_t{1} << bit;
      crc = (crc >> 8) ^ kSlices[0][crc & 0xFF];
      columns[bit] = crc;
    }
    for (std::size_t span = 1; span < n; span *= 2) {  // n is a power of two: square the map
      std::array<std::uint32_t, 32> squared{};
      for (std::size_t bit = 0; bit < 32; ++bit) squared[bit] = apply(columns, columns[bit]);
      columns = squared;
    }
    for (std::size_t k = 0; k < 4; ++k)
      for (std::uint32_t byte = 0; byte < 256; ++byte)
        tables_[k][byte] = apply(columns, byte << (8 * k));
  }
  std::uint32_t after(std::uint32_t crc) const {
    return tables_[0][crc & 0xFF] ^ tables_[1][(crc >> 8) & 0xFF] ^ tables_[2][(crc >> 16) & 0xFF] ^
           tables_[3][crc >> 24];
  }

 private:
  static constexpr std::uint32_t apply(const std::array<std::uint32_t, 32>& columns,
                                       std::uint32_t crc) {
    std::uint32_t out = 0;
    for (std::size_t bit = 0; bit < 32; ++bit)
      if (((crc >> bit) & 1) != 0) out ^= columns[bit];
    return out;
  }
  std::array<Table, 4> tables_{};
};

constexpr std::size_t kLongPart = 4096;
constexpr std::size_t kShortPart = 256;
constexpr ZeroBytes kLongZeros(kLongPart);
constexpr ZeroBytes kShortZeros(kShortPart);

#if defined(__x86_64__)
#define CENTROID_CRC_TARGET __attribute__((target("sse4.2")))
CENTROID_CRC_TARGET inline std::uint64_t step64(std::uint64_t crc, std::uint64_t word) {
  return _mm_crc32_u64(crc, word);
}
CENTROID_CRC_TARGET inline std::uint64_t step8(std::uint64_t crc, std::byte byte) {
  return _mm_crc32_u8(static_cast<std::uint32_t>(crc), std::to_integer<std::uint8_t>(byte));
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#else
#define CENTROID_CRC_TARGET __attribute__((target("+crc")))
CENTROID_CRC_TARGET inline std::uint64_t step64(std::uint64_t crc, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
}
CENTROID_CRC_TARGET inline std::uint64_t step8(std::uint64_t crc, std::byte byte) {
  return __crc32cb(static_cast<std::uint32_t>(crc), std::to_integer<std::uint8_t>(byte));
}
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

template <std::size_t kPart>
CENTROID_CRC_TARGET std::uint64_t three_parts(std::uint64_t crc, const std::byte* at,
                                              const ZeroBytes& zeros) {
  std::uint64_t second = 0;
  std::uint64_t third = 0;
  for (std::size_t i = 0; i < kPart; i += 8) {
    crc = step64(crc, load64(at + i));
    second = step64(second, load64(at + kPart + i));
    third = step64(third, load64(at + 2 * kPart + i));
  }
  second ^= zeros.after(static_cast<std::uint32_t>(crc));
  return third ^ zeros.after(static_cast<std::uint32_t>(second));
}

CENTROID_CRC_TARGET std::uint32_t update_by_instruction(std::uint32_t start, const std::byte* at,
                                                        std::size_t n) {
  std::uint64_t crc = start;
  for (; n >= 3 * kLongPart; at += 3 * kLongPart, n -= 3 * kLongPart)
    crc = three_parts<kLongPart>(crc, at, kLongZeros);
  for (; n >= 3 * kShortPart; at += 3 * kShortPart, n -= 3 * kShortPart)
    crc = three_parts<kShortPart>(crc, at, kShortZeros);
  for (; n >= 8; at += 8, n -= 8) crc = step64(crc, load64(at));
  for (; n > 0; ++at, --n) crc = step8(crc, *at);
  return static_cast<std::uint32_t>(crc);
}

#else

bool has_instruction() { return false; }
std::uint32_t update_by_instruction(std::uint32_t crc, const std::byte* at, std::size_t n) {
  return update_portable(crc, at, n);
}

#endif

std::uint32_t update_by_folding(std::uint32_t crc, const std::byte* at, std::size_t n) {
  if (n >= kCrcFoldBytes) {
    const std::size_t folded = n - n % kCrcFoldBytes;
    crc = fold_crc32c(crc, at, folded);
    at += folded;
    n -= folded;
  }
  return update_by_instruction(crc, at, n);
}

auto fastest_update() {
  if (can_fold_crc32c() && has_instruction()) return update_by_folding;
  return has_instruction() ? update_by_instruction : update_portable;
}

}  // namespace

std::uint32_t crc32c(Bytes bytes, std::uint32_t crc) {
  static const auto kUpdate = fastest_update();
  return ~kUpdate(~crc, bytes.data(), bytes.size());
}

std::uint32_t crc32c_portable(Bytes bytes, std::uint32_t crc) {
  return ~update_portable(~crc, bytes.data(), bytes.size());
}

}  // namespace centroid
