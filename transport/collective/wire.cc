#include "transport/collective/wire.h"

#include <cstring>

namespace centroid::collective {

namespace {

constexpr std::size_t kMaxText = 2048;

Error damaged(std::string_view what) {
  return {ErrorCode::kDataLoss, "a peer's " + std::string(what) + " frame is malformed"};
}

void put(ByteWriter& out, const Key& key) {
  out.put(key.group);
  out.put(key.tag);
  out.put(key.sequence);
}
// Not inline: g++ 12 warns wrongly about vectors that grow repeatedly in one function.
[[gnu::noinline]] void put_text(ByteWriter& out, std::string_view text) { out.put_string(text); }

Key get_key(ByteReader& in) {
  Key key;
  key.group = in.get<std::uint64_t>();
  key.tag = in.get<std::uint64_t>();
  key.sequence = in.get<std::uint64_t>();
  return key;
}

}  // namespace

std::string to_string(const Signature& signature) {
  std::string text(to_string(signature.operation));
  if (signature.operation == Operation::kBarrier) return text;
  if (signature.reduction != Reduction::kNone) {
    text += " (" + std::string(to_string(signature.reduction)) + ", " +
            std::string(to_string(signature.algorithm)) + ")";
  }
  text += " of " + std::to_string(signature.count) + " ";
  text += centroid::to_string(signature.dtype);
  return text;
}

Signature DataHead::signature() const {
  Signature out;
  out.count = count;
  out.root = root;
  out.operation = operation;
  out.dtype = dtype;
  out.reduction = reduction;
  out.algorithm = static_cast<Algorithm>(algorithm & 0x7F);
  return out;
}

std::vector<std::byte> encode(const Join& join) {
  ByteWriter out;
  out.put(join.generation);
  out.put(join.rank);
  out.put(join.world);
  out.put(join.features);
  return out.take();
}

std::vector<std::byte> encode(const JoinReply& reply) {
  ByteWriter out;
  out.put(reply.features);
  out.put(reply.shared_port);
  return out.take();
}

std::vector<std::byte> encode(const Abort& abort) {
  ByteWriter out;
  out.put(abort.group);
  put_text(out, std::string_view(abort.text).substr(0, kMaxText));
  out.put(abort.culprit);
  out.put(abort.code);
  return out.take();
}

std::vector<std::byte> encode(const Key& key) {
  ByteWriter out;
  put(out, key);
  return out.take();
}

std::vector<std::byte> encode(const Waiting& waiting) {
  ByteWriter out;
  put(out, waiting.key);
  out.put(waiting.rank);
  out.put(waiting.waits_for);
  return out.take();
}

std::vector<std::byte> encode_bytes(std::uint64_t bytes) {
  ByteWriter out;
  out.put(bytes);
  return out.take();
}

Result<DataHead> decode_data(Bytes head) {
  DataHead out;
  if (head.size() != sizeof(out)) return damaged("data");
  std::memcpy(&out, head.data(), sizeof(out));
  const auto in = [](auto value, auto first, auto last) { return value >= first && value <= last; };
  if (!in(out.operation, Operation::kAllReduce, kLastOperation) ||
      !in(out.dtype, DType::kF32, DType::kU8) ||
      !in(out.reduction, Reduction::kNone, Reduction::kProduct) ||
      !in(out.signature().algorithm, Algorithm::kAuto, kLastAlgorithm)) {
    return damaged("data");
  }
  return out;
}

Result<Join> decode_join(Bytes head) {
  ByteReader in(head);
  Join out;
  out.generation = in.get<std::uint64_t>();
  out.rank = in.get<std::uint32_t>();
  out.world = in.get<std::uint32_t>();
  out.features = in.get<std::uint32_t>();
  if (!in.done()) return damaged("join");
  return out;
}

Result<JoinReply> decode_join_reply(Bytes head) {
  ByteReader in(head);
  JoinReply out;
  out.features = in.get<std::uint32_t>();
  out.shared_port = in.get<std::uint32_t>();
  if (!in.done() || out.shared_port > 0xFFFF) return damaged("join reply");
  return out;
}

Result<Abort> decode_abort(Bytes head) {
  ByteReader in(head);
  Abort out;
  out.group = in.get<std::uint64_t>();
  out.text = in.get_string(kMaxText);
  out.culprit = in.get<std::uint32_t>();
  out.code = in.get<ErrorCode>();
  if (!in.done() || out.code < ErrorCode::kUnavailable || out.code > ErrorCode::kInternal)
    return damaged("abort");
  return out;
}

Result<Key> decode_key(Bytes head) {
  ByteReader in(head);
  const Key out = get_key(in);
  if (!in.done()) return damaged("key");
  return out;
}

Result<Waiting> decode_waiting(Bytes head) {
  ByteReader in(head);
  Waiting out;
  out.key = get_key(in);
  out.rank = in.get<std::uint32_t>();
  out.waits_for = in.get<std::uint32_t>();
  if (!in.done()) return damaged("waiting");
  return out;
}

Result<std::uint64_t> decode_bytes(Bytes head) {
  ByteReader in(head);
  const auto out = in.get<std::uint64_t>();
  if (!in.done()) return damaged("return");
  return out;
}

}  // namespace centroid::collective
