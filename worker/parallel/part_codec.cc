#include "worker/parallel/part_codec.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/codec/int8.h"
#include "common/codec/spec.h"
#include "common/tensor/text.h"
#include "transport/collective/collectives.h"
#include "worker/parallel/shard_layout.h"

namespace centroid::parallel {
namespace {

/// A scale that `int8::quantize` never writes.
constexpr std::byte kNotFinite{0xFF};

}  // namespace

Result<PartCodec> PartCodec::parse(const std::string& setting, const std::string& spec) {
  CENTROID_ASSIGN(const CodecSpec parsed, CodecSpec::parse(spec));
  const std::string name = parsed.to_string();
  PartCodec out;
  if (name == "f32") return out;
  if (name == "int8") {
    out.is_int8_ = true;
    return out;
  }
  if (name != "bf16")
    return Error(ErrorCode::kInvalidArgument, "exchange sharded: " + setting +
                                                  " is f32, bf16 or int8 without options, not " +
                                                  printable(name));
  CENTROID_ASSIGN(out.bf16_, make_codec(name));
  return out;
}

std::uint64_t PartCodec::bytes(std::uint64_t elements) const {
  if (is_int8_) return int8::bytes(elements);
  return elements * (bf16_ ? 2 : sizeof(float));
}

Status PartCodec::encode(std::span<const float> x, MutableBytes out) const {
  if (is_int8_) {
    if (!int8::quantize(x, {}, out.data())) std::ranges::fill(out, kNotFinite);
    return {};
  }
  CENTROID_TRY(bf16_->encode(x, out));
  return {};
}

Status PartCodec::decode(Bytes in, std::span<float> out) const {
  if (!is_int8_) return bf16_->decode(in, out);
  if (int8::check(in, out.size()).ok())
    int8::dequantize(in, out);
  else
    std::ranges::fill(out, std::numeric_limits<float>::quiet_NaN());
  return {};
}

Status PartCodec::add(Bytes in, bool is_first, std::span<float> sum) const {
  if (!is_int8_) return bf16_->decode_add(in, 1, is_first, sum);
  if (int8::check(in, sum.size()).ok())
    int8::dequantize_add(in, 1, is_first, sum);
  else
    std::ranges::fill(sum, std::numeric_limits<float>::quiet_NaN());
  return {};
}

std::uint64_t CodedParts::room_bytes(const PartCodec& codec, std::uint64_t elements,
                                     std::uint32_t ranks) {
  return 2 * ranks * codec.bytes(shard_of(elements, ranks, 0).count);
}

std::uint64_t CodedParts::offset_of(std::uint64_t elements, std::uint32_t rank) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < rank; ++i)
    bytes += codec_.bytes(shard_of(elements, group_.world(), i).count);
  return bytes;
}

collective::Handle CodedParts::scatter(std::span<const float> whole, Buffer& room,
                                       collective::CallOptions options) const {
  const std::uint32_t world = group_.world();
  std::vector<std::uint64_t> sent;
  std::uint64_t begin = 0;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const Range part = shard_of(whole.size(), world, rank);
    sent.push_back(codec_.bytes(part.count));
    const MutableBytes place = room.bytes().subspan(begin, sent.back());
    Status encoded = codec_.encode(whole.subspan(part.begin, part.count), place);
    if (!encoded.ok()) return collective::Handle(std::move(encoded).error());
    begin += sent.back();
  }
  const std::vector<std::uint64_t> received(world, sent[group_.rank()]);
  const collective::ConstElements input(DType::kU8, room.bytes().first(begin));
  const collective::Elements output(DType::kU8,
                                    room.bytes().subspan(begin, world * received.front()));
  return collective::all_to_all_async(group_, input, output, std::move(options), sent, received);
}

Status CodedParts::take_mean(const Buffer& room, std::uint64_t elements,
                             std::span<float> mean) const {
  const std::uint64_t begin = offset_of(elements, group_.world()),
                      bytes = codec_.bytes(mean.size());
  for (std::uint32_t rank = 0; rank < group_.world(); ++rank)
    CENTROID_TRY(codec_.add(room.bytes().subspan(begin + rank * bytes, bytes), rank == 0, mean));
  const auto ranks = static_cast<float>(group_.world());
  for (float& value : mean) value /= ranks;
  return {};
}

collective::Handle CodedParts::gather(std::span<const float> part, std::uint64_t elements,
                                      Buffer& room, collective::CallOptions options) const {
  std::vector<std::uint64_t> counts;
  for (const std::uint64_t count : shard_counts(elements, group_.world()))
    counts.push_back(codec_.bytes(count));
  const std::uint64_t begin = offset_of(elements, group_.rank());
  const MutableBytes own = room.bytes().subspan(begin, counts[group_.rank()]);
  if (Status encoded = codec_.encode(part, own); !encoded.ok())
    return collective::Handle(std::move(encoded).error());
  const MutableBytes all = room.bytes().first(offset_of(elements, group_.world()));
  return collective::all_gather_async(group_, collective::ConstElements(DType::kU8, own),
                                      collective::Elements(DType::kU8, all), std::move(options),
                                      counts);
}

Status CodedParts::take_parts(const Buffer& room, std::span<float> whole) const {
  std::uint64_t begin = 0;
  for (std::uint32_t rank = 0; rank < group_.world(); ++rank) {
    const Range part = shard_of(whole.size(), group_.world(), rank);
    const std::uint64_t bytes = codec_.bytes(part.count);
    CENTROID_TRY(
        codec_.decode(room.bytes().subspan(begin, bytes), whole.subspan(part.begin, part.count)));
    begin += bytes;
  }
  return {};
}

Status CodedParts::round(std::span<float> whole) const {
  std::vector<std::byte> bytes(codec_.bytes(shard_of(whole.size(), group_.world(), 0).count));
  for (std::uint32_t rank = 0; rank < group_.world(); ++rank) {
    const Range part = shard_of(whole.size(), group_.world(), rank);
    const std::span<float> values = whole.subspan(part.begin, part.count);
    const MutableBytes place = MutableBytes(bytes).first(codec_.bytes(part.count));
    CENTROID_TRY(codec_.encode(values, place));
    CENTROID_TRY(codec_.decode(place, values));
  }
  return {};
}

}  // namespace centroid::parallel
