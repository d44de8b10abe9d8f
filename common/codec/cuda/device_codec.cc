#include "common/codec/cuda/device_codec.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/codec/sign.h"

namespace centroid {
namespace {

using cuda::Dense;

// Layout of `summary_`: the selection's summary, a copy of the flags, and a 0.
constexpr std::size_t kFlagsAt = sizeof(cuda::SelectSummary);
constexpr std::size_t kZeroAt = kFlagsAt + sizeof(std::uint32_t);
constexpr std::size_t kSummaryBytes = kZeroAt + sizeof(std::uint32_t);

template <class T>
T* as(const std::unique_ptr<DeviceMemory>& memory) {
  return reinterpret_cast<T*>(memory->data());
}

std::size_t bytes_of(Dense type, std::size_t elements) {
  if (type == Dense::kInt8) return int8::bytes(elements);
  if (type == Dense::kSign) return sign::bytes(elements);
  return (type == Dense::kF32 ? 4 : 2) * elements;
}

Error bad(const std::string& what) {
  return {ErrorCode::kInvalidArgument, "error feedback: " + what};
}

}  // namespace

Result<std::unique_ptr<DeviceCodec>> DeviceCodec::make(std::string_view text, const Limits& limits,
                                                       Device& device) {
  CENTROID_ASSIGN(CodecSpec spec, CodecSpec::parse(text));
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error(code, "codec spec \"" + spec.to_string() + "\": " + why);
  };
  if (!spec.feedback.enabled)
    return refuse(ErrorCode::kInvalidArgument, "field \"feedback\" is off");
  if (spec.feedback.clip != 0)
    return refuse(ErrorCode::kUnimplemented, "field \"clip\" is for gradients on the CPU only");
  if (limits.elements >> 32 != 0)
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(limits.elements) + " numbers in one array; 2^32 - 1 are possible");
  std::unique_ptr<DeviceCodec> codec(new DeviceCodec(spec, limits, device));
  CENTROID_TRY(codec->allocate());
  return codec;
}

Status DeviceCodec::allocate() {
  const bool is_topk = spec_.kind == CodecSpec::Kind::kTopk;
  const std::uint64_t most = is_topk ? limits_.ratio.count_of(limits_.elements) : 0;
  CENTROID_ASSIGN(scratch_, device_.allocate(cuda::select_bytes(limits_.elements)));
  CENTROID_ASSIGN(flags_, device_.allocate(sizeof(std::uint32_t)));
  CENTROID_ASSIGN(summary_, device_.allocate_pinned(kSummaryBytes));
  CENTROID_ASSIGN(index_, device_.allocate_pinned(most * sizeof(std::uint32_t)));
  CENTROID_ASSIGN(value_, device_.allocate_pinned(most * sizeof(float)));
  if (spec_.values != ValueType::kF32) {
    CENTROID_ASSIGN(rest_, device_.allocate_pinned(most * sizeof(float)));
  }
  CENTROID_ASSIGN(dense_, device_.allocate_pinned(bytes_of(dense_type(), limits_.piece)));
  CENTROID_ASSIGN(stream_, device_.make_stream(Priority::kHigh));
  return {};
}

DeviceCodec::~DeviceCodec() {
  if (stream_) (void)stream_->wait();  // an error is reported by another call
}

Dense DeviceCodec::dense_type() const {
  if (spec_.kind == CodecSpec::Kind::kBf16) return Dense::kBf16;
  if (spec_.kind == CodecSpec::Kind::kF16) return Dense::kF16;
  if (spec_.values == ValueType::kF32) return Dense::kF32;
  if (spec_.values == ValueType::kSign) return Dense::kSign;
  return spec_.values == ValueType::kBf16 ? Dense::kFiniteBf16 : Dense::kInt8;
}

float* DeviceCodec::momentum_to_clear() const {
  return spec_.feedback.masking ? tensor_.momentum : nullptr;
}

Status DeviceCodec::begin(const Tensor& tensor, KeepRatio ratio) {
  CENTROID_CHECK(tensor.elements <= limits_.elements &&
                 (tensor.momentum != nullptr) == (spec_.feedback.momentum != 0));
  tensor_ = tensor;
  dense_count_ = 0;
  has_waited_ = false;
  const bool is_topk = spec_.kind == CodecSpec::Kind::kTopk;
  const std::uint64_t k = is_topk ? ratio.count_of(tensor.elements) : 0;
  selects_ = is_topk && !payload::is_dense_better(spec_.values, k, tensor.elements);
  CENTROID_CHECK(k * sizeof(float) <= value_->size());
  cuda::SelectArguments of;
  of.add.gradient = tensor.gradient;
  of.add.x = tensor.residual;
  of.add.momentum = tensor.momentum;
  of.add.factor = spec_.feedback.momentum;
  of.add.nesterov = spec_.feedback.nesterov;
  of.n = tensor.elements;
  of.k = selects_ ? k : 0;
  of.memory = scratch_->data();
  of.index = as<std::uint32_t>(index_);
  of.value = as<float>(value_);
  of.summary = as<cuda::SelectSummary>(summary_);
  CENTROID_TRY(cuda::select(of, queue()));
  return is_topk ? Status() : queue_dense(0, tensor.elements);
}

