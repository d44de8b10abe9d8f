// Bytes on the wire, index coding, dense quantisation, and the server's merge.
#include <cmath>
#include <cstring>

#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/codec/index_code.h"
#include "common/codec/int8.h"
#include "common/codec/payload.h"
#include "common/codec/sign.h"
#include "common/codec/topk.h"
#include "tests/bench/codec_bench.h"

namespace centroid::bench {
namespace {

volatile std::size_t sink;

std::string milliseconds(double seconds) {
  return std::to_string(seconds * 1e3).substr(0, 6) + " ms";
}

/// Bytes per position of a random subset with this share, if it could be coded perfectly.
double entropy_bytes(double share) {
  const double rest = 1 - share;
  return -(share * std::log2(share) + rest * std::log2(rest)) / share / 8;
}

struct Share {
  const char* name;
  double share;
  std::uint32_t billionths;
  double index, bf16, int8;  // bars in bytes per element
};
constexpr Share kShares[] = {{"1 %", 0.01, 10'000'000, 1.04, 3.05, 2.06},
                             {"0.1 %", 0.001, 1'000'000, 1.46, 3.46, 2.48}};

}  // namespace

void bench_bytes(const Options& options) {
  heading("bytes per kept element, and speed of the index code");
  const Floats x(options.elements);
  fill_normal(x.span(), 11);
  for (const Share& share : kShares) {
    const std::uint64_t k = KeepRatio{share.billionths}.count_of(options.elements);
    TopkSelector selector;
    const auto kept = selector.select(x.span(), k);
    const auto count = static_cast<double>(kept.index.size());
    std::vector<std::byte> out(payload::sparse_bytes(ValueType::kF32, k, options.elements) + 8);
    std::vector<std::uint32_t> back(kept.index.size());
    std::size_t bytes = 0;
    Turns turns;
    const std::size_t encode =
        turns.add([&] { bytes = index_code::encode(kept.index, out.data()); });
    const std::size_t decode = turns.add([&] {
      CENTROID_CHECK(index_code::decode(Bytes(out).first(bytes), 8, options.elements, back).ok());
    });
    turns.run(2 * options.repetitions + 1);
    CENTROID_CHECK(std::equal(back.begin(), back.end(), kept.index.begin()));
    const std::string of = std::string(" ") + share.name;
    const double entropy = entropy_bytes(share.share);
    at_most("index bytes" + of, static_cast<double>(bytes) / count, share.index,
            std::to_string(static_cast<double>(bytes) / count / entropy).substr(0, 6) +
                " of the entropy " + std::to_string(entropy).substr(0, 5));
    for (const ValueType type : {ValueType::kF32, ValueType::kBf16, ValueType::kInt8}) {
      const double each = static_cast<double>(payload::encode_sparse(type, {}, kept.index,
                                                                     kept.value, out.data())) /
                          count;
      const std::string what = "bytes per element, " + std::string(to_string(type)) + of;
      const std::string less =
          "1 / " + std::to_string(4.0 / (each * share.share)).substr(0, 6) + " of dense f32";
      if (type == ValueType::kF32)
        row(what, each, "", less);
      else
        at_most(what, each, type == ValueType::kBf16 ? share.bf16 : share.int8, less);
    }
    at_least("indices encoded, million/s" + of, count / turns.median(encode) * 1e-6, 500);
    at_least("indices decoded and checked, million/s" + of, count / turns.median(decode) * 1e-6,
             500);
  }
}

void bench_dense(const Options& options) {
  heading("dense int8 against a memcpy of the floats, 1 thread");
  const std::size_t n = options.elements;
  const Floats x(n), copy(n), sum(n);
  fill_normal(x.span(), 13);
  std::vector<std::byte> nearest(int8::bytes(n)), random(int8::bytes(n));
  const auto quantize = [&](Rounding rounding, std::vector<std::byte>& out) {
    CENTROID_CHECK(int8::quantize(x.span(), {rounding, 5}, out.data()));
  };
  Turns turns;
  const std::size_t plain = turns.add([&] { std::memcpy(copy.data(), x.data(), 4 * n); });
  const std::size_t near = turns.add([&] { quantize(Rounding::kNearest, nearest); });
  const std::size_t chance = turns.add([&] { quantize(Rounding::kStochastic, random); });
  const std::size_t check = turns.add([&] { sink = int8::check(random, n).ok(); });
  const std::size_t add = turns.add([&] { int8::dequantize_add(random, 0.5f, false, sum.span()); });
  turns.run(options.repetitions);
  const double base = turns.median(plain);
  const auto against = [&](std::size_t contender) { return turns.ratio(contender, plain); };
  row("memcpy", base * 1e3, "ms");
  at_most("int8, nearest / memcpy", against(near), 1.0, milliseconds(turns.median(near)));
  at_most("int8, stochastic / memcpy", against(chance), 1.0, milliseconds(turns.median(chance)));
  at_most("dequantise and accumulate / memcpy", against(add), 1.0, milliseconds(turns.median(add)));
  at_most("the same with the check of the payload", against(add) + against(check), 1.0,
          milliseconds(turns.median(add) + turns.median(check)));
}

void bench_sign(const Options& options) {
  heading("signs with a scale per block, against a memcpy of the floats, 1 thread");
  const std::size_t n = options.elements;
  const Floats x(n), copy(n), sum(n);
  fill_normal(x.span(), 13);
  std::vector<std::byte> out(sign::bytes(n));
  CENTROID_CHECK(sign::quantize(x.span(), out.data()));
  row("bytes per number", static_cast<double>(out.size()) / static_cast<double>(n), "");
  Turns turns;
  const std::size_t plain = turns.add([&] { std::memcpy(copy.data(), x.data(), 4 * n); });
  const std::size_t encode = turns.add([&] { sink = sign::quantize(x.span(), out.data()); });
  const std::size_t check = turns.add([&] { sink = sign::check(out, n).ok(); });
  const std::size_t add = turns.add([&] { sign::dequantize_add(out, 0.5f, false, sum.span()); });
  turns.run(options.repetitions);
  const auto against = [&](std::size_t contender) { return turns.ratio(contender, plain); };
  at_most("sign / memcpy", against(encode), 1.0, milliseconds(turns.median(encode)));
  at_most("decode and accumulate / memcpy", against(add), 1.0, milliseconds(turns.median(add)));
  at_most("the same with the check of the payload", against(add) + against(check), 1.0,
          milliseconds(turns.median(add) + turns.median(check)));
}

void bench_merge(const Options& options) {
  heading("server: sum of sparse contributions, chunk by chunk in rank order, 1 thread");
  constexpr std::size_t kChunk = 262'144;  // 1 MiB of floats
  constexpr std::size_t kMost = 8;
  const std::size_t n = options.elements;
  const Floats sum(n), dense(n), unpacked(n);
  const std::string specs[] = {"topk:0.01", "topk:0.01,values=bf16", "topk:0.01,values=int8",
                               "topk:0.001,values=int8"};
  for (const std::string& spec : specs) {
    const auto codec = make_codec(spec).value();
    std::vector<std::vector<std::vector<std::byte>>> payloads(kMost);  // of rank and chunk
    std::vector<std::byte> out(codec->max_bytes(kChunk));
    double received = 0;
    for (std::size_t rank = 0; rank < kMost; ++rank) {
      fill_normal(unpacked.span(), 100 + rank);
      for (std::size_t at = 0; at < n; at += kChunk) {
        const auto chunk = unpacked.span().subspan(at, std::min(kChunk, n - at));
        const std::size_t bytes = codec->encode(chunk, out).value();
        payloads[rank].emplace_back(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(bytes));
        received +=
            static_cast<double>(CodecSpec::parse(spec).value().ratio.count_of(chunk.size()));
      }
    }
    for (const std::size_t ranks : {std::size_t{4}, kMost}) {
      const auto merge = [&](bool may_be_first) {
        for (std::size_t at = 0, c = 0; at < n; at += kChunk, ++c) {
          const auto target = sum.span().subspan(at, std::min(kChunk, n - at));
          for (std::size_t rank = 0; rank < ranks; ++rank)
            CENTROID_CHECK(
                codec->decode_add(payloads[rank][c], 0.25f, may_be_first && rank == 0, target)
                    .ok());
        }
      };
      Turns turns;
      const std::size_t whole = turns.add([&] { merge(true); });
      const std::size_t added = turns.add([&] { merge(false); });
      const std::size_t others = turns.add([&] {  // each contribution made dense, then added
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          for (std::size_t at = 0, c = 0; at < n; at += kChunk, ++c)
            CENTROID_CHECK(codec
                               ->decode(payloads[rank][c],
                                        unpacked.span().subspan(at, std::min(kChunk, n - at)))
                               .ok());
          add_pass(unpacked.span(), dense.span());
        }
      });
      turns.run(std::min<std::uint64_t>(options.repetitions, 7));
      const double elements = received * static_cast<double>(ranks) / kMost;
      const std::string of = spec + ", " + std::to_string(ranks) + " ranks";
      const bool has_bar = spec.starts_with("topk:0.01");
      const double each = turns.median(added) / elements * 1e9;
      if (has_bar)
        at_most("ns per element, " + of, each, 4.0, milliseconds(turns.median(added)));
      else
        row("ns per element, " + of, each, "ns", milliseconds(turns.median(added)));
      row("  when the first one also writes the zeros", turns.median(whole) / elements * 1e9, "ns",
          milliseconds(turns.median(whole)));
      at_least("  made dense and added, times slower", turns.ratio(others, added), 6.0,
               milliseconds(turns.median(others)));
    }
  }
}

}  // namespace centroid::bench
