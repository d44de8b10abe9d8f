#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/result.h"

/// Bytes of a journal; docs/internals/journal-formats.md has the table. A segment is a file of
/// records: a base, then chunks and commits. Every record is a head of 40 bytes and its payload.
namespace centroid::journal {

constexpr std::size_t kHeadBytes = 40;
constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{256} << 20;

enum class Kind : std::uint8_t {
  kBase = 1,    ///< first of a segment: the state it begins with
  kChunk = 2,   ///< numbers of one chunk of one attempt
  kCommit = 3,  ///< the round counts, with the chunks of this attempt
  kSkip = 4,    ///< the round is over without effect
  kRoute = 5,   ///< of a leader's journal: on which servers the chunks lie from here on
};

/// What the numbers of a chunk are.
enum class Form : std::uint8_t {
  kNone = 0,
  kSum = 1,         ///< of weight times gradient: the mean is float32(1 / weight) times this
  kMean = 2,        ///< mean gradient
  kParameters = 3,  ///< after the optimizer's step
};

struct Head {
  Kind kind = Kind::kBase;
  Form form = Form::kNone;
  std::uint64_t payload_bytes = 0;
  Round round;
  std::uint32_t attempt = 0;
  ChunkId chunk;
  std::uint32_t payload_crc = 0;
};

/// The state a segment begins with.
struct Base {
  std::string run_id;
  std::string terms;  ///< all settings that a replay's bits depend on, as one line
  Round round;        ///< rounds over before
  Version version;
  std::uint64_t optimizer_step = 0, plan_hash = 0;
  bool follows_gap = false;  ///< rounds before it are in no segment: the journal had failed
};

/// The end of a round.
struct Commit {
  Version version;  ///< after the round, as all that follow
  std::uint64_t optimizer_step = 0, epoch = 0, offset = 0;
  Generation generation;
  double weight = 0;
  std::uint32_t chunks = 0;
  /// Of the segment, when this was written: bytes known to be on the disk. Damage before them is
  /// damage, behind them it may be a write that power loss cut short.
  std::uint64_t durable_bytes = 0;
  double unix_seconds = 0;
  std::vector<std::string> contributors;  ///< names, in the order of the sum
  std::uint64_t steps = 0;                ///< of all workers in all committed rounds; 0: not known
  /// By contributor the round for which it was made: an earlier one when it came late. Empty in
  /// older journals.
  std::vector<Round> rounds;
  std::string returned;    ///< shares behind the position that are yet to be trained
  double rate_factor = 1;  ///< on the learning rate of the round's step, at least 1
};

/// A model on several servers: whose journal has the numbers of which chunk, from here on. A
/// journal without one has all chunks.
struct Route {
  std::vector<std::string> servers;   ///< names; the first is the owner of this journal
  std::vector<std::uint16_t> owners;  ///< by chunk: index of a server
};

std::vector<std::byte> encode(const Head& head);
/// fails data_loss: not one of our heads, or altered; unimplemented: of a later format.
Result<Head> decode_head(Bytes bytes);

std::vector<std::byte> encode(const Base& base);
Result<Base> decode_base(Bytes payload);
std::vector<std::byte> encode(const Commit& commit);
Result<Commit> decode_commit(Bytes payload);
std::vector<std::byte> encode(const Route& route);
Result<Route> decode_route(Bytes payload);

}  // namespace centroid::journal
