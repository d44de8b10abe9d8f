#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/tensor/fingerprint.h"
#include "worker/model/attention.h"
#include "worker/model/backend.h"
#include "worker/model/kernels.h"
#include "worker/model/model.h"
#include "worker/model/tensor_part.h"
#include "worker/model/transformer_config.h"
#include "worker/model/transformer_part.h"

namespace centroid::worker {

/// Initial weights of training, or the frozen ones of adapters: all of TransformerConfig::whole(),
/// end to end, shared by replicas.
struct BaseWeights {
  explicit BaseWeights(std::vector<float> of) : values(std::move(of)), hash(fingerprint(values)) {}
  std::vector<float> values;
  std::uint64_t hash;
};
using Base = std::shared_ptr<const BaseWeights>;

/// Decoder-only transformer: token and position embedding, blocks of causal attention and an MLP,
/// each with a normalisation before it and a residual path, then a normalisation and the head. It
/// predicts the next token at every position, or classifies a sequence at its last one.
///
/// order   on_ready runs through the manifest backwards
/// bits    the same input on the same machine gives the same bits, with dropout too
/// memory  work space is allocated only for a batch larger than all before
/// source  Radford et al. 2019 (GPT-2): layout and scaling of the residual projections; SwiGLU:
///         Shazeer 2020, "GLU variants improve transformer"
/// layers  the embeddings, each block, the last normalisation with the head
class Transformer final : public Model, private Layered {
 public:
  /// `base` is required with adapters (config.lora). Without adapters `initialize` returns it, if
  /// given.
  explicit Transformer(TransformerConfig config, Base base = nullptr,
                       std::unique_ptr<Backend> backend = make_cpu_backend());

  const Manifest& manifest() const override { return manifest_; }
  std::uint64_t features() const override { return config_.context; }
  std::uint32_t classes() const override { return static_cast<std::uint32_t>(config_.outputs()); }
  std::uint32_t vocabulary() const override {
    return static_cast<std::uint32_t>(config_.vocabulary);
  }
  std::uint64_t targets() const override { return config_.is_language() ? config_.context : 1; }
  std::string spec() const override;  ///< with ",base=" and the fingerprint of the base weights
  std::uint64_t work_bytes(std::uint64_t samples, bool with_gradient) const override;
  std::uint64_t frozen_bytes() const override;
  void initialize(std::uint64_t seed, std::span<float> params) const override;
  void queue_step(const Batch& batch, std::span<const float> params, std::span<float> gradients,
                  const std::function<void(TensorId)>& on_ready) override;
  void queue_evaluate(const Batch& batch, std::span<const float> params) override;
  Backend& backend() override { return *backend_; }
  Layered* layered() override { return this; }
  std::unique_ptr<Model> clone_on(std::unique_ptr<Backend> backend) const override;

  const TransformerConfig& config() const { return config_; }
  std::uint64_t base_hash() const { return base_ ? base_->hash : 0; }
  /// All tensors of `whole` with the adapters added to their matrices: base + scale * B A.
  std::vector<float> merged(std::span<const float> params) const;

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// One tensor of `whole`.
  struct Tensor {
    std::size_t begin = 0, elements = 0;  ///< in the frozen weights
    std::size_t trained = kNone;          ///< first element in params
    std::size_t adapter = kNone;          ///< number of its adapters
    std::uint32_t id = 0;                 ///< in the manifest, when trained
  };
  /// A[rank, in] and B[out, rank], adjacent in the manifest.
  struct Adapter {
    std::size_t a = 0, b = 0;  ///< first elements in params
    std::uint32_t id = 0;      ///< of A; B's is the next
    std::size_t out = 0;
  };
  /// Numbers of the tensors of a block in `whole`.
  struct BlockTensors {
    std::size_t norm1 = 0, q = 0, o = 0, norm2 = 0, up = 0, down = 0;
  };
  /// Results of a block that the backward pass needs.
  struct BlockSpace {
    float *x = nullptr, *stats1 = nullptr, *n1 = nullptr, *qkv = nullptr, *lse = nullptr;
    float *attended = nullptr, *middle = nullptr, *stats2 = nullptr, *n2 = nullptr, *up = nullptr;
    float *active = nullptr, *low = nullptr;  // low: in A^T of every adapter
  };
  struct Space {
    std::vector<BlockSpace> blocks;
    float *x = nullptr, *picked = nullptr, *stats = nullptr, *normed = nullptr, *logits = nullptr;
    float *branch = nullptr, *residual = nullptr, *narrow = nullptr, *wide = nullptr;
    float *active = nullptr, *delta = nullptr, *scratch = nullptr, *low = nullptr;
    float *dropped = nullptr, *terms = nullptr;  // terms: of the losses of divided logits
  };
  /// A product with adjacent matrices that share their input.
  struct Projection {
    std::size_t first = 0, count = 1, in = 0, out = 0;  ///< tensors; widths (out of all together)
    std::uint64_t site = 0;                             ///< of the adapters' dropout
  };

