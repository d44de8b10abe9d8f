#include "server/shard/model_shard.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/optim/norm.h"

namespace centroid::server {

ModelShard::ModelShard(ChunkPlan plan, FragmentPlan fragments, std::unique_ptr<Optimizer> optimizer,
                       bool stores_residual, const Terms& terms)
    : terms_(terms),
      store_(std::move(plan), std::move(optimizer), stores_residual),
      fragments_(std::move(fragments)),
      moderate_(fragments_.count()) {
  store_.set_fragments(fragments_.count());
  assign({});
}

Result<std::unique_ptr<ModelShard>> ModelShard::make(ChunkPlan plan, FragmentPlan fragments,
                                                     std::unique_ptr<Optimizer> optimizer,
                                                     const Terms& terms) {
  CENTROID_ASSIGN(const CodecSpec down, CodecSpec::parse(terms.codec_down));
  try {
    std::unique_ptr<ModelShard> shard(new ModelShard(
        std::move(plan), std::move(fragments), std::move(optimizer), down.feedback.enabled, terms));
    if (terms.codec_down == "f32") return shard;
    CENTROID_ASSIGN(shard->encoder_,
                    ReplyEncoder::make(terms.codec_down, shard->plan(), terms.seed));
    shard->mean_.resize(shard->plan().max_chunk_elements());
    return shard;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for the model, its optimizer slots and residual");
  }
}

void ModelShard::assign(std::vector<bool> is_mine) {
  is_mine_ = std::move(is_mine);
  parts_.assign(fragments_.count(), {});
  for (std::uint32_t number = 0; number < fragments_.count(); ++number)
    for (const Chunk& chunk : fragments_[number].chunks)
      if (this->is_mine(chunk.id)) parts_[number].push_back(chunk);
}

void ModelShard::apply_assignment() {
  const auto is_placed = [this](const Chunk& chunk) {
    return is_mine(chunk.id) == store_.is_here(chunk.id);
  };
  if (std::ranges::all_of(plan().chunks(), is_placed)) return;
  store_.place(is_mine_.empty() ? std::vector<bool>(plan().chunks().size(), true) : is_mine_);
}

std::size_t ModelShard::count_of_mine() const {
  std::size_t count = 0;
  for (const std::vector<Chunk>& part : parts_) count += part.size();
  return count;
}

bool ModelShard::is_early() const {
  if (terms_.apply_on_worker) return true;
  return store_.optimizer().slots() == 0 && terms_.clip_norm == 0 && !terms_.scales_rate;
}

journal::Form ModelShard::form() const {
  if (terms_.apply_on_worker) return journal::Form::kMean;
  return is_early() ? journal::Form::kParameters : journal::Form::kSum;
}

void ModelShard::add_up(const Chunk& chunk, std::span<const WeighedPart> parts) {
  if (parts.empty()) return;
  const std::span<float> sum = store_.spare(chunk);
  for (const WeighedPart& part : parts)
    part.contribution->add_to(sum, chunk.id, part.weight, &part == &parts.front());
}

double ModelShard::squares(const Chunk& chunk) const {
  PlaneNorm norm;
  if (!plan().is_buffer(chunk)) norm.add(chunk.position, store_.spare(chunk));
  return norm.end_chunk();
}

void ModelShard::apply(const Chunk& chunk) {
  if (terms_.apply_on_worker)
    store_.shadow_apply(chunk);
  else
    store_.apply(chunk);
}

bool ModelShard::is_result_finite(const Chunk& chunk, bool is_large) {
  const auto result = terms_.apply_on_worker ? store_.params(chunk) : store_.spare(chunk);
  if (!is_large && is_moderate(result)) return true;
  moderate_[turn()] = 0;
  is_tried_moderate_ = false;
  if (!is_finite(result)) return false;
  for (std::size_t k = 0; k < store_.optimizer().slots(); ++k)
    if (!is_finite(store_.values(1 + k, chunk))) return false;
  return true;
}

bool ModelShard::may_overflow(bool is_large) const {
  const std::uint64_t step = fragments_.steps_before(store_.optimizer_step()) + 1;
  return is_large || moderate_[turn()] != store_.loads() ||
         !is_bounded(store_.optimizer().at(step));
}

Result<Magnitude> ModelShard::try_step(const Chunk& chunk, Bytes payload) {
  CENTROID_TRY(encoder_->codec(chunk).decode(payload, decoded(chunk)));
  return store_.try_step(chunk, decoded(chunk));
}

void ModelShard::clear_residual() {
  if (store_.stores_residual()) store_.clear_residual();
  encoder_->set_rounds(0);
}

Status ModelShard::encode(const Chunk& chunk, const ReplyEncoder::Emit& emit) {
  ReplyEncoder::Memory memory;
  memory.means = store_.spare_plane();
  if (store_.stores_residual()) memory.residual = store_.residual();
  return encoder_->complete(chunk.id, memory, emit);
}

Result<double> ModelShard::squares(const Chunk& chunk, Bytes payload) {
  PlaneNorm norm;
  if (plan().is_buffer(chunk)) return norm.end_chunk();
  CENTROID_ASSIGN(const auto sparse, encoder_->codec(chunk).sparse(payload, chunk.elements));
  if (sparse) {
    norm.add(chunk.position, sparse->index, sparse->value);
    return norm.end_chunk();
  }
  CENTROID_TRY(encoder_->codec(chunk).decode(payload, decoded(chunk)));
  norm.add(chunk.position, decoded(chunk));
  return norm.end_chunk();
}

Status ModelShard::apply(const Chunk& chunk, Bytes payload) {
  if (store_.optimizer().ignores_zeros()) {
    CENTROID_ASSIGN(const auto sparse, encoder_->codec(chunk).sparse(payload, chunk.elements));
    if (sparse) {
      store_.shadow_apply(chunk, sparse->index, sparse->value);
      return {};
    }
  }
  CENTROID_TRY(encoder_->codec(chunk).decode(payload, decoded(chunk)));
  store_.shadow_apply(chunk, decoded(chunk));
  return {};
}

void ModelShard::commit() {
  if (std::exchange(is_tried_moderate_, false)) moderate_[turn()] = store_.loads();
  const std::vector<Chunk>& chunks = round_chunks();
  if (terms_.apply_on_worker)
    store_.commit_in_place(chunks);
  else
    store_.commit_swap(chunks);
  if (encoder_) encoder_->commit();
}

}  // namespace centroid::server
