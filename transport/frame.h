#pragma once

#include <array>
#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid::transport {

inline constexpr std::uint32_t kFrameMagic = 0x44544E43;  // "CNTD" in memory order
inline constexpr std::uint16_t kWireVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 48;
inline constexpr std::uint32_t kMaxHeadBytes = 1u << 20;

/// Meaning of FrameHeader::flags.
enum FrameFlags : std::uint32_t {
  kFlagRequest = 1u << 0,       ///< requests an answer with the same id
  kFlagResponse = 1u << 1,      ///< answers the request with the same id
  kFlagError = 1u << 2,         ///< with kFlagResponse: the head is an encoded Error
  kFlagNoPayloadCrc = 1u << 3,  ///< the payload has no checksum; only where both sides agreed
};

/// First 48 bytes of every frame (docs/reference/wire.md): then `head_bytes` of head (small,
/// structured), then `payload_bytes` of bulk.
struct FrameHeader {
  std::uint16_t version = kWireVersion;
  std::uint16_t kind = 0;
  std::uint32_t flags = 0;
  std::uint32_t head_bytes = 0;
  std::uint64_t id = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t head_crc = 0;     ///< CRC-32C of the head
  std::uint32_t payload_crc = 0;  ///< CRC-32C of the payload
};

/// Limits of this side; agreed in the handshake (the smaller wins), checked before memory is
/// allocated.
struct FrameLimits {
  std::uint32_t max_head_bytes = 64u << 10;
  std::uint64_t max_payload_bytes = 64u << 20;
  bool accepts_without_crc = false;  ///< payloads without a checksum; agreed after the handshake
};

/// Layout: u32 magic, u16 version, u16 kind, u32 flags, u32 head_bytes, u64 id, u64 payload_bytes,
/// u32 head_crc, u32 payload_crc, u32 zero, u32 header_crc (CRC-32C of the first 44 bytes).
std::array<std::byte, kFrameHeaderBytes> encode_header(const FrameHeader& header);

/// fails data_loss (magic, header CRC, reserved bits, a missing checksum), failed_precondition
/// (other version), resource_exhausted (over a limit; names length and limit). Never trusts a
/// length before the CRC matched.
Result<FrameHeader> decode_header(Bytes bytes, const FrameLimits& limits);

}  // namespace centroid::transport
