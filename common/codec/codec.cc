#include "common/codec/codec.h"

#include "common/codec/payload_codec.h"
#include "common/codec/plain.h"
#include "common/codec/spec.h"

namespace centroid {

Result<std::optional<SparseNumbers>> Codec::sparse(Bytes /*in*/, std::size_t /*n*/) const {
  return std::optional<SparseNumbers>();
}

Result<std::unique_ptr<Codec>> make_codec(const std::string& text) {
  CENTROID_ASSIGN(const CodecSpec spec, CodecSpec::parse(text));
  switch (spec.kind) {
    case CodecSpec::Kind::kF32:
    case CodecSpec::Kind::kBf16:
    case CodecSpec::Kind::kF16:
      return make_plain_codec(spec);
    case CodecSpec::Kind::kInt8:
    case CodecSpec::Kind::kTopk:
    case CodecSpec::Kind::kSign:
      break;
  }
  return make_payload_codec(spec);
}

}  // namespace centroid
