#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "transport/collective/types.h"
#include "transport/session.h"

namespace centroid::collective {

/// Kinds of frames between peers (docs/explanation/rounds.md#connections-between-workers, "On the
/// wire").
enum PeerKind : std::uint16_t {
  kJoin = transport::kFirstMessageKind + 100,
  kJoinReply,
  kData,     ///< one segment of one operation
  kReady,    ///< the operation has begun here: its segments need no credit
  kReturn,   ///< credit for segments that arrived before their operation
  kAbort,    ///< the group is over, and why
  kQuery,    ///< my operation is late: which rank does yours wait for?
  kWaiting,  ///< which rank waits for which, if known
  kLeave,    ///< orderly end
  kStay,     ///< from the caller: this connection is the pair's
};

/// One operation of one group, the same on all its ranks.
struct Key {
  std::uint64_t group = 0;
  std::uint64_t tag = 0;
  std::uint64_t sequence = 0;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return key.group ^ (key.sequence * 0x9E3779B97F4A7C15ULL) ^ (key.tag * 0xC2B2AE3D27D4EB4FULL);
  }
};

/// The agreement of the ranks of one operation.
struct Signature {
  std::uint64_t count = 0;  ///< elements of the complete buffer
  std::uint32_t root = 0;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kU8;
  Reduction reduction = Reduction::kNone;
  Algorithm algorithm = Algorithm::kAuto;
  bool operator==(const Signature&) const = default;
};
std::string to_string(const Signature& signature);  ///< "all_reduce (sum, ring) of 12 f32"

/// Head of kData; 48 bytes, little-endian, in this order.
struct DataHead {
  Key key;
  std::uint64_t count = 0;
  std::uint32_t step = 0;
  std::uint32_t segment = 0;
  std::uint32_t root = 0;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kU8;
  Reduction reduction = Reduction::kNone;
  std::uint8_t algorithm = 0;  ///< bit 7: sent on credit

  Signature signature() const;
  bool is_on_credit() const { return (algorithm & 0x80) != 0; }
};
static_assert(sizeof(DataHead) == 48 && std::is_trivially_copyable_v<DataHead>);

/// Features of a rank; a pair uses those of both.
enum Feature : std::uint32_t {
  kFeatureNoPayloadCrc = 1u << 0,  ///< payloads of data frames travel without a checksum
  kFeatureSharedMemory = 1u << 1,  ///< try it
};

/// Heads of the others.
struct Join {
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
  std::uint32_t features = 0;
};
struct JoinReply {
  std::uint32_t features = 0;     ///< of both
  std::uint32_t shared_port = 0;  ///< where we listen for shared memory
};
inline constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
struct Abort {
  std::uint64_t group = 0;
  ErrorCode code = ErrorCode::kAborted;
  std::uint32_t culprit = kNoRank;  ///< global rank that was lost or silent
  std::string text;
};
struct Waiting {
  Key key;
  std::uint32_t rank = 0;  ///< has begun, and waits; both global ranks
  std::uint32_t waits_for = 0;
};

std::vector<std::byte> encode(const Join& join);
std::vector<std::byte> encode(const JoinReply& reply);
std::vector<std::byte> encode(const Abort& abort);
std::vector<std::byte> encode(const Key& key);
std::vector<std::byte> encode(const Waiting& waiting);
std::vector<std::byte> encode_bytes(std::uint64_t bytes);

/// All fail data_loss: wrong length, or a value out of its range.
Result<DataHead> decode_data(Bytes head);
Result<Join> decode_join(Bytes head);
Result<JoinReply> decode_join_reply(Bytes head);
Result<Abort> decode_abort(Bytes head);
Result<Key> decode_key(Bytes head);
Result<Waiting> decode_waiting(Bytes head);
Result<std::uint64_t> decode_bytes(Bytes head);

}  // namespace centroid::collective
