#include "common/codec/payload_codec.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/codec/payload.h"
#include "common/codec/topk.h"

namespace centroid {
namespace {

class PayloadCodec final : public Codec {
 public:
  explicit PayloadCodec(const CodecSpec& spec) : spec_(spec) {}

  std::string spec() const override { return spec_.to_string(); }

  std::size_t max_bytes(std::size_t n) const override {
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
    return n > kMost / 4 - 1 ? kMost : payload::dense_bytes(ValueType::kF32, n);
  }

  Result<std::size_t> encode(std::span<const float> x, MutableBytes out,
                             std::uint64_t stream) const override {
    if (out.size() < max_bytes(x.size()))
      return bad("out has " + std::to_string(out.size()) + " bytes, " + std::to_string(x.size()) +
                 " numbers need " + std::to_string(max_bytes(x.size())));
    if (x.size() >> 32 != 0) return bad("more than 2^32 - 1 numbers");
    const int8::Draw draw{spec_.rounding, stream};
    const std::uint64_t k = spec_.ratio.count_of(x.size());
    if (!is_sparse() || payload::is_dense_better(spec_.values, k, x.size()))
      return payload::encode_dense(spec_.values, draw, x, out.data());
    thread_local TopkSelector selector;
    const auto selected = selector.select(x, k);
    // Numbers that are not finite have the largest keys: if there are any, one was selected.
    const std::uint32_t limit = int8::limit(spec_.rounding);
    const bool finite = std::all_of(selected.value.begin(), selected.value.end(),
                                    [&](float v) { return topk::key_of(v) < limit; });
    if (!finite) return payload::encode_dense(ValueType::kF32, draw, x, out.data());
    return payload::encode_sparse(spec_.values, draw, selected.index, selected.value, out.data());
  }

  Status decode_add(Bytes in, float scale, bool first, std::span<float> acc) const override {
    const auto view = payload::read(in, spec_.values, is_sparse(), acc.size(), scratch(),
                                    first ? nullptr : acc.data());
    if (!view.ok()) return refused(in, view.error());
    payload::add(*view, scratch(), scale, first, acc);
    return {};
  }

  Status decode(Bytes in, std::span<float> out) const override {
    const auto view = payload::read(in, spec_.values, is_sparse(), out.size(), scratch());
    if (!view.ok()) return refused(in, view.error());
    payload::decode(*view, scratch(), out);
    return {};
  }

  Status check(Bytes in, std::size_t n) const override {
    const auto view = payload::read(in, spec_.values, is_sparse(), n, scratch());
    if (!view.ok()) return refused(in, view.error());
    return {};
  }

  double squares(Bytes in, std::size_t n) const override {
    return payload::squares(in, spec_.values, is_sparse(), n);
  }

  Status check_finite(Bytes in) const override { return payload::check_finite(in); }

  Result<std::optional<SparseNumbers>> sparse(Bytes in, std::size_t n) const override {
    if (!payload::is_sparse_payload(in)) return std::optional<SparseNumbers>();
    const auto view = payload::read(in, spec_.values, is_sparse(), n, scratch());
    if (!view.ok()) return refused(in, view.error());
    return std::optional<SparseNumbers>({view->index, payload::sent(*view, scratch())});
  }

 private:
  bool is_sparse() const { return spec_.kind == CodecSpec::Kind::kTopk; }
  std::string name() const { return std::string(spec_.name()); }

  static payload::Scratch& scratch() {
    thread_local payload::Scratch memory;
    return memory;
  }

  Error bad(const std::string& what) const {
    return {ErrorCode::kInvalidArgument, name() + " encode: " + what};
  }

  Error refused(Bytes in, const Error& cause) const {
    return {ErrorCode::kInvalidArgument,
            name() + " payload of " + std::to_string(in.size()) + " bytes: " + cause.message()};
  }

  CodecSpec spec_;
};

}  // namespace

std::unique_ptr<Codec> make_payload_codec(const CodecSpec& spec) {
  return std::make_unique<PayloadCodec>(spec);
}

}  // namespace centroid
