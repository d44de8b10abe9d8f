#include "common/codec/whole.h"

#include <algorithm>
#include <array>

#include "common/codec/topk_kernels.h"

namespace centroid {

Result<std::unique_ptr<SumEncoder>> SumEncoder::make(const std::string& text) {
  CENTROID_ASSIGN(const CodecSpec spec, CodecSpec::parse(text));
  CENTROID_ASSIGN(std::unique_ptr<Codec> codec, make_codec(text));
  return std::unique_ptr<SumEncoder>(new SumEncoder(spec, std::move(codec)));
}

SumEncoder::SumEncoder(CodecSpec spec, std::unique_ptr<Codec> codec)
    : spec_(spec),
      codec_(std::move(codec)),
      is_half_(spec.kind == CodecSpec::Kind::kBf16 || spec.kind == CodecSpec::Kind::kF16) {}

void SumEncoder::find_nonzeros(std::span<const float> x) {
  const topk::Kernels& loops = topk::kernels();
  index_.resize(std::max(index_.size(), x.size() + topk::kSlack));
  value_.resize(std::max(value_.size(), x.size()));
  std::array<std::uint64_t, topk::kWords> masks;
  count_ = 0;
  std::uint32_t largest = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += topk::kBlock) {
    const std::size_t n = std::min(topk::kBlock, x.size() - begin);
    loops.mark(x.data() + begin, n, 1, masks.data());
    const std::size_t found = loops.expand(masks.data(), (n + 63) / 64,
                                           static_cast<std::uint32_t>(begin), &index_[count_]);
    for (std::size_t j = count_; j < count_ + found; ++j) {
      value_[j] = x[index_[j]];
      largest = std::max(largest, topk::key_of(value_[j]));
    }
    count_ += found;
  }
  is_finite_ = largest < int8::limit(spec_.rounding);
}

Result<std::size_t> SumEncoder::encode(std::span<const float> x, MutableBytes out,
                                       std::uint64_t stream) {
  sparse_.reset();
  if (spec_.kind != CodecSpec::Kind::kTopk) return codec_->encode(x, out, stream);
  if (out.size() < codec_->max_bytes(x.size()) || x.size() >> 32 != 0)
    return Error(ErrorCode::kInvalidArgument,
                 "encode: " + std::to_string(out.size()) + " bytes for " +
                     std::to_string(x.size()) + " numbers, " +
                     std::to_string(codec_->max_bytes(x.size())) + " are needed");
  const int8::Draw draw{spec_.rounding, stream};
  find_nonzeros(x);
  if (!is_finite_) return payload::encode_dense(ValueType::kF32, draw, x, out.data());
  if (payload::is_dense_better(spec_.values, count_, x.size()))
    return payload::encode_dense(spec_.values, draw, x, out.data());
  Sparse sparse{std::span(index_).first(count_), std::span(value_).first(count_), {}};
  const std::size_t bytes =
      payload::encode_sparse(spec_.values, draw, sparse.index, sparse.value, out.data());
  sparse.sent = sparse.value;
  if (spec_.values != ValueType::kF32) {
    const std::size_t values = payload::value_bytes(spec_.values, count_);
    payload::View view{true, spec_.values, Bytes(out).subspan(bytes - values, values),
                       sparse.index};
    sparse.sent = payload::sent(view, scratch_);
  }
  sparse_ = sparse;
  return bytes;
}

}  // namespace centroid
