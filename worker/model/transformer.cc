#include "worker/model/transformer.h"

#include <algorithm>
#include <utility>

namespace centroid::worker {

namespace {

/// Places where dropout draws: four per block, then the embedding.
constexpr std::uint64_t kSites = 8;
enum Site : std::uint64_t { kAttention, kMlp, kOfQkv, kOfO, kOfUp, kOfDown };

std::size_t elements_of(const Manifest& manifest) {
  std::size_t n = 0;
  for (const auto& tensor : manifest) n += tensor.elements();
  return n;
}

}  // namespace

Transformer::Transformer(TransformerConfig config, Base base, std::unique_ptr<Backend> backend)
    : config_(std::move(config)),
      base_(std::move(base)),
      trained_(config_.trained()),
      backend_(std::move(backend)) {
  CENTROID_CHECK(base_ || config_.lora.rank == 0);
  CENTROID_CHECK(!base_ || base_->values.size() == elements_of(config_.whole()));
  lay_out({});
  end_ = blocks_.size() + 2;
}

Status Transformer::set_part(const TensorPart& part) {
  const auto refuse = [&](const char* why) {
    return Error(ErrorCode::kInvalidArgument, "model '" + spec() + "' cannot be divided: " + why);
  };
  if (part.ranks > 1 && base_) return refuse("it has base weights; use dp and pp");
  if (part.ranks > 1 && backend_->parts() == nullptr)
    return refuse("it is not on a CPU; use dp and pp");
  CENTROID_TRY(TransformerPart::of(config_, part.rank, part.ranks));
  lay_out(part);
  return {};
}

/// Number the tensors, with the shapes of this part.
void Transformer::lay_out(const TensorPart& part) {
  part_ = part;
  own_ = std::move(TransformerPart::of(config_, part.rank, part.ranks)).value();
  manifest_ = own_.cut(trained_);
  const Manifest whole = own_.cut(config_.whole());
  tensors_.clear();
  adapters_.clear();
  blocks_.clear();
  std::size_t at = 0, id = 0, position = 0;
  for (const TensorInfo& info : whole) {
    Tensor tensor{.begin = at, .elements = info.elements()};
    at += tensor.elements;
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    if (id < manifest_.size() && manifest_[id].name == info.name) {
      tensor.trained = position;
      tensor.id = static_cast<std::uint32_t>(id);
      position += tensor.elements;
      ++id;
    } else if (id < manifest_.size() && manifest_[id].name == module + ".lora_A.weight") {
      tensor.adapter = adapters_.size();
      const std::size_t a = manifest_[id].elements(), b = manifest_[id + 1].elements();
      adapters_.push_back({.a = position,
                           .b = position + a,
                           .id = static_cast<std::uint32_t>(id),
                           .out = info.shape[0]});
      position += a + b;
      id += 2;
    }
    const std::size_t number = tensors_.size();
    if (info.name.ends_with("norm1.weight")) blocks_.push_back({.norm1 = number});
    if (info.name.ends_with("q_proj.weight")) blocks_.back().q = number;
    if (info.name.ends_with("o_proj.weight")) blocks_.back().o = number;
    if (info.name.ends_with("norm2.weight")) {
      blocks_.back().norm2 = number;
      blocks_.back().up = number + (config_.norm == TransformerConfig::Norm::kLayer ? 2 : 1);
    }
    if (info.name.ends_with("down_proj.weight")) blocks_.back().down = number;
    if (info.name == "norm.weight") last_norm_ = number;
    if (info.name == "head.weight") head_ = number;
    tensors_.push_back(tensor);
  }
  parameters_ = position;
  CENTROID_CHECK(id == manifest_.size() && parameters_ == elements_of(manifest_));
}

std::unique_ptr<Model> Transformer::clone_on(std::unique_ptr<Backend> backend) const {
  auto made = std::make_unique<Transformer>(config_, base_, std::move(backend));
  CENTROID_CHECK(made->set_part(part_).ok());
  return made;
}

std::uint64_t Transformer::frozen_bytes() const {
  return base_ ? base_->values.size() * sizeof(float) : 0;
}

std::string Transformer::spec() const {
  return config_.spec() + (base_ ? ",base=" + std::to_string(base_->hash) : std::string());
}

const float* Transformer::weight(std::size_t tensor) const {
  const Tensor& t = tensors_[tensor];
  return t.trained != kNone ? places_->params[t.id] : frozen_ + t.begin;
}

float* Transformer::gradient(std::size_t tensor) const {
  const Tensor& t = tensors_[tensor];
  return t.trained != kNone ? places_->gradients[t.id] : nullptr;
}

void Transformer::ready(std::size_t tensor) const {
  if (tensors_[tensor].trained != kNone) ready(TensorId(tensors_[tensor].id));
}

void Transformer::ready(TensorId tensor) const {
  if (on_ready_ != nullptr) (*on_ready_)(tensor);
}

kernels::Norm Transformer::norm(std::size_t tensor) const {
  const bool is_layer = config_.norm == TransformerConfig::Norm::kLayer;
  return {is_layer, weight(tensor), is_layer ? weight(tensor + 1) : nullptr};
}

kernels::Dropout Transformer::dropout(double probability, std::uint64_t site) const {
  if (!is_training_ || probability == 0) return {};
  auto out = kernels::Dropout::of(probability);
  out.keys = {in_.keys, batch_.samples};
  out.context = config_.context;
  out.site = site;
  return out;
}

std::size_t Transformer::wide() const {
  return config_.mlp == TransformerConfig::Mlp::kSwiGlu ? 2 * own_.hidden.count : own_.hidden.count;
}

std::size_t Transformer::low_width() const {
  return config_.lora.rank * (adapters_.empty() ? 0 : config_.lora.targets.size());
}

Transformer::Projection Transformer::qkv(std::size_t b) const {
  return {blocks_[b].q, 3, config_.width, 3 * own_.width(), b * kSites + kOfQkv};
}
Transformer::Projection Transformer::o(std::size_t b) const {
  return {blocks_[b].o, 1, own_.width(), config_.width, b * kSites + kOfO};
}
Transformer::Projection Transformer::up(std::size_t b) const {
  return {blocks_[b].up, blocks_[b].down - blocks_[b].up, config_.width, wide(),
          b * kSites + kOfUp};
}
Transformer::Projection Transformer::down(std::size_t b) const {
  return {blocks_[b].down, 1, own_.hidden.count, config_.width, b * kSites + kOfDown};
}

/// Divide `memory` among the buffers (null: only count). Returns the number of floats.
std::size_t Transformer::assign_memory(std::uint64_t samples, bool with_gradient, float* memory,
                                       Space& space) const {
  constexpr std::size_t kLine = 16;  // floats of 64 bytes
  std::size_t used = 0;
  const auto take = [&](std::size_t count) {
    float* const at = memory == nullptr ? nullptr : memory + used;
    used += (count + kLine - 1) / kLine * kLine;
    return at;
  };
  const std::size_t rows = samples * config_.context, d = config_.width;
  const std::size_t a = own_.width(), h = own_.hidden.count, heads = own_.heads.count;
  const std::size_t out_rows = config_.is_language() ? rows : samples;
  space.blocks.resize(config_.layers);
  const BlockSpace* shared = nullptr;
  for (std::size_t b = 0; b < space.blocks.size(); ++b) {
    BlockSpace& block = space.blocks[b];
    if (!has_block(b)) {
      block = {};
      if (b == 0 && first_ == 0) block.x = take(rows * d);  // output of the embedding
      continue;
    }
    if (shared != nullptr) {
      block = *shared;
      continue;
    }
    if (!with_gradient) shared = &block;  // without a backward pass blocks share memory
    block.x = take(rows * d);
    block.stats1 = take(2 * rows);
    block.n1 = take(rows * d);
    block.qkv = take(rows * 3 * a);
    block.lse = take(rows * heads);
    block.attended = take(rows * a);
    block.middle = take(rows * d);
    block.stats2 = take(2 * rows);
    block.n2 = take(rows * d);
    block.up = take(rows * wide());
    block.active = take(rows * h);
    block.low = take(rows * low_width());
  }
  space.x = take(rows * d);
  space.picked = take(config_.is_language() ? 0 : out_rows * d);
  space.stats = take(2 * out_rows);
  space.normed = take(out_rows * d);
  const bool has_head = end_ == config_.layers + 2;
  const std::size_t head_rows = has_head ? std::min(out_rows, backend_->head_rows()) : 0;
  space.logits = take(head_rows * own_.outputs.count);
  space.terms = take(part_.ranks > 1 ? 4 * head_rows : 0);
  space.branch = take(rows * d);
  space.scratch = take(backend_->attention_scratch(samples, config_.context, heads));
  space.dropped = take(config_.lora.dropout > 0 ? rows * std::max(d, h) : 0);
  if (!with_gradient) return used;
  space.residual = take(rows * d);
  space.narrow = take(rows * d);
  space.wide = take(rows * 3 * a);
  space.active = take(rows * h);
  space.delta = take(rows * heads);
  space.low = take(rows * config_.lora.rank);
  return used;
}

std::uint64_t Transformer::work_bytes(std::uint64_t samples, bool with_gradient) const {
  Space space;
  return assign_memory(samples, with_gradient, nullptr, space) * sizeof(float);
}

void Transformer::check(const Batch& batch) const {
  CENTROID_CHECK(batch.tokens.size() == batch.samples * config_.context);
  CENTROID_CHECK(batch.y.size() == batch.samples * targets());
  CENTROID_CHECK(batch.lengths.empty() || batch.lengths.size() == batch.samples);
  CENTROID_CHECK(batch.ids.empty() || batch.ids.size() == batch.samples);
  CENTROID_CHECK(std::ranges::all_of(
      batch.tokens, [&](std::uint32_t token) { return token < config_.vocabulary; }));
  CENTROID_CHECK(std::ranges::all_of(batch.lengths, [&](std::uint32_t length) {
    return length >= 1 && length <= config_.context;
  }));
}

std::vector<std::uint32_t> Transformer::layers() const {
  std::vector<std::uint32_t> out;
  for (const TensorInfo& tensor : manifest_) {
    constexpr std::string_view kBlocks = "blocks.";
    const bool is_of_block = tensor.name.starts_with(kBlocks);
    if (is_of_block)
      out.push_back(1 + static_cast<std::uint32_t>(std::stoul(tensor.name.substr(kBlocks.size()))));
    else
      out.push_back(
          tensor.name.starts_with("embed.") ? 0 : 1 + static_cast<std::uint32_t>(config_.layers));
  }
  return out;
}

std::vector<Pass> Transformer::passes(bool with_gradient) const {
  const auto blocks = static_cast<std::uint32_t>(config_.layers);
  std::vector<Pass> out = {{{0}, {}}};
  for (std::uint32_t b = 1; b <= blocks; ++b) out.push_back({{b}, {}});
  out.push_back({{blocks + 1}, {}});
  if (config_.tied) out.back().reads.push_back(0);
  if (!with_gradient) return out;
  out.back().writes = out.back().reads;
  for (std::uint32_t b = blocks; b > 0; --b) out.push_back({{b}, {b}});
  out.push_back({{}, {0}});
  return out;
}

void Transformer::run(std::size_t pass) {
  const std::size_t blocks = blocks_.size();
  if (pass == 0)
    embed();
  else if (pass <= blocks)
    forward_block(pass - 1);
  else if (pass == blocks + 1)
    finish(is_training_);
  else if (pass <= 2 * blocks + 1)
    backward_block(2 * blocks + 1 - pass);
  else
    embed_back();
}

float* Transformer::stage_input() {
  return first_ > blocks_.size() ? space_.x : space_.blocks[first_ - 1].x;
}

const float* Transformer::stage_output() {
  if (end_ == 1) return space_.blocks.front().x;
  end_blocks();
  return space_.x;
}

void Transformer::begin(const Batch& batch, const TensorPlaces& places, bool with_gradient) {
  check(batch);
  batch_ = batch;
  rows_ = batch.samples * config_.context;
  places_ = &places;
  on_ready_ = nullptr;
  is_training_ = with_gradient;
  if (base_ && config_.lora.rank > 0) frozen_ = backend_->keep(base_->values);
  const std::size_t needed = assign_memory(batch.samples, with_gradient, nullptr, space_);
  assign_memory(batch.samples, with_gradient, backend_->work_space(needed), space_);
  in_ = backend_->bring(batch, config_.context);
}

/// out = in W^T + scale * dropout(in) A^T B^T
void Transformer::project(const Projection& p, const float* in, float* low, float* out) {
  backend_->gemm(false, true, rows_, p.out, p.in, 1.0F, in, p.in, weight(p.first), p.in, 0.0F, out,
                 p.out);
  const std::size_t rank = config_.lora.rank;
  const float* seen = nullptr;
  std::size_t column = 0;
  for (std::size_t t = p.first; t < p.first + p.count; ++t) {
    if (tensors_[t].adapter == kNone) {
      column += tensors_[t].elements / p.in;
      continue;
    }
    const Adapter& adapter = adapters_[tensors_[t].adapter];
    if (seen == nullptr) {
      seen = in;
      if (const auto drops = dropout(config_.lora.dropout, p.site)) {
        backend_->drop(drops, rows_, p.in, in, space_.dropped);
        seen = space_.dropped;
      }
    }
    backend_->gemm(false, true, rows_, rank, p.in, 1.0F, seen, p.in, places_->params[adapter.id],
                   p.in, 0.0F, low, rank);
    backend_->gemm(false, true, rows_, adapter.out, rank, static_cast<float>(config_.lora.scale()),
                   low, rank, places_->params[adapter.id + 1], rank, 1.0F, out + column, p.out);
    low += rows_ * rank;
    column += adapter.out;
  }
}

/// din = d loss / d in; gradients of the matrices and adapters, the last one first.
void Transformer::project_back(const Projection& p, const float* in, const float* low,
                               const float* dout, float* din) {
  backend_->gemm(false, false, rows_, p.in, p.out, 1.0F, dout, p.out, weight(p.first), p.in, 0.0F,
                 din, p.in);
  if (float* const own = gradient(p.first); own != nullptr) {
    backend_->gemm(true, false, p.out, p.in, rows_, 1.0F, dout, p.out, in, p.in, 0.0F, own, p.in);
    for (std::size_t t = p.first + p.count; t > p.first; --t) ready(t - 1);
    return;
  }
  const std::size_t rank = config_.lora.rank;
  const float scale = config_.lora.rank > 0 ? static_cast<float>(config_.lora.scale()) : 0;
  const auto drops = dropout(config_.lora.dropout, p.site);
  const float* seen = in;
  std::size_t column = p.out, slot = 0;
  for (std::size_t t = p.first; t < p.first + p.count; ++t)
    if (tensors_[t].adapter != kNone) ++slot;
  for (std::size_t t = p.first + p.count; t > p.first; --t) {
    const Tensor& tensor = tensors_[t - 1];
    column -= tensor.elements / p.in;
    if (tensor.adapter == kNone) continue;
    const Adapter& adapter = adapters_[tensor.adapter];
    const float* const mine = low + --slot * rows_ * rank;
    backend_->gemm(true, false, adapter.out, rank, rows_, scale, dout + column, p.out, mine, rank,
                   0.0F, places_->gradients[adapter.id + 1], rank);
    ready(TensorId(adapter.id + 1));
    backend_->gemm(false, false, rows_, rank, adapter.out, scale, dout + column, p.out,
                   places_->params[adapter.id + 1], rank, 0.0F, space_.low, rank);
    if (drops) {
      backend_->drop(drops, rows_, p.in, in, space_.dropped);
      seen = space_.dropped;
    }
    backend_->gemm(true, false, rank, p.in, rows_, 1.0F, space_.low, rank, seen, p.in, 0.0F,
                   places_->gradients[adapter.id], p.in);
    ready(TensorId(adapter.id));
    if (drops) {
      backend_->gemm(false, false, rows_, p.in, rank, 1.0F, space_.low, rank,
                     places_->params[adapter.id], p.in, 0.0F, space_.dropped, p.in);
      backend_->add(drops, rows_, p.in, space_.dropped, din);
    } else {
      backend_->gemm(false, false, rows_, p.in, rank, 1.0F, space_.low, rank,
                     places_->params[adapter.id], p.in, 1.0F, din, p.in);
    }
  }
}

Attention Transformer::attention(const BlockSpace& block) const {
  return {batch_.samples, config_.context, own_.heads.count, own_.head_width,
          block.qkv,      block.lse,       space_.scratch};
}

void Transformer::embed() {
  const auto drops = dropout(config_.dropout, config_.layers * kSites);
  float* const x = space_.blocks.front().x;
  if (part_.ranks == 1) {
    backend_->embed(drops, rows_, in_.tokens, config_.context, config_.width, weight(0), weight(1),
                    x);
    return;
  }
  // One rank has a token's row; the first one adds its position.
  const float* const positions = part_.rank == 0 ? weight(1) : nullptr;
  backend_->parts()->embed(own_.tokens, rows_, in_.tokens, config_.context, config_.width,
                           weight(0), positions, x);
  sum_parts(config_.width, x);
  if (drops) backend_->drop(drops, rows_, config_.width, x, x);
}

/// Computes `branch` from the block's x and, except for the first one of the model or stage, the
/// previous block's branch.
void Transformer::forward_block(std::size_t b) {
  BlockSpace& s = space_.blocks[b];
  const std::size_t d = config_.width;
  float* low = s.low;
  const auto advance = [&](const Projection& p) {
    for (std::size_t t = p.first; t < p.first + p.count; ++t)
      if (tensors_[t].adapter != kNone) low += rows_ * config_.lora.rank;
  };
  if (b == 0 || b + 1 == first_)
    backend_->add_norm(norm(blocks_[b].norm1), {}, rows_, d, s.x, nullptr, s.x, s.n1, s.stats1);
  else
    backend_->add_norm(norm(blocks_[b].norm1), dropout(config_.dropout, (b - 1) * kSites + kMlp),
                       rows_, d, space_.blocks[b - 1].middle, space_.branch, s.x, s.n1, s.stats1);
  project(qkv(b), s.n1, low, s.qkv);
  advance(qkv(b));
  backend_->attend(attention(s), s.attended);
  project(o(b), s.attended, low, space_.branch);
  sum_parts(d, space_.branch);
  advance(o(b));
  backend_->add_norm(norm(blocks_[b].norm2), dropout(config_.dropout, b * kSites + kAttention),
                     rows_, d, s.x, space_.branch, s.middle, s.n2, s.stats2);
  project(up(b), s.n2, low, s.up);
  advance(up(b));
  if (config_.mlp == TransformerConfig::Mlp::kSwiGlu)
    backend_->swiglu(rows_, own_.hidden.count, s.up, s.active);
  else
    backend_->gelu(rows_ * own_.hidden.count, s.up, s.active);
  project(down(b), s.active, low, space_.branch);
  sum_parts(d, space_.branch);
}

void Transformer::norm_back(std::size_t tensor, std::size_t rows, const float* x,
                            const float* stats, const float* dy, float* into) {
  const kernels::Norm n = norm(tensor);
  backend_->norm_back(n, rows, config_.width, x, stats, dy, into, gradient(tensor),
                      n.is_layer ? gradient(tensor + 1) : nullptr);
  if (n.is_layer) ready(tensor + 1);
  ready(tensor);
}

/// residual: gradient of the block's output in, of its input out.
void Transformer::backward_block(std::size_t b) {
  BlockSpace& s = space_.blocks[b];
  const std::size_t d = config_.width;
  std::size_t adapters = 0;
  const auto low_of = [&](const Projection& p) {  // called in reverse order of the projections
    for (std::size_t t = p.first; t < p.first + p.count; ++t)
      if (tensors_[t].adapter != kNone) ++adapters;
    return s.low + (low_width() - adapters * config_.lora.rank) * rows_;
  };
  /// Gradient that a branch gets from the residual path.
  const auto to_branch = [&](std::uint64_t site) -> const float* {
    const auto drops = dropout(config_.dropout, b * kSites + site);
    if (!drops) return space_.residual;
    backend_->drop(drops, rows_, d, space_.residual, space_.narrow);
    return space_.narrow;
  };
  project_back(down(b), s.active, low_of(down(b)), to_branch(kMlp), space_.active);
  const float* dup = space_.active;
  if (config_.mlp == TransformerConfig::Mlp::kSwiGlu) {
    backend_->swiglu_back(rows_, own_.hidden.count, space_.active, s.up);
    dup = s.up;
  } else {
    backend_->gelu_back(rows_ * own_.hidden.count, s.up, space_.active);
  }
  project_back(up(b), s.n2, low_of(up(b)), dup, space_.branch);
  sum_parts(d, space_.branch);
  norm_back(blocks_[b].norm2, rows_, s.middle, s.stats2, space_.branch, space_.residual);

  project_back(o(b), s.attended, low_of(o(b)), to_branch(kAttention), space_.branch);
  backend_->attend_back(attention(s), s.attended, space_.branch, space_.delta, space_.wide);
  project_back(qkv(b), s.n1, low_of(qkv(b)), space_.wide, space_.branch);
  sum_parts(d, space_.branch);
  norm_back(blocks_[b].norm1, rows_, s.x, s.stats1, space_.branch, space_.residual);
}

/// Logits of `rows` rows and their loss; its gradient goes to dnormed. Some rows at a time.
void Transformer::head(std::size_t rows, const float* normed, float* dnormed, bool with_gradient) {
  const std::size_t d = config_.width, outputs = own_.outputs.count, most = backend_->head_rows();
  const float share = 1.0F / static_cast<float>(batch_.samples * targets());
  float* const own = with_gradient ? gradient(head_) : nullptr;
  for (std::size_t begin = 0; begin < rows; begin += most) {
    const std::size_t count = std::min(most, rows - begin);
    const float* in = normed + begin * d;
    backend_->gemm(false, true, count, outputs, d, 1.0F, in, d, weight(head_), d, 0.0F,
                   space_.logits, outputs);
    cross_entropy(count, in_.y + begin, share, with_gradient);
    if (!with_gradient) continue;
    if (own != nullptr)
      backend_->gemm(true, false, outputs, d, count, 1.0F, space_.logits, outputs, in, d,
                     begin == 0 ? 0.0F : 1.0F, own, d);
    backend_->gemm(false, false, count, d, outputs, 1.0F, space_.logits, outputs, weight(head_), d,
                   0.0F, dnormed + begin * d, d);
  }
  if (with_gradient && part_.ranks > 1) part_.reducer->sum({dnormed, rows * d});
  if (own != nullptr && !config_.tied) ready(head_);
}

/// Of the logits in space_.logits, which become their gradient.
void Transformer::cross_entropy(std::size_t rows, const std::uint32_t* labels, float share,
                                bool with_gradient) {
  const std::size_t outputs = own_.outputs.count;
  if (part_.ranks == 1) {
    backend_->cross_entropy(rows, outputs, labels, nullptr, share, with_gradient, space_.logits);
    return;
  }
  PartOperations& parts = *backend_->parts();
  const kernels::LossPart loss = {{labels, rows}, own_.outputs, share,
                                  space_.logits,  space_.terms, space_.terms + rows};
  parts.largest(loss);
  part_.reducer->largest({loss.largest, rows});
  parts.exponentials(loss);
  part_.reducer->sum({loss.terms, 3 * rows});
  parts.cross_entropy(loss, with_gradient);
}

/// Sum [rows, width] over the ranks that have the other parts.
void Transformer::sum_parts(std::size_t width, float* values) {
  if (part_.ranks > 1) part_.reducer->sum({values, rows_ * width});
}

/// Output of the last block of the model or stage, in space_.x.
void Transformer::end_blocks() {
  const std::size_t last = std::min(end_ - 1, blocks_.size()) - 1;
  const auto drops = dropout(config_.dropout, last * kSites + kMlp);
  backend_->copy(rows_ * config_.width, space_.blocks[last].middle, space_.x);
  backend_->add(drops, rows_, config_.width, space_.branch, space_.x);
}

/// After the last block: normalisation, head and loss, and the gradient of the residual path.
void Transformer::finish(bool with_gradient) {
  const std::size_t d = config_.width;
  if (has_block(blocks_.size() - 1)) end_blocks();
  float* x = space_.x;  // a classifier uses only the last token of each sample
  std::size_t rows = rows_;
  if (!config_.is_language()) {
    rows = batch_.samples;
    backend_->pick_rows(rows, d, in_.last, space_.x, space_.picked);
    x = space_.picked;
  }
  backend_->add_norm(norm(last_norm_), {}, rows, d, x, nullptr, x, space_.normed, space_.stats);
  head(rows, space_.normed, space_.branch, with_gradient);
  if (!with_gradient) return;
  backend_->zero(rows_ * d, space_.residual);
  if (config_.is_language()) {
    norm_back(last_norm_, rows, x, space_.stats, space_.branch, space_.residual);
  } else {
    backend_->zero(rows * d, space_.narrow);
    norm_back(last_norm_, rows, x, space_.stats, space_.branch, space_.narrow);
    backend_->place_rows(rows, d, in_.last, space_.narrow, space_.residual);
  }
}

void Transformer::embed_back() {
  const std::size_t d = config_.width;
  if (const auto drops = dropout(config_.dropout, config_.layers * kSites))
    backend_->drop(drops, rows_, d, space_.residual, space_.residual);
  if (float* const positions = gradient(1); positions != nullptr)
    backend_->sum_rows(batch_.samples, config_.context * d, space_.residual, positions);
  ready(1);
  if (float* const gradients = gradient(0); gradients != nullptr) {
    if (!config_.tied) backend_->zero(tensors_[0].elements, gradients);
    if (part_.ranks == 1)
      backend_->embed_back(rows_, in_.tokens, d, space_.residual, gradients);
    else
      backend_->parts()->embed_back(own_.tokens, rows_, in_.tokens, d, space_.residual, gradients);
  }
  ready(0);
}

void Transformer::queue_step(const Batch& batch, std::span<const float> params,
                             std::span<float> gradients,
                             const std::function<void(TensorId)>& on_ready) {
  CENTROID_CHECK(gradients.size() == parameters_);
  if (batch.samples == 0) {
    backend_->zero(gradients.size(), gradients.data());
    for (std::size_t t = manifest_.size(); t > 0; --t)
      on_ready(TensorId(static_cast<std::uint32_t>(t - 1)));
    return;
  }
  CENTROID_CHECK(params.size() == parameters_);
  flat_.set(manifest_, params.data(), gradients.data());
  begin(batch, flat_, true);
  on_ready_ = &on_ready;
  for (std::size_t pass = 0; pass < 2 * blocks_.size() + 3; ++pass) run(pass);
}

void Transformer::queue_evaluate(const Batch& batch, std::span<const float> params) {
  if (batch.samples == 0) return;
  CENTROID_CHECK(params.size() == parameters_);
  flat_.set(manifest_, params.data(), nullptr);
  begin(batch, flat_, false);
  for (std::size_t pass = 0; pass < blocks_.size() + 2; ++pass) run(pass);
}

}  // namespace centroid::worker
