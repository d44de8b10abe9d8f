#include "server/aggregate/contribution_stage.h"

#include <string>

#include "common/codec/chunk_codec.h"

namespace centroid::server {

Status check_length(const Codec& codec, const Chunk& chunk, std::uint64_t bytes) {
  const std::size_t limit = codec.max_bytes(chunk.elements);
  if (bytes == 0) return Error(ErrorCode::kInvalidArgument, "it has no payload");
  if (bytes <= limit) return {};
  return Error(ErrorCode::kInvalidArgument, std::to_string(bytes) + " bytes, at most " +
                                                std::to_string(limit) + " with codec " +
                                                codec.spec());
}

Status check_numbers(const Codec& codec, Bytes payload) {
  const Status finite = codec.check_finite(payload);
  if (finite.ok()) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      finite.error().message() +
          ": report it by PushEnd.nonfinite (docs/reference/wire.md) and do not send the chunk");
}

StagedContribution::StagedContribution(const ChunkPlan& plan, std::shared_ptr<const Codec> codec,
                                       std::size_t chunks)
    : plan_(plan), codec_(std::move(codec)), chunks_(chunks), payloads_(plan.chunks().size()) {}

Status StagedContribution::put(ChunkId chunk, double weight, Buffer payload, std::size_t bytes) {
  if (chunk.value >= payloads_.size())
    return Error(ErrorCode::kInvalidArgument, "chunk " + to_string(chunk) +
                                                  " does not exist; the plan has " +
                                                  std::to_string(payloads_.size()));
  Payload& kept = payloads_[chunk.value];
  if (kept.is_here)
    return Error(ErrorCode::kInvalidArgument, "chunk " + to_string(chunk) + " arrived twice");
  if (received_ > 0 && weight != weight_)
    return Error(ErrorCode::kInvalidArgument, "the weight changed within the contribution, from " +
                                                  std::to_string(weight_) + " to " +
                                                  std::to_string(weight));
  const std::size_t elements = plan_.chunk(chunk).elements;
  const Codec& codec = codec_of(*codec_, plan_, plan_.chunk(chunk));
  const Bytes came = payload.bytes().first(bytes);
  CENTROID_TRY(codec.check(came, elements));
  weight_ = weight;
  squares_ += codec.squares(came, elements);
  kept = Payload{.buffer = std::move(payload), .bytes = bytes, .is_here = true};
  ++received_;
  bytes_ += bytes;
  return {};
}

void StagedContribution::add_to(std::span<float> sum, ChunkId chunk, double weight,
                                bool first) const {
  const Payload& kept = payloads_[chunk.value];
  CENTROID_CHECK(kept.is_here);
  const Codec& codec = codec_of(*codec_, plan_, plan_.chunk(chunk));
  const Status added = codec.decode_add(kept.buffer.bytes().first(kept.bytes),
                                        static_cast<float>(weight), first, sum);
  CENTROID_CHECK(added.ok());  // `put` has checked it
}

}  // namespace centroid::server
