#include "server/aggregate/robust.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "common/tensor/multiversion.h"
#include "common/tensor/text.h"
#include "server/aggregate/ordered.h"

namespace centroid::server {
namespace {

constexpr std::size_t kTile = 64;  // coordinates: a row is 4 cache lines, 16 rows fit 4 KiB
constexpr std::size_t kMostTrimmed = 2047;  // of 4096 workers
constexpr std::string_view kTrimmed = "trimmed_mean:", kNnm = "nnm_trimmed_mean:";

using Pair = RobustMean::Pair;

struct Work {
  const float* const* rows;
  std::size_t count;
  std::span<const Pair> pairs;
  std::size_t first, last;                 ///< rows that are selected when all pairs are in order
  std::int32_t* tile;                      ///< count rows of kTile
  const Neighbours* neighbours = nullptr;  ///< of each row; nullptr: no mixing
  double* unmixed = nullptr;               ///< as `tile`
  const std::atomic<bool>* is_over = nullptr;
};

template <std::size_t kStrip>
[[gnu::always_inline]] inline void add_rows(std::span<const std::uint32_t> rows, const double* from,
                                            double* __restrict sum) {
  for (const std::uint32_t s : rows) {
    const double* const row = from + s * kTile;
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < kStrip; ++i) sum[i] += row[i];
  }
}

/// Put the means of each row's neighbours in the place of the tile's rows. Sums in double neither
/// overflow nor leave the range of their numbers by more than a float's rounding.
[[gnu::always_inline]] inline void mix_tile(const Work& work) {
  constexpr std::size_t kStrip = 16;  // sums that fit registers
  const Neighbours& near = *work.neighbours;
  const double part = 1.0 / static_cast<double>(near.shared().size() + near.others(0).size());
  for (std::size_t at = 0; at < kTile; at += kStrip) {
    double shared[kStrip] = {};
    add_rows<kStrip>(near.shared(), work.unmixed + at, shared);
    for (std::size_t r = 0; r < work.count; ++r) {
      double sum[kStrip];
      std::copy_n(shared, kStrip, sum);
      add_rows<kStrip>(near.others(r), work.unmixed + at, sum);
      std::int32_t* __restrict const to = work.tile + r * kTile + at;
      CENTROID_INDEPENDENT
      for (std::size_t i = 0; i < kStrip; ++i)
        to[i] = ordered_bits(static_cast<float>(sum[i] * part));
    }
  }
}

template <std::size_t kWidth>
[[gnu::always_inline]] inline void combine_tile(const Work& work, std::size_t at,
                                                float* __restrict out, std::size_t width) {
  const std::size_t used = kWidth > 0 ? kWidth : width;
  for (std::size_t r = 0; r < work.count; ++r) {
    const float* const row = work.rows[r] + at;
    std::int32_t* __restrict const to = work.tile + r * kTile;
    if (work.neighbours != nullptr) {
      std::copy_n(row, used, work.unmixed + r * kTile);
      continue;
    }
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < used; ++i) to[i] = ordered_bits(row[i]);
  }
  if (work.neighbours != nullptr) mix_tile(work);
  for (const auto& [low, high] : work.pairs) {
    std::int32_t* __restrict const a = work.tile + low * kTile;
    std::int32_t* __restrict const b = work.tile + high * kTile;
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < kTile; ++i) {
      const std::int32_t x = a[i], y = b[i];
      a[i] = x < y ? x : y;
      b[i] = x < y ? y : x;
    }
  }
  // Multiplied first, so that no sum overflows; then clamped between the ends, which rounding may
  // pass.
  const float part = 1.0f / static_cast<float>(work.last - work.first);
  const std::int32_t* const lowest = work.tile + work.first * kTile;
  const std::int32_t* const highest = work.tile + (work.last - 1) * kTile;
  float sum[kTile] = {};
  for (std::size_t r = work.first; r < work.last; ++r) {
    const std::int32_t* const row = work.tile + r * kTile;
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < kTile; ++i) sum[i] += part * from_ordered(row[i]);
  }
  CENTROID_INDEPENDENT
  for (std::size_t i = 0; i < used; ++i) {
    const float low = from_ordered(lowest[i]);
    const float high = from_ordered(highest[i]);
    const float above = sum[i] < low ? low : sum[i];
    out[i] = above > high ? high : above;
  }
}

struct Combine {
  CENTROID_KERNEL void run(const Work* work, float* out, std::size_t n) {
    std::size_t at = 0;
    for (; at + kTile <= n && !work->is_over->load(std::memory_order_relaxed); at += kTile)
      combine_tile<kTile>(*work, at, out + at, kTile);
    if (at < n && n - at < kTile) combine_tile<0>(*work, at, out + at, n - at);
  }
};

}  // namespace