/// Queue the numbers of a dense payload into pinned memory.
Status DeviceCodec::queue_dense(std::uint64_t first, std::uint64_t elements) {
  const Dense type = dense_type();
  const std::size_t bytes = bytes_of(type, elements);
  CENTROID_CHECK(bytes <= dense_->size());
  CENTROID_TRY(stream_->copy(flags_->data(), summary_->data() + kZeroAt, sizeof(std::uint32_t)));
  const float* x = tensor_.residual + first;
  if (type == Dense::kF32) {
    CENTROID_TRY(stream_->copy(dense_->data(), reinterpret_cast<const std::byte*>(x), bytes));
  } else {
    cuda::EncodeArguments of;
    of.type = type;
    of.x = x;
    of.n = elements;
    of.out = dense_->data();
    of.flags = as<std::uint32_t>(flags_);
    CENTROID_TRY(cuda::encode(of, queue()));
  }
  CENTROID_TRY(stream_->copy(summary_->data() + kFlagsAt, flags_->data(), sizeof(std::uint32_t)));
  dense_first_ = first;
  dense_count_ = elements;
  return {};
}

Result<std::size_t> DeviceCodec::encode(std::uint64_t first, std::uint64_t elements,
                                        MutableBytes out) {
  CENTROID_CHECK(first <= tensor_.elements && elements <= tensor_.elements - first);
  CENTROID_CHECK(out.size() >= (spec_.has_form() ? payload::dense_bytes(ValueType::kF32, elements)
                                                 : bytes_of(dense_type(), elements)));
  if (!std::exchange(has_waited_, true)) CENTROID_TRY(stream_->wait());
  const auto summary = *as<cuda::SelectSummary>(summary_);
  if (summary.nonfinite > 0)
    return bad(std::to_string(summary.nonfinite) + " of the " + std::to_string(tensor_.elements) +
               " sums of residual and gradient of " + tensor_.name +
               " are not finite, the first is number " + std::to_string(summary.first_nonfinite));
  if (selects_) {
    const std::span<const std::uint32_t> index(as<std::uint32_t>(index_), summary.count);
    const auto begin = std::ranges::lower_bound(index, first);
    const auto end = std::lower_bound(begin, index.end(), first + elements);
    const auto count = static_cast<std::size_t>(end - begin);
    if (!payload::is_dense_better(spec_.values, count, elements))
      return take_sparse(first, elements, static_cast<std::size_t>(begin - index.begin()), count,
                         out);
  }
  if (dense_count_ != elements || dense_first_ != first) {
    CENTROID_TRY(queue_dense(first, elements));
    CENTROID_TRY(stream_->wait());
  }
  return take_dense(first, elements, out);
}

/// The payload of selected numbers [from, from + count), which are those of a chunk.
Result<std::size_t> DeviceCodec::take_sparse(std::uint64_t first, std::uint64_t elements,
                                             std::size_t from, std::size_t count,
                                             MutableBytes out) {
  const std::uint32_t* index = as<std::uint32_t>(index_) + from;
  const std::span<const float> value(as<float>(value_) + from, count);
  shifted_.resize(std::max(shifted_.size(), count));
  for (std::size_t j = 0; j < count; ++j)
    shifted_[j] = index[j] - static_cast<std::uint32_t>(first);
  const std::span<const std::uint32_t> shifted = std::span(shifted_).first(count);
  const std::size_t bytes = payload::encode_sparse(spec_.values, {}, shifted, value, out.data());
  CENTROID_CHECK(bytes <= payload::dense_bytes(ValueType::kF32, elements));
  float* rest = nullptr;
  if (spec_.values != ValueType::kF32) {
    rest = as<float>(rest_) + from;
    payload::View view{true, spec_.values, {}, shifted};
    const std::size_t numbers = payload::value_bytes(spec_.values, count);
    view.values = Bytes(out).subspan(bytes - numbers, numbers);
    const auto sent = payload::sent(view, values_);
    for (std::size_t j = 0; j < count; ++j) rest[j] = value[j] - sent[j];
  }
  sent_ = count;
  was_dense_ = false;
  CENTROID_TRY(cuda::settle(index, rest, count, tensor_.residual, momentum_to_clear(), queue()));
  return bytes;
}

/// The payload from `queue_dense`.
Result<std::size_t> DeviceCodec::take_dense(std::uint64_t first, std::uint64_t elements,
                                            MutableBytes out) {
  std::uint32_t flags = 0;
  std::memcpy(&flags, summary_->data() + kFlagsAt, sizeof flags);
  if (flags != 0)
    return bad("numbers " + std::to_string(first) + " to " + std::to_string(first + elements) +
               " of " + tensor_.name + " are too large for " + spec_.to_string());
  const Dense type = dense_type();
  const std::size_t form = spec_.has_form() ? 1 : 0;
  const std::size_t bytes = bytes_of(type, elements);
  if (form > 0) out[0] = static_cast<std::byte>(spec_.values);
  if (bytes > 0) std::memcpy(out.data() + form, dense_->data(), bytes);
  float* momentum = momentum_to_clear();
  CENTROID_TRY(cuda::subtract(type, tensor_.residual + first,
                              momentum != nullptr ? momentum + first : nullptr, elements,
                              as<std::uint32_t>(flags_), queue()));
  dense_count_ = 0;
  sent_ = elements;
  was_dense_ = true;
  return form + bytes;
}

}  // namespace centroid
