#include "common/proto/messages.h"

#include <cmath>

#include "common/proto/about.h"
#include "common/proto/pulls.h"
#include "common/proto/rows.h"
#include "common/proto/servers.h"
#include "common/proto/tables.h"

namespace centroid::proto {
namespace {

struct Encoder {
  ByteWriter out;
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, bool>)
      out.put(static_cast<std::uint8_t>(value));
    else
      out.put(value);
  }
  template <class Tag, class Rep>
  void operator()(const StrongId<Tag, Rep>& id) {
    out.put(id.value);
  }
  void operator()(const std::string& text, std::size_t limit) {
    out.put_string(std::string_view(text).substr(0, limit));
  }
  /// After all other fields: a reader without it still reads messages without the field, and
  /// refuses those with it.
  template <class T>
  void tail(const T& value, const T& absent) {
    if (value == absent) return;
    if constexpr (requires(T& x) { x.fields(*this); })
      const_cast<T&>(value).fields(*this);  // the encoder only reads
    else
      (*this)(value);
  }
  template <class T>
  void operator()(const std::vector<T>& list) {
    out.put(static_cast<std::uint32_t>(list.size()));
    for (const T& one : list) {
      if constexpr (requires(T& x) { x.fields(*this); })
        const_cast<T&>(one).fields(*this);  // the encoder only reads
      else
        (*this)(one);
    }
  }
};

struct Decoder {
  ByteReader in;
  bool ok = true, has_nan = false;
  template <class T>
    requires(std::is_arithmetic_v<T>)
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto raw = in.get<std::uint8_t>();
      ok = ok && raw <= 1;
      value = raw == 1;
    } else {
      value = in.get<T>();
      if constexpr (std::is_floating_point_v<T>) has_nan = has_nan || std::isnan(value);
    }
  }
  template <class T>
    requires(std::is_enum_v<T>)
  void operator()(T& value) {
    const auto raw = in.get<std::underlying_type_t<T>>();
    ok = ok && raw <= last_value(T{});
    value = static_cast<T>(raw);
  }
  template <class Tag, class Rep>
  void operator()(StrongId<Tag, Rep>& id) {
    id.value = in.get<Rep>();
  }
  void operator()(std::string& text, std::size_t limit) { text = in.get_string(limit); }
  template <class T>
  void tail(T& value, const T& absent) {
    value = absent;
    if (in.left() == 0) return;
    if constexpr (requires { value.fields(*this); })
      value.fields(*this);
    else
      (*this)(value);
    ok = ok && value != absent;  // one form for one message
  }
  /// Allocates as elements are read, so never more than the input needs.
  template <class T>
  void operator()(std::vector<T>& list) {
    const auto count = in.get<std::uint32_t>();
    for (std::uint32_t i = 0; i < count && ok && in.ok() && in.left() > 0; ++i) {
      T& one = list.emplace_back();
      if constexpr (requires { one.fields(*this); })
        one.fields(*this);
      else
        (*this)(one);
    }
    ok = ok && list.size() == count;
  }
};

/// The message's own checks of its fields, if any.
template <class M>
Status check(const M& message) {
  if constexpr (requires { message.check(); })
    return message.check();
  else
    return {};
}

}  // namespace

std::vector<std::byte> encode_manifest(const Manifest& manifest) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(manifest.size()));
  for (const TensorInfo& tensor : manifest) {
    out.put_string(tensor.name);
    out.put(tensor.dtype);
    out.put(static_cast<std::uint8_t>(tensor.shape.size()));
    for (const std::uint64_t dim : tensor.shape) out.put(dim);
  }
  return out.take();
}

Result<Manifest> decode_manifest(Bytes payload) {
  ByteReader in(payload);
  const auto malformed = [&](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument,
                 "malformed manifest of " + std::to_string(payload.size()) + " bytes: " + what +
                     " (docs/reference/wire.md, \"Manifest\")");
  };
  const auto count = in.get<std::uint32_t>();
  constexpr std::size_t kLeastBytes = 4 + 1 + 1 + 1;
  if (count > kMaxTensors)
    return malformed(std::to_string(count) + " tensors, at most " + std::to_string(kMaxTensors));
  if (!in.ok() || count * kLeastBytes > in.left())
    return malformed("it ends before its " + std::to_string(count) + " tensors");
  Manifest manifest(count);
  for (TensorInfo& tensor : manifest) {
    tensor.name = in.get_string(kMaxNameBytes);
    const auto dtype = dtype_from_wire(in.get<std::uint8_t>());
    const auto rank = in.get<std::uint8_t>();
    if (!dtype.ok() || rank > 8 || !in.ok()) {
      const auto number = std::to_string(&tensor - manifest.data());
      return malformed("name, dtype or rank of tensor " + number);
    }
    tensor.dtype = dtype.value();
    tensor.shape.resize(rank);
    for (std::uint64_t& dim : tensor.shape) dim = in.get<std::uint64_t>();
  }
  if (!in.done()) return malformed("its length is not that of its tensors");
  return manifest;
}

