#include "server/aggregate/reply_encoder.h"

#include "common/base/random.h"
#include "common/codec/chunk_codec.h"

namespace centroid::server {

Result<std::unique_ptr<ReplyEncoder>> ReplyEncoder::make(const std::string& spec,
                                                         const ChunkPlan& plan,
                                                         std::uint64_t seed) {
  std::unique_ptr<ReplyEncoder> made(new ReplyEncoder(plan, seed));
  CENTROID_ASSIGN(made->spec_, CodecSpec::parse(spec));
  CENTROID_ASSIGN(made->codec_, make_codec(spec));
  if (made->spec_.feedback.enabled) {
    CENTROID_ASSIGN(made->feedback_,
                    ErrorFeedback::make(spec, plan, nullptr, ErrorFeedback::Residual::kCallers));
    // The contributions were checked on arrival. A mean that is too large still arrives, as without
    // a codec.
    made->feedback_->pass_nonfinite(true);
  } else {
    made->out_.resize(largest_payload(*made->codec_, plan));
  }
  made->missing_.resize(plan.chunks().size());
  return made;
}

bool ReplyEncoder::resets_residual() const { return feedback_ && !spec_.feedback.carry; }

void ReplyEncoder::begin(Round round) {
  round_ = round;
  if (!feedback_) return;
  feedback_->forget();
  for (std::uint32_t c = 0; c < missing_.size();) {
    const auto [first, last] = feedback_->unit_of(ChunkId(c));
    missing_[first.value] = last.value - first.value;
    c = last.value;
  }
}

Status ReplyEncoder::complete(ChunkId id, const Memory& memory, const Emit& emit) {
  if (!feedback_) {
    const Chunk& chunk = plan_.chunk(id);
    const std::uint64_t stream = mix64(mix64(seed_, round_.value), id.value);
    CENTROID_ASSIGN(
        const std::size_t bytes,
        codec(chunk).encode(memory.means.subspan(chunk.position, chunk.elements), out_, stream));
    ++plain_.chunks;
    plain_.raw_bytes += chunk.elements * sizeof(float);
    plain_.bytes += bytes;
    emit(chunk, {out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(bytes)});
    return {};
  }
  const auto [first, last] = feedback_->unit_of(id);
  if (--missing_[first.value] > 0) return {};
  for (ChunkId c = first; c < last; c = ChunkId(c.value + 1)) {
    CENTROID_ASSIGN(const Bytes payload,
                    feedback_->encode_onto(c, memory.residual, memory.means, round_.value));
    emit(plan_.chunk(c), {payload.begin(), payload.end()});
  }
  return {};
}

std::pair<ChunkId, ChunkId> ReplyEncoder::unit_of(ChunkId chunk) const {
  if (feedback_) return feedback_->unit_of(chunk);
  return {chunk, ChunkId(chunk.value + 1)};
}

const Codec& ReplyEncoder::codec(const Chunk& chunk) const {
  return codec_of(*codec_, plan_, chunk);
}

void ReplyEncoder::commit() {
  if (!feedback_) return;
  const std::uint64_t rounds = feedback_->rounds() + 1;
  feedback_->commit();
  feedback_->set_rounds(rounds);
}

void ReplyEncoder::set_rounds(std::uint64_t rounds) {
  if (feedback_) feedback_->set_rounds(rounds);
}

ReplyEncoder::Totals ReplyEncoder::totals() const {
  if (!feedback_) return plain_;
  const ErrorFeedback::Totals& of = feedback_->totals();
  return {of.chunks, of.dense_chunks, of.elements * sizeof(float), of.bytes};
}

}  // namespace centroid::server
