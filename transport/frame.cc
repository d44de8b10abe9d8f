#include "transport/frame.h"

#include <cstring>
#include <string>

#include "common/base/crc32c.h"
#include "transport/no_tls.h"

namespace centroid::transport {
namespace {

constexpr std::size_t kCrcOffset = 44;

std::string hex(std::uint32_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 0xF];
  return text;
}

template <class T>
void put(std::byte*& at, T value) {
  std::memcpy(at, &value, sizeof(T));
  at += sizeof(T);
}

template <class T>
T take(const std::byte*& at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  at += sizeof(T);
  return value;
}

}  // namespace

bool is_tls(Bytes bytes) {
  return bytes.size() > 1 && (bytes[0] == std::byte{0x16} || bytes[0] == std::byte{0x15}) &&
         bytes[1] == std::byte{3};
}

std::array<std::byte, kFrameHeaderBytes> encode_header(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> out;
  std::byte* at = out.data();
  put(at, kFrameMagic);
  put(at, header.version);
  put(at, header.kind);
  put(at, header.flags);
  put(at, header.head_bytes);
  put(at, header.id);
  put(at, header.payload_bytes);
  put(at, header.head_crc);
  put(at, header.payload_crc);
  put(at, std::uint32_t{0});
  put(at, crc32c(Bytes(out).first(kCrcOffset)));
  return out;
}

Result<FrameHeader> decode_header(Bytes bytes, const FrameLimits& limits) {
  if (bytes.size() < kFrameHeaderBytes) {
    return Error(ErrorCode::kDataLoss, "frame header has " + std::to_string(bytes.size()) +
                                           " bytes, expected " + std::to_string(kFrameHeaderBytes));
  }
  const std::byte* at = bytes.data();
  if (const auto magic = take<std::uint32_t>(at); magic != kFrameMagic) {
    return Error(ErrorCode::kDataLoss,
                 "frame begins with " + hex(magic) + ", expected " + hex(kFrameMagic) +
                     (is_tls(bytes) ? kNoTls : ": not this protocol, or out of step"));
  }
  FrameHeader header;
  header.version = take<std::uint16_t>(at);
  header.kind = take<std::uint16_t>(at);
  header.flags = take<std::uint32_t>(at);
  header.head_bytes = take<std::uint32_t>(at);
  header.id = take<std::uint64_t>(at);
  header.payload_bytes = take<std::uint64_t>(at);
  header.head_crc = take<std::uint32_t>(at);
  header.payload_crc = take<std::uint32_t>(at);
  const auto reserved = take<std::uint32_t>(at);
  const auto sent_crc = take<std::uint32_t>(at);
  if (const auto crc = crc32c(bytes.first(kCrcOffset)); crc != sent_crc) {
    return Error(ErrorCode::kDataLoss,
                 "frame header checksum is " + hex(crc) + ", the header has " + hex(sent_crc));
  }
  if (header.version != kWireVersion) {
    return Error(ErrorCode::kFailedPrecondition,
                 "frame has wire version " + std::to_string(header.version) + ", expected " +
                     std::to_string(kWireVersion) + ": run the same release on both sides");
  }
  if (reserved != 0) {
    return Error(ErrorCode::kDataLoss,
                 "frame header has reserved field " + hex(reserved) + ", expected 0");
  }
  if ((header.flags & kFlagNoPayloadCrc) != 0 &&
      (!limits.accepts_without_crc || header.payload_crc != 0)) {
    return Error(ErrorCode::kDataLoss,
                 "frame without a checksum of its payload, which was not agreed");
  }
  const auto max_head = std::min(limits.max_head_bytes, kMaxHeadBytes);
  if (header.head_bytes > max_head) {
    return Error(ErrorCode::kResourceExhausted,
                 "frame head of " + std::to_string(header.head_bytes) +
                     " bytes is over the limit of " + std::to_string(max_head));
  }
  if (header.payload_bytes > limits.max_payload_bytes) {
    return Error(ErrorCode::kResourceExhausted,
                 "frame payload of " + std::to_string(header.payload_bytes) +
                     " bytes is over the limit of " + std::to_string(limits.max_payload_bytes));
  }
  return header;
}

}  // namespace centroid::transport
