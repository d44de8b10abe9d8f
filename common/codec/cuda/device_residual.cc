#include "common/codec/cuda/device_residual.h"

#include <algorithm>
#include <utility>

#include "common/codec/cuda/device_codec.h"
#include "common/codec/warmup.h"

namespace centroid {

namespace {

float* floats(const std::unique_ptr<DeviceMemory>& memory) {
  return reinterpret_cast<float*>(memory->data());
}

class CodecResidual final : public DeviceResidual {
 public:
  CodecResidual(std::unique_ptr<DeviceCodec> codec, const float* gradient,
                std::unique_ptr<DeviceMemory> residual, std::unique_ptr<DeviceMemory> momentum,
                std::unique_ptr<DeviceMemory> before, std::size_t bytes)
      : gradient_(gradient),
        residual_(std::move(residual)),
        momentum_(std::move(momentum)),
        before_(std::move(before)),
        bytes_(bytes),
        codec_(std::move(codec)) {}

  Status begin(std::uint64_t position, std::uint64_t elements, const std::string& name,
               KeepRatio ratio) override {
    DeviceCodec::Tensor unit;
    unit.gradient = gradient_ + position;
    unit.residual = floats(residual_) + position;
    unit.momentum = momentum_ ? floats(momentum_) + position : nullptr;
    unit.elements = elements;
    unit.name = name;
    return codec_->begin(unit, ratio);
  }
  Result<bool> done() override { return codec_->done(); }
  Result<Sent> encode(std::uint64_t first, std::uint64_t elements, MutableBytes out) override {
    CENTROID_ASSIGN(const std::size_t bytes, codec_->encode(first, elements, out));
    return Sent{bytes, codec_->sent(), codec_->was_dense()};
  }
  Status keep(std::uint64_t position, std::uint64_t elements) override {
    const std::size_t at = position * sizeof(float), bytes = elements * sizeof(float);
    std::byte* const momentum = before_->data() + bytes_;
    CENTROID_TRY(codec_->stream().copy(before_->data() + at, residual_->data() + at, bytes));
    if (!momentum_) return {};
    return codec_->stream().copy(momentum + at, momentum_->data() + at, bytes);
  }
  Status undo(std::uint64_t position, std::uint64_t elements) override {
    const std::size_t at = position * sizeof(float), bytes = elements * sizeof(float);
    const std::byte* const momentum = before_->data() + bytes_;
    CENTROID_TRY(codec_->stream().copy(residual_->data() + at, before_->data() + at, bytes));
    if (!momentum_) return {};
    return codec_->stream().copy(momentum_->data() + at, momentum + at, bytes);
  }
  Status read(std::span<float> residual, std::span<float> momentum) override {
    const auto to = std::as_writable_bytes(residual), also = std::as_writable_bytes(momentum);
    CENTROID_TRY(codec_->stream().copy(to.data(), residual_->data(), to.size()));
    if (momentum_) CENTROID_TRY(codec_->stream().copy(also.data(), momentum_->data(), also.size()));
    return codec_->stream().wait();
  }
  Status read_copies(std::span<float> residual, std::span<float> momentum) override {
    const auto to = std::as_writable_bytes(residual), also = std::as_writable_bytes(momentum);
    CENTROID_TRY(codec_->stream().copy(to.data(), before_->data(), to.size()));
    if (momentum_)
      CENTROID_TRY(codec_->stream().copy(also.data(), before_->data() + bytes_, also.size()));
    return codec_->stream().wait();
  }
  Status write(std::span<const float> residual, std::span<const float> momentum) override {
    const auto from = std::as_bytes(residual), also = std::as_bytes(momentum);
    CENTROID_TRY(codec_->stream().copy(residual_->data(), from.data(), from.size()));
    if (momentum_) CENTROID_TRY(codec_->stream().copy(momentum_->data(), also.data(), also.size()));
    return codec_->stream().wait();
  }

 private:
  const float* gradient_;
  std::unique_ptr<DeviceMemory> residual_, momentum_;
  std::unique_ptr<DeviceMemory> before_;  // residual, then momentum
  const std::size_t bytes_;               // of each
  std::unique_ptr<DeviceCodec> codec_;    // last: its stream uses the members above
};

}  // namespace

Result<std::unique_ptr<DeviceResidual>> make_device_residual(const std::string& spec,
                                                             const ChunkPlan& plan,
                                                             const float* gradient,
                                                             Device& device) {
  CENTROID_ASSIGN(const CodecSpec parsed, CodecSpec::parse(spec));
  DeviceCodec::Limits limits;
  limits.elements = limits.piece = plan.max_chunk_elements();
  limits.ratio = ratio_after(parsed, 0);
  const bool is_topk = parsed.kind == CodecSpec::Kind::kTopk;
  if (is_topk && parsed.scope == Scope::kGlobal) limits.elements = plan.total_elements();
  for (const TensorInfo& tensor : plan.manifest())
    if (is_topk) limits.elements = std::max(limits.elements, tensor.elements());
  CENTROID_ASSIGN(auto codec, DeviceCodec::make(spec, limits, device));
  const std::size_t bytes = plan.total_elements() * sizeof(float);
  CENTROID_ASSIGN(auto residual, device.allocate(bytes));
  std::unique_ptr<DeviceMemory> momentum;
  if (parsed.feedback.momentum != 0) {
    CENTROID_ASSIGN(momentum, device.allocate(bytes));
  }
  CENTROID_ASSIGN(auto before, device.allocate(momentum ? 2 * bytes : bytes));
  return std::unique_ptr<DeviceResidual>(new CodecResidual(std::move(codec), gradient,
                                                           std::move(residual), std::move(momentum),
                                                           std::move(before), bytes));
}

}  // namespace centroid
