#include "worker/exchange/star_contribution.h"

#include <algorithm>
#include <cmath>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/tensor/squares.h"

namespace centroid::worker {

using proto::Kind;
using transport::Session;

namespace {

/// Between polls of a GPU that selects; heartbeats and results go on meanwhile.
constexpr std::chrono::microseconds kPoll{100};

/// Checksum of the numbers' bytes, or nothing when one is not finite. In small pieces, so that the
/// second pass finds each in cache. Adds their squares to `squares`.
std::optional<std::uint32_t> checksum_of_finite(std::span<const float> values, double* squares) {
  constexpr std::size_t kPiece = 8192;
  std::uint32_t crc = 0;
  while (!values.empty()) {
    const auto piece = values.first(std::min(values.size(), kPiece));
    const double sum = squares_of(piece);
    if (!std::isfinite(sum)) return std::nullopt;  // no float's square is infinite in double
    *squares += sum;
    crc = crc32c(std::as_bytes(piece), crc);
    values = values.subspan(piece.size());
  }
  return crc;
}

}  // namespace

Status StarContribution::open() {
  CENTROID_ASSIGN(codec_, make_codec(link_.options.join.codec));
  return {};
}

Task<Status> StarContribution::send(Session& leader, proto::RoundOpen open) {
  const bool has_share = open.end > open.begin;
  const bool needs_tokens = link_.model.terms().weight_by == proto::WeightBy::kTokens;
  const bool needs_all = link_.feedback.own() && link_.feedback.own()->needs_all();
  const std::size_t tensors = link_.model.fragment_of(open).tensors.size();
  const std::vector<TensorId>& ready = round_.ready_tensors();
  std::size_t next = 0;
  squares_ = 0;
  while (!is_over(leader, open)) {
    const bool must_wait =
        (needs_all && ready.size() < tensors) || (needs_tokens && !round_.stats());
    const bool is_done = !has_share || next == tensors || round_.is_nonfinite();
    if (!is_done && !must_wait && next < ready.size()) {
      for (const Chunk& chunk : link_.model.plan().chunks_of(ready[next])) {
        Session* const owner = co_await routes_.owner_of(chunk.id, leader);
        if (owner == nullptr) co_return Status();
        CENTROID_CO_TRY(co_await send_chunk(*owner, chunk, open));
        if (!round_.is_current(open) || round_.is_nonfinite()) break;
      }
      ++next;
    } else if (round_.stats() && is_done) {
      auto head = round_.push_end(open, round_.is_nonfinite() ? kNoNorm : squares_);
      co_return co_await LinkContext::send(leader, Kind::kPushEnd, std::move(head));
    } else if (!co_await round_.changed()) {
      co_return Status();
    }
  }
  co_return Status();
}

Task<Status> StarContribution::send_chunk(Session& session, const Chunk& chunk,
                                          const proto::RoundOpen& open) {
  const auto values = link_.model.gradients_of(chunk);
  Payload payload;
  bool is_finite = true;
  if (link_.options.join.codec == "f32" || link_.model.plan().is_buffer(chunk)) {
    is_finite = check_plain(values, !session.sends_unsummed(), payload);
  } else {
    const TimePoint begin = now();
    while (link_.feedback.own() && !link_.feedback.own()->prepare(chunk.id, open.round.value)) {
      const TimePoint soon = now() + kPoll;  // a GPU is at it
      const bool goes_on = co_await sleep_until(soon);
      // What was begun may have been taken back meanwhile.
      if (!goes_on || is_over(session, open)) co_return Status();
    }
    CENTROID_CO_ASSIGN(is_finite, encode(chunk, open, payload));
    if (is_finite) {
      const double seconds =
          link_.counters.encode.ended(link_.counters.lane, begin, now(), open.round.value);
      link_.counters.update([&](CodecTotals& totals) { totals.encode_seconds += seconds; });
    }
  }
  if (!is_finite) round_.set_nonfinite(link_.model.plan().manifest()[chunk.tensor.value].name);
  if (!is_finite || !round_.is_current(open)) co_return Status();
  proto::Push push;
  push.generation = open.generation;
  push.round = open.round;
  push.attempt = open.attempt;
  push.chunk = chunk.id;
  push.weight = round_.weight_of(open);
  const auto head = proto::encode(push);
  const auto kind = static_cast<std::uint16_t>(Kind::kPush);
  const TimePoint begin = now();
  const Status sent =
      co_await session.send(kind, head, payload.bytes, TimePoint::max(), payload.crc);
  ExchangeCounters& counters = link_.counters;
  counters.send_seconds += counters.send.ended(counters.lane, begin, now(), open.round.value);
  counters.bytes_out.add(static_cast<double>(payload.bytes.size()));
  counters.update([&](CodecTotals& totals) {
    totals.raw_out += values.size_bytes();
    totals.encoded_out += payload.bytes.size();
    ++totals.chunks;
    if (link_.feedback.own()) totals.dense_chunks = link_.feedback.own()->totals().dense_chunks;
  });
  // Of a shard server's session its end says why, with its name (ShardRoutes).
  const bool is_leader = &session == link_.leader;
  co_return is_leader ? sent : Status();
}

/// The numbers as they are. False: one is not finite.
bool StarContribution::check_plain(std::span<const float> values, bool needs_crc, Payload& out) {
  out.bytes = std::as_bytes(values);
  if (!link_.model.checks_nonfinite()) return true;
  double sum = 0;
  if (needs_crc)
    out.crc = checksum_of_finite(values, &sum);
  else
    sum = squares_of(values);
  squares_ += sum;
  return needs_crc ? out.crc.has_value() : std::isfinite(sum);
}

/// The numbers in the codec's form. False: one is not finite.
Result<bool> StarContribution::encode(const Chunk& chunk, const proto::RoundOpen& open,
                                      Payload& out) {
  auto bytes = encoded(chunk, open);
  // A GPU that fails is no gradient that is not finite: this worker ends, and not the job.
  if (!bytes.ok() && bytes.error().code() == ErrorCode::kInternal) return std::move(bytes).error();
  if (!bytes.ok()) {  // e.g. what was left out so far and this gradient are infinite together
    log::warn("codec.refused", {{"round", open.round.value}, {"why", bytes.error()}});
    return false;
  }
  out.bytes = *bytes;
  double squares = 0;
  if (link_.model.checks_nonfinite())
    squares = codec_->squares(out.bytes, chunk.elements);  // as the server will
  squares_ += squares;
  // bf16 rounds the very largest numbers to infinity. Error feedback has checked while it added.
  return link_.feedback.own() != nullptr || std::isfinite(squares);
}

/// The chunk as it goes on the wire; the same bytes in every attempt of the round.
Result<Bytes> StarContribution::encoded(const Chunk& chunk, const proto::RoundOpen& open) {
  if (link_.feedback.own())
    return link_.feedback.own()->encode(chunk.id, link_.model.memory().gradients, open.round.value);
  if (encoded_.empty()) encoded_.resize(codec_->max_bytes(link_.model.plan().max_chunk_elements()));
  const std::uint64_t stream =
      mix64(mix64(link_.model.terms().seed, open.round.value), mix64(open.begin, chunk.id.value));
  CENTROID_ASSIGN(const auto bytes,
                  codec_->encode(link_.model.gradients_of(chunk), encoded_, stream));
  return Bytes(encoded_).first(bytes);
}

}  // namespace centroid::worker
