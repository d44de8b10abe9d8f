#include "worker/exchange/model_planes.h"

#include <algorithm>

#include "common/codec/chunk_codec.h"
#include "common/optim/optimizer.h"

namespace centroid::worker {

namespace {

Result<ChunkPlan> plan_of(const Manifest& manifest, const proto::JoinReply& terms) {
  CENTROID_ASSIGN(auto plan, ChunkPlan::make(manifest, terms.chunk_bytes));
  if (plan.hash() == terms.plan_hash) return plan;
  return Error(ErrorCode::kFailedPrecondition,
               "the server cuts the model into other chunks than this program: run the same "
               "release on both sides");
}

Error wrong_size(const std::string& what, std::uint64_t bytes, const std::string& expected) {
  return Error(ErrorCode::kInvalidArgument,
               what + " has " + std::to_string(bytes) + " bytes, expected " + expected);
}

}  // namespace

Status ModelPlanes::open(const proto::JoinReply& terms) {
  CENTROID_ASSIGN(plan_, plan_of(options_.join.manifest, terms));
  CENTROID_ASSIGN(fragments_, FragmentPlan::make(plan_, terms.fragments));
  params_ = memory_.params;
  moderate_.assign(fragments_.count(), false);
  if (terms.local_steps > 1) CENTROID_TRY(begin_local(terms));
  CENTROID_TRY(open_results(terms));
  if (!terms.apply_on_worker) return {};
  CENTROID_ASSIGN(const auto optimizer, make_optimizer(terms.optimizer));
  slots_.assign(optimizer->slots(), std::vector<float>(plan_.total_elements()));
  return {};
}

Status ModelPlanes::check_unchanged(const proto::JoinReply& terms) const {
  CENTROID_ASSIGN(const auto plan, plan_of(options_.join.manifest, terms));
  if (plan.hash() == plan_.hash() && terms.apply_on_worker == terms_.apply_on_worker &&
      terms.codec_down == terms_.codec_down && terms.fragments == terms_.fragments &&
      (!terms.apply_on_worker || terms.optimizer.name == terms_.optimizer.name) &&
      (terms.local_steps > 1) == (terms_.local_steps > 1))
    return {};
  return Error(ErrorCode::kFailedPrecondition,
               "the server came back with other settings (chunk_bytes, apply, optimizer, "
               "codec_down, local_steps or fragments): restart the worker");
}

/// Contributions are what local steps have changed.
Status ModelPlanes::begin_local(const proto::JoinReply& terms) {
  if (!memory_.begin_local)
    return Error(ErrorCode::kFailedPrecondition,
                 "the server wants " + std::to_string(terms.local_steps) +
                     " local steps a round (local_steps), which this program does not make");
  LocalTerms local;
  local.run_id = terms.run_id;
  local.checkpoint_rounds = terms.checkpoint_rounds;
  local.fragments = terms.fragments;
  CENTROID_ASSIGN(memory_.gradients, memory_.begin_local(local, plan_));
  return {};
}

/// Results arrive as the codec encodes them, or as floats in a plane of their own.
Status ModelPlanes::open_results(const proto::JoinReply& terms) {
  if (terms.codec_down != "f32") {
    if (!terms.apply_on_worker)
      return Error(ErrorCode::kFailedPrecondition,
                   "the server compresses results (codec_down " + terms.codec_down +
                       ") that are parameters: only gradients can be");
    CENTROID_ASSIGN(codec_down_, make_codec(terms.codec_down));
    encoded_results_.resize(plan_.chunks().size());
  } else {
    const std::size_t bytes = plan_.total_elements() * sizeof(float);
    second_plane_ = memory_.allocate ? memory_.allocate(bytes) : Buffer(bytes);
  }
  results_ = second_plane_.as<float>();
  return {};
}

void ModelPlanes::initialize() {
  memory_.initialize(terms_.seed);
  moderate_.assign(fragments_.count(), false);
  if (params_.data() != memory_.params.data())  // the planes have changed places
    std::ranges::copy(memory_.params, params_.begin());
  for (auto& slot : slots_) std::ranges::fill(slot, 0.0f);
}

const Codec& ModelPlanes::codec_of_result(const Chunk& chunk) const {
  return codec_of(*codec_down_, plan_, chunk);
}

Status ModelPlanes::decode_result(const Chunk& chunk, std::span<float> out) const {
  const Status decoded = codec_of_result(chunk).decode(encoded_results_[chunk.id.value], out);
  if (decoded.ok()) return {};
  return decoded.error().with_context("result chunk " + to_string(chunk.id));
}

Result<std::optional<SparseNumbers>> ModelPlanes::sparse_result(const Chunk& chunk) const {
  auto numbers = codec_of_result(chunk).sparse(encoded_results_[chunk.id.value], chunk.elements);
  if (numbers.ok()) return numbers;
  return numbers.error().with_context("result chunk " + to_string(chunk.id));
}

Result<MutableBytes> ModelPlanes::result_memory(const Chunk& chunk, std::uint64_t bytes) {
  const std::string what = "result chunk " + to_string(chunk.id);
  if (!codec_down_) {
    const auto memory = std::as_writable_bytes(results_.subspan(chunk.position, chunk.elements));
    if (bytes != memory.size()) return wrong_size(what, bytes, std::to_string(memory.size()));
    return memory;
  }
  const std::size_t limit = codec_of_result(chunk).max_bytes(chunk.elements);
  if (bytes > limit) return wrong_size(what, bytes, "at most " + std::to_string(limit));
  encoded_results_[chunk.id.value].resize(bytes);
  return MutableBytes(encoded_results_[chunk.id.value]);
}

Result<MutableBytes> ModelPlanes::plane_memory(const proto::StateChunk& head, std::uint64_t bytes) {
  const std::string what = "state chunk " + to_string(head.chunk);
  if (head.chunk.value >= plan_.chunks().size() || head.plane >= planes())
    return Error(ErrorCode::kInvalidArgument,
                 what + " of plane " + std::to_string(head.plane) + " does not exist");
  const Chunk& chunk = plan_.chunk(head.chunk);
  const auto memory =
      std::as_writable_bytes(plane(head.plane).subspan(chunk.position, chunk.elements));
  if (bytes != memory.size()) return wrong_size(what, bytes, std::to_string(memory.size()));
  moderate_.assign(fragments_.count(), false);
  return memory;
}

}  // namespace centroid::worker