Result<AggregateRule> AggregateRule::parse(std::string_view text) {
  AggregateRule rule;
  if (text == "mean") return rule;
  if (text == "median") {
    rule.kind = Kind::kMedian;
    rule.trim = 1;  // as `least` and `dropped` use it
    return rule;
  }
  rule.kind = text.starts_with(kNnm) ? Kind::kNnmTrimmedMean : Kind::kTrimmedMean;
  const std::string_view name = rule.mixes() ? kNnm : kTrimmed;
  const auto bad = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "aggregate \"" + printable(text, 80) + "\": " + why);
  };
  if (!text.starts_with(name))
    return bad(
        "expected mean, median, trimmed_mean:F or nnm_trimmed_mean:F; the last two tolerate F "
        "faulty workers");
  const std::string_view number = text.substr(name.size());
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), rule.trim);
  if (error != std::errc{} || end != number.data() + number.size() || rule.trim == 0 ||
      rule.trim > kMostTrimmed)
    return bad("expected " + std::string(name) + "F, F an integer from 1 to " +
               std::to_string(kMostTrimmed));
  return rule;
}

std::string AggregateRule::to_string() const {
  if (kind == Kind::kMean) return "mean";
  if (kind == Kind::kMedian) return "median";
  return std::string(mixes() ? kNnm : kTrimmed) + std::to_string(trim);
}

Status AggregateRule::takes(const CodecSpec& codec, std::uint64_t samples) const {
  const auto bad = [](const std::string& why) { return Error(ErrorCode::kInvalidArgument, why); };
  if (codec.kind == CodecSpec::Kind::kTopk && !is_mean())
    return bad("its codec '" + codec.to_string() + "' sends few numbers, and with aggregate " +
               to_string() +
               " each is set against those of the others, most of them 0: take a codec "
               "that sends all, such as int8 or sign (--codec)");
  if (samples < least())
    return bad("it has " + std::to_string(samples) + " training samples, aggregate " + to_string() +
               " needs " + std::to_string(least()) + " in a round");
  return {};
}

std::size_t AggregateRule::dropped(std::size_t n) const {
  const std::size_t most = n == 0 ? 0 : (n - 1) / 2;
  if (kind == Kind::kMean) return 0;
  return kind == Kind::kMedian ? most : std::min(trim, most);
}

std::vector<Pair> RobustMean::network(std::size_t rows, std::size_t first, std::size_t last) {
  std::vector<Pair> all;
  if (rows > 1) {
    const std::size_t top = std::bit_ceil(rows) / 2;
    for (std::size_t p = top; p > 0; p /= 2) {
      std::size_t q = top, r = 0, d = p;
      for (;;) {
        for (std::size_t i = 0; i + d < rows; ++i)
          if ((i & p) == r)
            all.emplace_back(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + d));
        if (q == p) break;
        d = q - p;
        q /= 2;
        r = p;
      }
    }
  }
  std::vector<bool> is_wanted(rows);
  for (std::size_t i = first; i < last; ++i) is_wanted[i] = true;
  std::vector<Pair> needed;
  for (auto pair = all.rbegin(); pair != all.rend(); ++pair) {
    if (!is_wanted[pair->first] && !is_wanted[pair->second]) continue;
    is_wanted[pair->first] = is_wanted[pair->second] = true;
    needed.push_back(*pair);
  }
  std::ranges::reverse(needed);
  return needed;
}

void RobustMean::combine(std::span<const float* const> rows, std::span<float> out,
                         const std::atomic<bool>& is_over) {
  const std::size_t n = rows.size(), dropped = rule_.dropped(n);
  CENTROID_CHECK(n > 0);
  if (rows_ != n) {
    pairs_ = network(n, dropped, n - dropped);
    tile_.assign(n * kTile, 0);
    rows_ = n;
  }
  Work work{rows.data(), n, pairs_, dropped, n - dropped, tile_.data()};
  work.is_over = &is_over;
  if (rule_.mixes()) {
    if (!neighbours_.find(rows, out.size(), n - dropped, is_over)) return;
    work.rows = neighbours_.rows().data();
    work.neighbours = &neighbours_;
    unmixed_.resize(tile_.size());
    work.unmixed = unmixed_.data();
  }
  run_multiversioned<Combine>(&work, out.data(), out.size());
}

void RobustMean::combine(std::span<const Encoded> rows, std::span<float> out,
                         const std::atomic<bool>& is_over) {
  const auto is_floats = [&](const Encoded& row) {  // usable as floats in place
    return row.payload.size() == out.size_bytes() && row.codec->spec() == "f32" &&
           std::bit_cast<std::uintptr_t>(row.payload.data()) % alignof(float) == 0;
  };
  const auto coded = static_cast<std::size_t>(
      std::ranges::count_if(rows, [&](const Encoded& row) { return !is_floats(row); }));
  if (decoded_.size() < coded * out.size()) decoded_.resize(coded * out.size());
  addresses_.clear();
  std::span<float> free = decoded_;
  for (const Encoded& row : rows) {
    if (is_over) return;
    if (is_floats(row)) {
      addresses_.push_back(reinterpret_cast<const float*>(row.payload.data()));
      continue;
    }
    const std::span<float> decoded = free.first(out.size());
    free = free.subspan(out.size());
    CENTROID_CHECK(row.codec->decode(row.payload, decoded).ok());  // it was checked on arrival
    addresses_.push_back(decoded.data());
  }
  if (!is_over) combine(addresses_, out, is_over);
}

}  // namespace centroid::server
