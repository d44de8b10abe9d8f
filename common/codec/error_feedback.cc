#include "common/codec/error_feedback.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "common/codec/momentum.h"
#include "common/codec/warmup.h"
#include "common/tensor/finite.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

bool is_number(float x) { return topk::key_of(x) < topk::kInfinity; }

struct Momentum {
  CENTROID_KERNEL void run(const float* g, float* u, float* out, float momentum, bool nesterov,
                           std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const MomentumStep step = momentum_step(g[i], u[i], momentum, nesterov);
      out[i] = step.gained;
      u[i] = step.momentum;
    }
  }
};

struct Scale {
  CENTROID_KERNEL void run(const float* x, float factor, float* out, std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) out[i] = factor * x[i];
  }
};

struct AddScaled {
  CENTROID_KERNEL void run(const float* x, float factor, float* sum, std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float next = sum[i] + factor * x[i];
      sum[i] = topk::key_of(next) < topk::kInfinity ? next : sum[i];
    }
  }
};

constexpr std::size_t kLanes = 16;  // partial sums; fixed, for the same bits everywhere

struct SumOfSquares {
  CENTROID_KERNEL void run(const float* x, std::size_t n, double* lanes) {
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (std::size_t j = 0; j < kLanes; ++j)
        lanes[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
    for (; i < n; ++i) lanes[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
};

double norm_of(std::span<const float> x) {
  std::array<double, kLanes> lanes{};
  run_multiversioned<SumOfSquares>(x.data(), x.size(), lanes.data());
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return std::sqrt(sum);
}

/// rest = v - sent; checks whether sent + rest is v for every number.
struct Subtract {
  CENTROID_KERNEL void run(float* v, const float* sent, std::size_t n, bool write, bool* is_exact) {
    std::uint32_t wrong = 0;
    if (write) {
      CENTROID_INDEPENDENT
      for (std::size_t i = 0; i < n; ++i) v[i] = v[i] - sent[i];
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const float rest = v[i] - sent[i];
      wrong |= sent[i] + rest == v[i] ? 0u : 1u;
    }
    *is_exact = wrong == 0;
  }
};

}  // namespace

Result<std::unique_ptr<ErrorFeedback>> ErrorFeedback::make(const std::string& text,
                                                           const ChunkPlan& plan, ThreadPool* pool,
                                                           Residual residual) {
  CENTROID_ASSIGN(CodecSpec spec, CodecSpec::parse(text));
  CENTROID_ASSIGN(std::unique_ptr<Codec> codec, make_codec(text));
  if (!spec.feedback.enabled)
    return Error(ErrorCode::kInvalidArgument,
                 "codec spec \"" + spec.to_string() + "\": field \"feedback\" is off");
  if (residual == Residual::kCallers && (spec.feedback.momentum != 0 || spec.feedback.clip != 0))
    return Error(ErrorCode::kInvalidArgument,
                 "codec spec \"" + spec.to_string() +
                     "\": momentum and clip are for a worker's gradients, not for results");
  return std::unique_ptr<ErrorFeedback>(
      new ErrorFeedback(spec, std::move(codec), plan, pool, residual));
}

ErrorFeedback::ErrorFeedback(CodecSpec spec, std::unique_ptr<Codec> codec, const ChunkPlan& plan,
                             ThreadPool* pool, Residual residual)
    : spec_(spec),
      codec_(std::move(codec)),
      plan_(plan),
      selector_(pool),
      owns_residual_(residual == Residual::kOwn),
      residual_(owns_residual_ ? plan.total_elements() * sizeof(float) : 0),
      payloads_(plan.chunks().size()),
      out_(codec_->max_bytes(plan.max_chunk_elements())) {
  const std::uint64_t bytes = plan.total_elements() * sizeof(float);
  if (spec_.feedback.momentum != 0) momentum_ = Buffer(bytes);
  if (owns_residual_) residual_before_ = Buffer(bytes);
  if (momentum_) momentum_before_ = Buffer(bytes);
  const bool is_topk = spec_.kind == CodecSpec::Kind::kTopk;
  for (const Chunk& chunk : plan.chunks()) {
    const bool is_same =
        !units_.empty() && is_topk && (spec_.scope == Scope::kGlobal || chunk.offset != 0);
    if (!is_same) {
      const std::string& tensor = plan.manifest()[chunk.tensor.value].name;
      units_.push_back({chunk.position, 0, 0, chunk.id.value, 0,
                        spec_.scope == Scope::kGlobal ? "the gradient" : "tensor " + tensor});
    }
    units_.back().elements += chunk.elements;
    if (!plan.is_buffer(chunk)) units_.back().trained += chunk.elements;
    ++units_.back().chunks;
    units_of_.push_back(static_cast<std::uint32_t>(units_.size() - 1));
  }
  has_copy_.resize(units_.size());
  reset();
}

void ErrorFeedback::use_device(std::unique_ptr<DeviceResidual> device) {
  CENTROID_CHECK(owns_residual_ && !is_open_ && !pass_nonfinite_ && spec_.feedback.clip == 0 &&
                 !plan_.has_buffers());
  device_ = std::move(device);
  write_device();
}

/// Copy residual and momentum from the device. A device that fails gives NaN, which is never used
/// as a residual.
void ErrorFeedback::read_device() const {
  if (!device_) return;
  const std::uint64_t n = plan_.total_elements();
  const auto momentum = momentum_ ? floats(momentum_, n) : std::span<float>();
  if (!device_status_.ok() || !device_->read(sums_, momentum).ok())
    std::ranges::fill(sums_, std::numeric_limits<float>::quiet_NaN());
}

void ErrorFeedback::write_device() {
  if (!device_ || !device_status_.ok()) return;
  const std::uint64_t n = plan_.total_elements();
  const Status written =
      device_->write(sums_, momentum_ ? floats(momentum_, n) : std::span<float>());
  if (!written.ok()) device_status_ = device_failed("setting the residual", written.error());
}

void ErrorFeedback::reset() {
  finish_started();
  promised_.reset();
  if (owns_residual_) {
    sums_ = floats(residual_, plan_.total_elements());
    std::ranges::fill(sums_, 0.0f);
  }
  if (momentum_) std::ranges::fill(floats(momentum_, plan_.total_elements()), 0.0f);
  for (Payload& payload : payloads_) payload.is_there = false;
  drop_copies();
  is_open_ = false;
  rounds_ = 0;
  write_device();
}

void ErrorFeedback::begin_generation(std::uint32_t world) {
  world_ = std::max(world, 1u);
  if (!spec_.feedback.carry) reset();
}

KeepRatio ErrorFeedback::ratio() const { return ratio_after(spec_, rounds_); }

Result<Bytes> ErrorFeedback::encode(ChunkId chunk, std::span<const float> gradients,
                                    std::uint64_t round) {
  CENTROID_CHECK(owns_residual_ && gradients.size() == sums_.size());
  return payload_of(chunk, gradients, round);
}

Result<Bytes> ErrorFeedback::encode_onto(ChunkId chunk, std::span<const float> residual,
                                         std::span<float> sums, std::uint64_t round) {
  CENTROID_CHECK(!owns_residual_ && residual.size() == plan_.total_elements() &&
                 sums.size() == residual.size());
  sums_ = sums;
  return payload_of(chunk, residual, round);
}

std::pair<ChunkId, ChunkId> ErrorFeedback::unit_of(ChunkId chunk) const {
  const Unit& unit = units_[units_of_[chunk.value]];
  const auto first = static_cast<std::uint32_t>(unit.first_chunk);
  return {ChunkId(first), ChunkId(first + static_cast<std::uint32_t>(unit.chunks))};
}

Result<Bytes> ErrorFeedback::payload_of(ChunkId chunk, std::span<const float> added,
                                        std::uint64_t round) {
  CENTROID_CHECK(chunk.value < payloads_.size());
  if (round != round_) commit();
  round_ = round;
  const Payload& payload = payloads_[chunk.value];
  if (!payload.is_there) {
    const Unit& unit = units_[units_of_[chunk.value]];
    CENTROID_TRY(encode_unit(unit, added.subspan(unit.begin, unit.elements)));
    is_open_ = true;
  }
  return Bytes(payload.bytes);
}

/// The gradient after clipping and momentum correction; unchanged without them.
std::span<const float> ErrorFeedback::correct(const Unit& unit, std::span<const float> gradient) {
  const FeedbackOptions& options = spec_.feedback;
  if (options.clip == 0 && options.momentum == 0) return gradient;
  corrected_.resize(std::max<std::size_t>(corrected_.size(), unit.elements));
  const std::span<float> out = std::span(corrected_).first(unit.elements);
  if (options.clip != 0) {
    const double bound = static_cast<double>(options.clip) / std::sqrt(static_cast<double>(world_));
    const double norm = norm_of(gradient);
    if (norm > bound && std::isfinite(norm)) {
      run_multiversioned<Scale>(gradient.data(), static_cast<float>(bound / norm), out.data(),
                                out.size());
      gradient = out;
    }
  }
  if (options.momentum == 0) return gradient;
  float* u = floats(momentum_, plan_.total_elements()).data() + unit.begin;
  run_multiversioned<Momentum>(gradient.data(), u, out.data(), options.momentum, options.nesterov,
                               out.size());
  return out;
}

Status ErrorFeedback::refused(const Unit& unit, std::uint64_t count, std::uint64_t first) const {
  return Error(ErrorCode::kInvalidArgument,
               "error feedback: " + std::to_string(count) + " of the " +
                   std::to_string(unit.elements) + " sums of residual and gradient of " +
                   unit.name + " are not finite, the first is number " + std::to_string(first));
}

Status ErrorFeedback::encode_on_device(const Unit& unit) {
  if (device_status_.ok() && started_ != &unit) {
    finish_started();
    if (device_status_.ok()) {
      Status begun = keep_on_device(unit);
      if (begun.ok()) begun = device_->begin(unit.begin, unit.elements, unit.name, ratio());
      if (!begun.ok()) device_status_ = device_failed("selecting of " + unit.name, begun.error());
    }
  }
  started_ = nullptr;
  for (std::size_t c = unit.first_chunk; device_status_.ok() && c < unit.first_chunk + unit.chunks;
       ++c) {
    const Chunk& chunk = plan_.chunks()[c];
    const auto sent = device_->encode(chunk.position - unit.begin, chunk.elements, out_);
    if (!sent.ok() && sent.error().code() == ErrorCode::kInvalidArgument)
      return sent.error();  // the numbers are refused; the device works
    if (!sent.ok()) {
      device_status_ = device_failed("the payload of " + unit.name, sent.error());
      break;
    }
    if (sent->is_dense && spec_.kind == CodecSpec::Kind::kTopk) ++totals_.dense_chunks;
    store_payload(chunk, Bytes(out_).first(sent->bytes), sent->elements);
  }
  return device_status_;  // a copy: it is reported again
}

bool ErrorFeedback::prepare(ChunkId chunk, std::uint64_t round) {
  if (!device_ || !device_status_.ok()) return true;
  if (round != round_) commit();
  round_ = round;
  if (payloads_[chunk.value].is_there) return true;
  const Unit& unit = units_[units_of_[chunk.value]];
  if (started_ != &unit) {
    finish_started();
    Status begun = keep_on_device(unit);
    if (begun.ok()) begun = device_->begin(unit.begin, unit.elements, unit.name, ratio());
    if (!begun.ok()) {  // `encode` reports it
      device_status_ = device_failed("selecting of " + unit.name, begun.error());
      return true;
    }
    started_ = &unit;
    is_open_ = true;
  }
  const auto is_done = device_->done();
  return !is_done.ok() || *is_done;
}

/// Encode a started unit, whose gradient is in the residual, so that it can be taken back like any
/// other and the gradient is not read any more.
void ErrorFeedback::finish_started() {
  if (started_ != nullptr) (void)encode_on_device(*started_);
  started_ = nullptr;
}

/// Send the unit's buffers as they are. Returns `added` without them, so that nothing of them is
/// selected or left.
Result<std::span<const float>> ErrorFeedback::send_buffers(const Unit& unit,
                                                           std::span<const float> added) {
  if (owns_residual_) {
    corrected_.resize(std::max<std::size_t>(corrected_.size(), unit.elements));
    std::ranges::copy(added, corrected_.begin());
  }
  const std::span<float> given =
      owns_residual_ ? std::span(corrected_).first(unit.elements)
                     : sums_.subspan(unit.begin, unit.elements);  // it has the gradients
  for (std::size_t c = unit.first_chunk; c < unit.first_chunk + unit.chunks; ++c) {
    const Chunk& chunk = plan_.chunks()[c];
    if (!plan_.is_buffer(chunk)) continue;
    const std::span<float> values = given.subspan(chunk.position - unit.begin, chunk.elements);
    const auto wrong = std::ranges::find_if_not(values, is_number);
    if (wrong != values.end() && !pass_nonfinite_)
      return Error(ErrorCode::kInvalidArgument, "error feedback: tensor " +
                                                    plan_.manifest()[chunk.tensor.value].name +
                                                    " has numbers that are not finite");
    store_payload(chunk, std::as_bytes(values), chunk.elements);
    std::ranges::fill(values, 0.0f);
  }
  return owns_residual_ ? std::span<const float>(given) : added;
}

Status ErrorFeedback::encode_unit(const Unit& unit, std::span<const float> gradient) {
  if (device_) return encode_on_device(unit);
  if (unit.trained < unit.elements) {
    CENTROID_ASSIGN(gradient, send_buffers(unit, gradient));
    if (unit.trained == 0) return {};
  }
  const std::span<float> before = keep(unit);
  const std::span<const float> added = correct(unit, gradient);
  const std::span<float> residual = sums_.subspan(unit.begin, unit.elements);
  const bool is_topk = spec_.kind == CodecSpec::Kind::kTopk;
  const std::uint64_t k = is_topk ? ratio().count_of(unit.trained) : unit.trained;
  // Selecting nearly everything is expensive, and then sent densely: select nothing instead.
  const bool select = is_topk && !payload::is_dense_better(spec_.values, k, unit.trained);
  const auto selected =
      selector_.add_and_select(added, residual, select ? k : 1, pass_nonfinite_, before);
  if (selected.nonfinite > 0 && !pass_nonfinite_)
    return refused(unit, selected.nonfinite, selected.first_nonfinite);
  for (std::size_t c = unit.first_chunk; c < unit.first_chunk + unit.chunks; ++c) {
    const Chunk& chunk = plan_.chunks()[c];
    if (plan_.is_buffer(chunk)) continue;
    if (selected.nonfinite > 0)
      CENTROID_TRY(send_dense(chunk, ValueType::kF32));
    else if (select)
      send_sparse(chunk, unit, selected);
    else
      CENTROID_TRY(send_dense(chunk, spec_.values));
  }
  return {};
}

/// Send the chunk's part of a selection.
void ErrorFeedback::send_sparse(const Chunk& chunk, const Unit& unit,
                                const TopkSelector::Selection& selected) {
  const auto from = static_cast<std::uint32_t>(chunk.position - unit.begin);
  const auto begin = std::lower_bound(selected.index.begin(), selected.index.end(), from);
  const auto end = std::lower_bound(begin, selected.index.end(), from + chunk.elements);
  const auto first = static_cast<std::size_t>(begin - selected.index.begin());
  const auto count = static_cast<std::size_t>(end - begin);
  if (payload::is_dense_better(spec_.values, count, chunk.elements)) {
    const Status sent = send_dense(chunk, spec_.values);
    CENTROID_CHECK(sent.ok());  // finite numbers always fit
    return;
  }
  index_.resize(std::max(index_.size(), count));
  for (std::size_t j = 0; j < count; ++j) index_[j] = begin[static_cast<std::ptrdiff_t>(j)] - from;
  const std::span<const std::uint32_t> index = std::span(index_).first(count);
  const std::span<const float> value = selected.value.subspan(first, count);
  const std::size_t bytes = payload::encode_sparse(spec_.values, {}, index, value, out_.data());
  float* residual = sums_.data() + chunk.position;
  if (spec_.values == ValueType::kF32) {
    for (const std::uint32_t i : index) residual[i] = 0;
  } else {
    payload::View view{true, spec_.values, {}, index};
    const std::size_t values = payload::value_bytes(spec_.values, count);
    view.values = Bytes(out_).subspan(bytes - values, values);
    const auto sent = payload::sent(view, scratch_);
    for (std::size_t j = 0; j < count; ++j) residual[index[j]] = value[j] - sent[j];
  }
  if (momentum_ && spec_.feedback.masking) {
    float* u = floats(momentum_, plan_.total_elements()).data() + chunk.position;
    for (const std::uint32_t i : index) u[i] = 0;
  }
  store_payload(chunk, Bytes(out_).first(bytes), count);
}

/// Send all of a chunk; the remainder of rounding stays in the residual.
Status ErrorFeedback::send_dense(const Chunk& chunk, ValueType type) {
  const std::span<float> residual = sums_.subspan(chunk.position, chunk.elements);
  std::size_t bytes = 0;
  if (spec_.has_form()) {
    bytes = payload::encode_dense(type, {}, residual, out_.data());
  } else {
    CENTROID_ASSIGN(bytes, codec_->encode(residual, out_));
  }
  decoded_.resize(std::max<std::size_t>(decoded_.size(), chunk.elements));
  const std::span<float> sent = std::span(decoded_).first(chunk.elements);
  CENTROID_TRY(codec_->decode(Bytes(out_).first(bytes), sent));
  const bool is_complete = pass_nonfinite_ && !is_finite(sent);
  bool is_exact = spec_.kind == CodecSpec::Kind::kSign;  // sign rounds, and never overflows
  if (!is_exact)
    run_multiversioned<Subtract>(residual.data(), sent.data(), residual.size(), false, &is_exact);
  if (is_complete) {
    std::ranges::fill(residual, 0.0f);
  } else if (!is_exact) {
    return Error(ErrorCode::kInvalidArgument, "error feedback: chunk " + to_string(chunk.id) +
                                                  " has numbers too large for " +
                                                  spec_.to_string());
  } else {
    run_multiversioned<Subtract>(residual.data(), sent.data(), residual.size(), true, &is_exact);
  }
  if (momentum_ && spec_.feedback.masking)
    std::ranges::fill(
        floats(momentum_, plan_.total_elements()).subspan(chunk.position, chunk.elements), 0.0f);
  if (spec_.kind == CodecSpec::Kind::kTopk) ++totals_.dense_chunks;
  store_payload(chunk, Bytes(out_).first(bytes), chunk.elements);
  return {};
}

void ErrorFeedback::store_payload(const Chunk& chunk, Bytes bytes, std::uint64_t sent) {
  Payload& payload = payloads_[chunk.id.value];
  payload.bytes.assign(bytes.begin(), bytes.end());
  payload.is_there = true;
  ++totals_.chunks;
  totals_.elements += chunk.elements;
  totals_.sent += sent;
  totals_.bytes += bytes.size();
}

void ErrorFeedback::commit() {
  drop_copies();
  if (is_open_) finish_started();
  for (Payload& payload : payloads_) payload.is_there = false;  // also of a unit that was refused
  if (!is_open_) return;
  is_open_ = false;
  ++rounds_;
}

void ErrorFeedback::forget() {
  CENTROID_CHECK(!owns_residual_);
  for (Payload& payload : payloads_) payload.is_there = false;
  is_open_ = false;
}

void ErrorFeedback::take_back() {
  CENTROID_CHECK(owns_residual_);
  finish_started();
  const auto is_there = [](const Payload& payload) { return payload.is_there; };
  const bool has_sent = std::ranges::any_of(payloads_, is_there);
  if (has_sent) read_device();
  for (const Chunk& chunk : plan_.chunks()) {
    Payload& payload = payloads_[chunk.id.value];
    if (!std::exchange(payload.is_there, false) || plan_.is_buffer(chunk)) continue;
    const std::span<float> residual = sums_.subspan(chunk.position, chunk.elements);
    decoded_.resize(std::max<std::size_t>(decoded_.size(), chunk.elements));
    const std::span<float> sent = std::span(decoded_).first(chunk.elements);
    CENTROID_CHECK(codec_->decode(payload.bytes, sent).ok());
    for (std::size_t i = 0; i < sent.size(); ++i)
      residual[i] += is_number(sent[i]) ? sent[i] : 0.0f;
  }
  if (has_sent) write_device();
  drop_copies();
  is_open_ = false;
}

void ErrorFeedback::add_residual(std::uint64_t position, std::span<const float> left,
                                 float factor) {
  CENTROID_CHECK(owns_residual_ && !device_ && !is_open_ && position + left.size() <= sums_.size());
  run_multiversioned<AddScaled>(left.data(), factor, sums_.data() + position, left.size());
}

void ErrorFeedback::add_residual(std::uint64_t position, std::span<const std::uint32_t> index,
                                 std::span<const float> left, float factor) {
  CENTROID_CHECK(owns_residual_ && !device_ && !is_open_ && index.size() == left.size());
  const std::span<float> residual = sums_.subspan(position);
  for (std::size_t j = 0; j < index.size(); ++j) {
    const float next = residual[index[j]] + factor * left[j];
    if (is_number(next)) residual[index[j]] = next;
  }
}

ErrorFeedback::State ErrorFeedback::state() const {
  read_device();
  State state{sums_, {}, rounds_};
  if (momentum_) state.momentum = floats(momentum_, plan_.total_elements());
  return state;
}

Status ErrorFeedback::restore(const State& state) {
  const std::uint64_t n = plan_.total_elements(), momentum = momentum_ ? n : 0;
  CENTROID_CHECK(owns_residual_);
  const auto bad = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "error feedback: " + what);
  };
  if (state.residual.size() != n || state.momentum.size() != momentum)
    return bad("the state has " + std::to_string(state.residual.size()) + " numbers of residual, " +
               std::to_string(state.momentum.size()) + " of momentum; expected " +
               std::to_string(n) + " and " + std::to_string(momentum));
  if (!is_finite(state.residual) || !is_finite(state.momentum))
    return bad("the state has numbers that are not finite");
  reset();
  std::ranges::copy(state.residual, sums_.begin());
  if (momentum_) std::ranges::copy(state.momentum, floats(momentum_, n).begin());
  rounds_ = state.rounds;
  write_device();
  return device_status_;
}

double ErrorFeedback::residual_norm() const {
  read_device();
  return norm_of(sums_);
}

}  // namespace centroid
