#pragma once

#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid::worker {

/// What one rank gives another of one bucket: payloads of consecutive chunks, and the weight of the
/// numbers in them (docs/explanation/rounds.md#compressed-all-reduce).
///
/// wire    little-endian: f64 weight, u32 form, u32 chunks, u32 bytes of each payload, payloads
enum class PeerForm : std::uint32_t {
  kNothing = 0,  ///< weight 0, no payloads: an empty share
  kNumbers = 1,
  kRefused = 2,  ///< weight, no payloads: there are numbers, but not finite ones
};
inline constexpr std::size_t kPeerHeadBytes = 16;
/// As of a round's contribution.
inline constexpr double kMaxPeerWeight = 1e15;

/// Appends one message to memory that may hold others before it.
class PeerMessageWriter {
 public:
  PeerMessageWriter(std::vector<std::byte>& out, double weight, PeerForm form, std::size_t chunks);
  void add(Bytes payload);

 private:
  std::vector<std::byte>& out_;
  std::size_t begin_, chunk_ = 0;
};

struct PeerMessage {
  double weight = 0;
  PeerForm form = PeerForm::kNothing;
  std::vector<Bytes> payloads;  ///< in the memory of the message
};

/// fails data_loss: cut short, too long, another number of chunks, a weight or form out of range
Result<PeerMessage> read_peer_message(Bytes in, std::size_t chunks);

}  // namespace centroid::worker
