#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "client/c_boundary.h"
#include "client/centroid.h"
#include "common/base/bytes.h"
#include "common/codec/error_feedback.h"
#include "common/codec/payload.h"
#include "common/tensor/chunk_plan.h"
#include "common/tensor/finite.h"

/// The C interface of codecs (c_api.cc has the rest).

using namespace centroid::c_boundary;
using centroid::Bytes;
using centroid::Chunk;
using centroid::Error;
using centroid::ErrorCode;
using centroid::Status;

struct centroid_codec {
  centroid::ChunkPlan plan;
  std::unique_ptr<centroid::Codec> codec;
  std::unique_ptr<centroid::ErrorFeedback> feedback;
  std::uint64_t room = 0;          ///< bytes of the longest payload
  bool carries_nonfinite = false;  ///< a payload with such numbers is not longer
  std::uint64_t payloads = 0;
};

namespace {

using Size = std::uint32_t;  ///< of a chunk's bytes, which follow it
/// In place of the first size: every number is NaN.
constexpr Size kNotFinite = std::numeric_limits<Size>::max();
/// The passes over a chunk's numbers find them in a core's cache.
constexpr std::uint64_t kChunkBytes = 1 << 20;
/// Selecting counts in 32 bits.
constexpr std::uint64_t kMostNumbers = (std::uint64_t{1} << 32) - 1;

/// Bytes of a payload of finite sums, at most. Of dense codecs all have as many, so that receivers
/// know the size; of top-k most are up to 3 % shorter.
std::uint64_t room_of(const centroid_codec& c, const centroid::CodecSpec& spec) {
  const auto chunks = c.plan.chunks();
  const std::uint64_t count = c.plan.total_elements(), sizes = chunks.size() * sizeof(Size);
  if (spec.kind == centroid::CodecSpec::Kind::kTopk) {
    const std::uint64_t kept = c.feedback->ratio().count_of(count);
    if (!centroid::payload::is_dense_better(spec.values, kept, count))
      return sizes + centroid::payload::sparse_bytes(spec.values, kept, count, chunks.size());
  }
  std::uint64_t bytes = sizes;
  for (const Chunk& chunk : chunks)
    bytes += spec.has_form() ? centroid::payload::dense_bytes(spec.values, chunk.elements)
                             : c.codec->max_bytes(chunk.elements);
  return bytes;
}

/// Chunks with such numbers are f32, or as always where the codec has no forms.
bool carries_nonfinite(const centroid_codec& c, const centroid::CodecSpec& spec) {
  if (!spec.has_form()) return true;
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : c.plan.chunks())
    bytes +=
        sizeof(Size) + centroid::payload::dense_bytes(centroid::ValueType::kF32, chunk.elements);
  return bytes <= c.room;
}

Status open(const char* spec, std::uint64_t count, std::unique_ptr<centroid_codec>& out) {
  if (count > kMostNumbers)
    return bad("count is " + std::to_string(count) + ", above " + std::to_string(kMostNumbers));
  auto made = std::make_unique<centroid_codec>();
  centroid::Manifest manifest(1);
  manifest[0].name = "numbers";
  manifest[0].shape = {count};
  CENTROID_ASSIGN(made->plan, centroid::ChunkPlan::make(std::move(manifest), kChunkBytes));
  CENTROID_ASSIGN(made->codec, centroid::make_codec(text(spec)));
  CENTROID_ASSIGN(made->feedback,
                  centroid::ErrorFeedback::make(text(spec), made->plan, nullptr,
                                                centroid::ErrorFeedback::Residual::kCallers));
  made->feedback->pass_nonfinite(true);
  CENTROID_ASSIGN(const auto parsed, centroid::CodecSpec::parse(text(spec)));
  made->room = room_of(*made, parsed);
  made->carries_nonfinite = carries_nonfinite(*made, parsed);
  out = std::move(made);
  return {};
}

/// The payload that stands for NaN everywhere; returns its end.
std::byte* mark_not_finite(std::byte* payload) {
  std::memcpy(payload, &kNotFinite, sizeof kNotFinite);
  return payload + sizeof kNotFinite;
}