#define CENTROID_MESSAGE(M)                                                       \
  template <>                                                                     \
  std::vector<std::byte> encode<M>(const M& message) {                            \
    Encoder encoder;                                                              \
    const_cast<M&>(message).fields(encoder); /* the encoder only reads */         \
    return encoder.out.take();                                                    \
  }                                                                               \
  template <>                                                                     \
  Result<M> decode<M>(Bytes head) {                                               \
    Decoder decoder{ByteReader(head)};                                            \
    M message;                                                                    \
    message.fields(decoder);                                                      \
    const bool is_complete = decoder.ok && decoder.in.done();                     \
    if (is_complete) CENTROID_TRY(check(message));                                \
    if (!is_complete || decoder.has_nan)                                          \
      return Error(ErrorCode::kInvalidArgument,                                   \
                   "malformed " #M " message of " + std::to_string(head.size()) + \
                       " bytes (docs/reference/wire.md has its layout)");         \
    return message;                                                               \
  }

CENTROID_MESSAGE(Join)
CENTROID_MESSAGE(JoinReply)
CENTROID_MESSAGE(InitChunk)
CENTROID_MESSAGE(Empty)
CENTROID_MESSAGE(StateChunk)
CENTROID_MESSAGE(RoundOpen)
CENTROID_MESSAGE(Push)
CENTROID_MESSAGE(PushEnd)
CENTROID_MESSAGE(ResultChunk)
CENTROID_MESSAGE(RoundClosed)
CENTROID_MESSAGE(Finish)
CENTROID_MESSAGE(Leave)
CENTROID_MESSAGE(Report)
CENTROID_MESSAGE(Peers)
CENTROID_MESSAGE(StateMark)
CENTROID_MESSAGE(Keep)
CENTROID_MESSAGE(Kept)
CENTROID_MESSAGE(BeatReply)
CENTROID_MESSAGE(Wait)
CENTROID_MESSAGE(Beat)
CENTROID_MESSAGE(Measure)
CENTROID_MESSAGE(Measured)
CENTROID_MESSAGE(Computed)
CENTROID_MESSAGE(ExchangeFailed)
CENTROID_MESSAGE(RowsOpen)
CENTROID_MESSAGE(RowsOpenReply)
CENTROID_MESSAGE(RowsPull)
CENTROID_MESSAGE(RowsPush)
CENTROID_MESSAGE(RowsPushReply)
CENTROID_MESSAGE(Pull)
CENTROID_MESSAGE(PullReply)
CENTROID_MESSAGE(Values)
CENTROID_MESSAGE(ServerJoin)
CENTROID_MESSAGE(ServerTerms)
CENTROID_MESSAGE(ServerModel)
CENTROID_MESSAGE(Route)
CENTROID_MESSAGE(ServerChunk)
CENTROID_MESSAGE(ServerState)
CENTROID_MESSAGE(WeighedContribution)
CENTROID_MESSAGE(Whole)
CENTROID_MESSAGE(Merge)
CENTROID_MESSAGE(MergeReply)
CENTROID_MESSAGE(Step)
CENTROID_MESSAGE(Opened)
CENTROID_MESSAGE(Forget)
CENTROID_MESSAGE(Refused)
CENTROID_MESSAGE(Enter)
CENTROID_MESSAGE(Tokens)
CENTROID_MESSAGE(Recall)
CENTROID_MESSAGE(RecallReply)
CENTROID_MESSAGE(OptimizerChange)
CENTROID_MESSAGE(MemoryPlan)
CENTROID_MESSAGE(ServerReport)
CENTROID_MESSAGE(Statistics)
CENTROID_MESSAGE(Tables)
CENTROID_MESSAGE(RowsBlock)
CENTROID_MESSAGE(PushesBlock)
CENTROID_MESSAGE(RowsFreeze)
CENTROID_MESSAGE(RowsFrozen)
CENTROID_MESSAGE(RowsRead)
CENTROID_MESSAGE(RowsThaw)
CENTROID_MESSAGE(TablesReport)
CENTROID_MESSAGE(Buckets)
CENTROID_MESSAGE(BucketsFound)
CENTROID_MESSAGE(BucketsPut)
CENTROID_MESSAGE(BucketsRoute)

#undef CENTROID_MESSAGE

}  // namespace centroid::proto
