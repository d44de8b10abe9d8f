#include "server/store/parameter_store.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "common/tensor/fingerprint.h"

namespace centroid::server {

ParameterStore::ParameterStore(ChunkPlan plan, std::unique_ptr<Optimizer> optimizer,
                               bool stores_residual)
    : plan_(std::make_shared<const ChunkPlan>(std::move(plan))),
      optimizer_(std::move(optimizer)),
      chunks_here_(plan_->chunks().size()),
      params_(std::make_shared<Plane>(*plan_, 0)),
      spare_(std::make_shared<Plane>(*plan_, 1)) {
  CENTROID_CHECK(optimizer_ != nullptr);
  for (std::size_t k = 0; k < optimizer_->slots(); ++k)
    slots_.push_back(std::make_shared<Plane>(*plan_, static_cast<std::uint32_t>(2 + k)));
  if (stores_residual)
    residual_ = std::make_shared<Plane>(*plan_, static_cast<std::uint32_t>(2 + slots_.size()));
}

ParameterStore::~ParameterStore() = default;

std::uint64_t ParameterStore::memory_bytes() const {
  std::uint64_t bytes = params_->bytes() + spare_->bytes();
  for (const auto& slot : slots_) bytes += slot->bytes();
  if (residual_) bytes += residual_->bytes();
  if (snapshot_) bytes += snapshot_->copied_bytes();
  return bytes;
}

void ParameterStore::place(std::vector<bool> is_here) {
  CENTROID_CHECK(is_here.size() == plan_->chunks().size() && !is_ahead_);
  is_here_ = std::move(is_here);
  chunks_here_ = 0;
  for (const Chunk& chunk : plan_->chunks()) {
    if (is_here_[chunk.id.value]) {
      ++chunks_here_;
      continue;
    }
    for (std::size_t number = 0; number < planes(); ++number) {
      preserve(*plane(number), chunk);
      plane(number)->discard(chunk);
    }
    preserve(*spare_, chunk);
    spare_->discard(chunk);
  }
}

std::span<const float> ParameterStore::params(const Chunk& chunk) const {
  return params_->values(chunk);
}

std::span<float> ParameterStore::spare(const Chunk& chunk) {
  preserve(*spare_, chunk);
  return spare_->values(chunk);
}

std::span<const float> ParameterStore::spare(const Chunk& chunk) const {
  return spare_->values(chunk);
}

void ParameterStore::clear_residual() {
  for (const Chunk& chunk : plan_->chunks()) {
    if (!is_here(chunk.id)) continue;
    preserve(*residual_, chunk);
    std::ranges::fill(residual_->values(chunk), 0.0f);
  }
}

std::span<float> ParameterStore::initial(const Chunk& chunk) {
  CENTROID_CHECK(version_ == Version());
  return params_->values(chunk);
}

void ParameterStore::initialize() {
  CENTROID_CHECK(version_ == Version());
  version_ = held_ = Version(1);
}

void ParameterStore::scale(const Chunk& chunk, double total_weight) {
  CENTROID_CHECK(!spare_->is_held(chunk.id));
  const float factor = mean_factor(total_weight);
  for (float& x : spare(chunk)) x *= factor;
}

void ParameterStore::step_again(const Chunk& part, const rules::Step& rule, float factor,
                                std::span<float> mean) {
  CENTROID_CHECK(!has_snapshot());
  const std::span<float> params = params_->values(part);
  if (plan_->is_buffer(part)) return step_buffer(params, mean, params);
  if (factor != 1)
    for (float& x : mean) x *= factor;
  std::vector<std::span<float>> slots;
  for (const auto& slot : slots_) slots.push_back(slot->values(part));
  run_step(rule, params, mean, slots, params);
}

void ParameterStore::apply(const Chunk& chunk) {
  CENTROID_CHECK(!spare_->is_held(chunk.id));
  const std::span<float> result = spare(chunk);
  step(chunk, result, result);
}

void ParameterStore::shadow_apply(const Chunk& chunk, std::span<const float> mean) {
  CENTROID_CHECK(!params_->is_held(chunk.id));
  preserve(*params_, chunk);
  step(chunk, mean, params_->values(chunk));
}

void ParameterStore::shadow_apply(const Chunk& chunk, std::span<const std::uint32_t> index,
                                  std::span<const float> value) {
  CENTROID_CHECK(!params_->is_held(chunk.id) && !plan_->is_buffer(chunk));
  is_ahead_ = true;
  preserve(*params_, chunk);
  value = times_factor(value);
  optimizer_->step_at(next_step(), index, value, params_->values(chunk));
}

void ParameterStore::step(const Chunk& chunk, std::span<const float> gradient,
                          std::span<float> out) {
  is_ahead_ = is_ahead_ || !slots_.empty() || out.data() == params_->values(chunk).data();
  if (plan_->is_buffer(chunk)) return step_buffer(params_->values(chunk), gradient, out);
  std::vector<std::span<float>> slots;
  slots.reserve(slots_.size());
  for (const auto& slot : slots_) {
    preserve(*slot, chunk);
    slots.push_back(slot->values(chunk));
  }
  optimizer_->step(next_step(), params_->values(chunk), times_factor(gradient), slots, out);
}

Magnitude ParameterStore::try_step(const Chunk& chunk, std::span<const float> mean) {
  if (plan_->is_buffer(chunk))
    return trial_.step(rules::kBufferStep, params_->values(chunk), mean, {});
  std::vector<std::span<const float>> slots;
  for (const auto& slot : slots_) slots.emplace_back(slot->values(chunk));
  return trial_.step(optimizer_->at(next_step()), params_->values(chunk), mean, slots,
                     gradient_factor_);
}

std::span<const float> ParameterStore::times_factor(std::span<const float> gradient) {
  if (gradient_factor_ == 1) return gradient;
  scratch_.resize(plan_->max_chunk_elements());
  std::ranges::transform(gradient, scratch_.begin(),
                         [this](float g) { return g * gradient_factor_; });
  return std::span(scratch_).first(gradient.size());
}

void ParameterStore::commit_swap() {
  std::swap(params_, spare_);
  commit_in_place();
}

void ParameterStore::commit_in_place() {
  if (residual_) std::swap(spare_, residual_);
  count_step();
}

void ParameterStore::commit_swap(std::span<const Chunk> chunks) {
  if (chunks.size() == chunks_here_) return commit_swap();
  for (const Chunk& chunk : chunks) copy_spare(chunk, *params_);
  commit_in_place(chunks);
}

void ParameterStore::commit_in_place(std::span<const Chunk> chunks) {
  if (chunks.size() == chunks_here_) return commit_in_place();
  if (residual_)
    for (const Chunk& chunk : chunks) copy_spare(chunk, *residual_);
  count_step();
}

void ParameterStore::copy_spare(const Chunk& chunk, Plane& to) {
  CENTROID_CHECK(!to.is_held(chunk.id));
  preserve(to, chunk);
  std::ranges::copy(spare_->values(chunk), to.values(chunk).begin());
}

void ParameterStore::count_step() {
  ++optimizer_step_;
  gradient_factor_ = 1;
  is_ahead_ = false;
  commit_unchanged();
}

void ParameterStore::commit_unchanged() {
  CENTROID_CHECK(version_ != Version() && !is_ahead_ && is_current());
  version_ = held_ = version_.next();
}

void ParameterStore::commit_elsewhere() {
  CENTROID_CHECK(version_ != Version() && !is_ahead_);
  ++optimizer_step_;
  version_ = version_.next();
}

ParameterStore::Hold ParameterStore::hold_spare(ChunkId chunk) {
  spare_->hold(chunk);
  return {spare_->tag(), chunk};
}

void ParameterStore::release(Hold hold) {
  (hold.plane_tag == params_->tag() ? params_ : spare_)->release(hold.chunk);
}

std::shared_ptr<Snapshot> ParameterStore::begin_snapshot(std::size_t copy_budget_bytes,
                                                         std::function<void()> on_room) {
  if (!may_begin_snapshot()) return nullptr;
  std::vector<std::shared_ptr<const Plane>> planes{params_};
  planes.insert(planes.end(), slots_.begin(), slots_.end());
  if (residual_) planes.push_back(residual_);
  const std::shared_ptr<Snapshot> snapshot(new Snapshot(plan_, std::move(planes), is_here_,
                                                        version_, optimizer_step_,
                                                        copy_budget_bytes, std::move(on_room)));
  snapshot_ = snapshot;
  // The reader's handle. `drop` notifies the store of its end: an expired weak pointer does not
  // order the reader's last read of the memory before the store's next write.
  return {snapshot.get(), [snapshot](Snapshot* read) { read->drop(); }};
}

bool ParameterStore::snapshot_is_full() const { return snapshot_ && snapshot_->is_full(); }

Status ParameterStore::load(std::size_t number, std::uint64_t offset, std::span<const float> from) {
  const std::uint64_t total = plan_->total_elements();
  if (number >= planes())
    return Error(
        ErrorCode::kInvalidArgument,
        "store has planes 0.." + std::to_string(planes() - 1) + ", not " + std::to_string(number));
  if (offset > total || from.size() > total - offset)
    return Error(ErrorCode::kInvalidArgument,
                 "store has " + std::to_string(total) + " elements per plane; got " +
                     std::to_string(from.size()) + " from " + std::to_string(offset));
  const Plane& to = *plane(number);
  const std::uint64_t end = offset + from.size();
  const auto chunks = plan_->chunks();
  const auto first = std::partition_point(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
    return chunk.position + chunk.elements <= offset;
  });
  const auto last = std::partition_point(first, chunks.end(),
                                         [&](const Chunk& chunk) { return chunk.position < end; });
  for (auto chunk = first; chunk != last; ++chunk) {
    if (to.is_held(chunk->id))
      return Error(
          ErrorCode::kFailedPrecondition,
          "chunk " + to_string(chunk->id) + " is being sent: load when replies have ended");
  }
  for (auto chunk = first; chunk != last; ++chunk) preserve(to, *chunk);
  std::atomic_ref(loads_).fetch_add(1, std::memory_order_relaxed);  // several threads replay
  std::copy(from.begin(), from.end(), to.values().begin() + static_cast<std::ptrdiff_t>(offset));
  return {};
}

const std::shared_ptr<Plane>& ParameterStore::plane(std::size_t number) const {
  if (number == 0) return params_;
  return number <= slots_.size() ? slots_[number - 1] : residual_;
}

void ParameterStore::restore(Version version, std::uint64_t optimizer_step) {
  version_ = held_ = version;
  optimizer_step_ = optimizer_step;
  is_ahead_ = false;
  ++loads_;
}

std::uint64_t ParameterStore::fingerprint() const {
  return centroid::fingerprint(params_->values());
}

void ParameterStore::preserve(const Plane& plane, const Chunk& chunk) {
  if (snapshot_) snapshot_->preserve(plane, chunk);
}

}  // namespace centroid::server