  void lay_out(const TensorPart& part);
  bool has_block(std::size_t block) const { return first_ <= block + 1 && block + 1 < end_; }
  const float* weight(std::size_t tensor) const;
  float* gradient(std::size_t tensor) const;  ///< null: not trained
  void ready(std::size_t tensor) const;
  void ready(TensorId tensor) const;
  kernels::Norm norm(std::size_t tensor) const;
  kernels::Dropout dropout(double probability, std::uint64_t site) const;
  std::size_t wide() const;       ///< columns of the MLP's first product
  std::size_t low_width() const;  ///< columns of BlockSpace::low
  Projection qkv(std::size_t block) const;
  Projection o(std::size_t block) const;
  Projection up(std::size_t block) const;
  Projection down(std::size_t block) const;

  std::size_t assign_memory(std::uint64_t samples, bool with_gradient, float* memory,
                            Space& space) const;
  std::vector<std::uint32_t> layers() const override;
  std::vector<Pass> passes(bool with_gradient) const override;
  void initialize_tensor(std::uint64_t seed, TensorId tensor, std::span<float> out) const override;
  void draw(std::uint64_t seed, TensorId tensor, std::span<float> out) const;
  void begin(const Batch& batch, const TensorPlaces& places, bool with_gradient) override;
  void run(std::size_t pass) override;
  void set_stage(std::uint32_t begin, std::uint32_t end) override {
    first_ = begin;
    end_ = end;
  }
  Status set_part(const TensorPart& part) override;
  std::uint64_t border(std::uint32_t) const override { return config_.context * config_.width; }
  float* stage_input() override;
  const float* stage_output() override;
  float* stage_gradient() override { return space_.residual; }
  void check(const Batch& batch) const;
  void project(const Projection& p, const float* in, float* low, float* out);
  void project_back(const Projection& p, const float* in, const float* low, const float* dout,
                    float* din);
  void embed();
  void forward_block(std::size_t block);
  void backward_block(std::size_t block);
  void norm_back(std::size_t tensor, std::size_t rows, const float* x, const float* stats,
                 const float* dy, float* into);
  Attention attention(const BlockSpace& block) const;
  void end_blocks();
  void finish(bool with_gradient);
  void head(std::size_t rows, const float* normed, float* dnormed, bool with_gradient);
  void cross_entropy(std::size_t rows, const std::uint32_t* labels, float share,
                     bool with_gradient);
  void sum_parts(std::size_t width, float* values);
  void embed_back();

  TransformerConfig config_;
  Base base_;
  Manifest trained_;   // of the whole model
  Manifest manifest_;  // of the part
  TensorPart part_;
  TransformerPart own_;
  std::vector<Tensor> tensors_;
  std::vector<Adapter> adapters_;
  std::vector<BlockTensors> blocks_;
  std::size_t last_norm_ = 0, head_ = 0;  // head_ is 0, the token embedding, when tied
  std::size_t parameters_ = 0;
  std::size_t first_ = 0, end_ = 0;  // layers of the stage

  std::unique_ptr<Backend> backend_;
  const float* frozen_ = nullptr;  // the base weights in the backend's memory
  Space space_;
  TensorPlaces flat_;  // of whole steps
  // Of the present step:
  Inputs in_;
  Batch batch_;
  std::size_t rows_ = 0;
  bool is_training_ = false;
  const TensorPlaces* places_ = nullptr;
  const std::function<void(TensorId)>* on_ready_ = nullptr;
};

}  // namespace centroid::worker