/// Finite values and a finite residual had a sum that is not, whose payload was longer than the
/// room. The residual begins at 0 again.
Status drop_overflow(centroid_codec& c, std::span<const float> values, std::span<float> residual) {
  bool is_finite = true;
  for (const Chunk& chunk : c.plan.chunks()) {
    CENTROID_ASSIGN(const Bytes coded,
                    c.feedback->encode_onto(chunk.id, values, residual, c.payloads));
    is_finite = is_finite && c.codec->check_finite(coded).ok();
  }
  CENTROID_CHECK(!is_finite);
  std::ranges::fill(residual, 0.0f);
  return {};
}

Status encode(centroid_codec& c, std::span<const float> values, std::span<float> residual,
              std::byte* payload, std::uint64_t& bytes) {
  std::byte* at = payload;
  std::byte* const end = payload + c.room;
  if (!c.carries_nonfinite && !centroid::is_finite(values)) {
    std::fill(mark_not_finite(payload), end, std::byte{0});
    bytes = sizeof kNotFinite;
    return {};
  }
  ++c.payloads;
  for (const Chunk& chunk : c.plan.chunks()) {
    CENTROID_ASSIGN(const Bytes coded,
                    c.feedback->encode_onto(chunk.id, values, residual, c.payloads));
    const Size size = static_cast<Size>(coded.size());
    if (sizeof size + size > static_cast<std::uint64_t>(end - at)) {
      CENTROID_TRY(drop_overflow(c, values, residual));
      at = mark_not_finite(payload);
      break;
    }
    std::memcpy(at, &size, sizeof size);
    std::memcpy(at + sizeof size, coded.data(), size);
    at += sizeof size + size;
  }
  std::fill(at, end, std::byte{0});
  bytes = static_cast<std::uint64_t>(at - payload);
  return {};
}

Status decode(const centroid_codec& c, Bytes payload, float scale, bool first, float* sum) {
  for (const Chunk& chunk : c.plan.chunks()) {
    Size size = 0;
    if (payload.size() >= sizeof size) std::memcpy(&size, payload.data(), sizeof size);
    if (size == kNotFinite && chunk.position == 0) {
      std::fill_n(sum, c.plan.total_elements(), std::numeric_limits<float>::quiet_NaN());
      payload = payload.subspan(sizeof size);
      break;
    }
    if (payload.size() < sizeof size || payload.size() - sizeof size < size)
      return bad("the payload ends within chunk " + centroid::to_string(chunk.id) + " of " +
                 std::to_string(c.plan.chunks().size()));
    const std::span<float> to(sum + chunk.position, chunk.elements);
    CENTROID_TRY(c.codec->decode_add(payload.subspan(sizeof size, size), scale, first, to));
    payload = payload.subspan(sizeof size + size);
  }
  if (std::ranges::any_of(payload, [](std::byte one) { return one != std::byte{0}; }))
    return bad("the " + std::to_string(payload.size()) + " bytes behind the payload are not 0");
  return {};
}

}  // namespace

extern "C" {

int centroid_codec_open(const char* spec, uint64_t count, centroid_codec** codec) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(codec, "codec"));
    *codec = nullptr;
    CENTROID_TRY(given(spec, "spec"));
    std::unique_ptr<centroid_codec> made;
    CENTROID_TRY(open(spec, count, made));
    *codec = made.release();
    return {};
  });
}

uint64_t centroid_codec_room(const centroid_codec* codec) {
  return codec == nullptr ? 0 : codec->room;
}

int centroid_codec_encode(centroid_codec* codec, const float* values, float* residual,
                          void* payload, uint64_t* bytes) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(codec, "codec"));
    CENTROID_TRY(given(bytes, "bytes"));
    if (codec->plan.total_elements() > 0) {
      CENTROID_TRY(given(values, "values"));
      CENTROID_TRY(given(residual, "residual"));
      CENTROID_TRY(given(payload, "payload"));
    }
    const std::uint64_t count = codec->plan.total_elements();
    return encode(*codec, {values, count}, {residual, count}, static_cast<std::byte*>(payload),
                  *bytes);
  });
}

int centroid_codec_decode(const centroid_codec* codec, const void* payload, uint64_t bytes,
                          float scale, int first, float* sum) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(codec, "codec"));
    if (bytes > 0) CENTROID_TRY(given(payload, "payload"));
    if (codec->plan.total_elements() > 0) CENTROID_TRY(given(sum, "sum"));
    return decode(*codec, {static_cast<const std::byte*>(payload), bytes}, scale, first != 0, sum);
  });
}

void centroid_codec_close(centroid_codec* codec) { delete codec; }

}  // extern "C"
