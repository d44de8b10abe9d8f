#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/random.h"
#include "worker/data/data_source.h"

namespace centroid::worker {

namespace {

/// Mix the bytes of an array and its length into `hash`.
template <class T>
std::uint64_t mix_array(std::uint64_t hash, const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  const auto* from = reinterpret_cast<const unsigned char*>(values.data());
  hash = mix64(hash, bytes);
  std::size_t at = 0;
  for (; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, from + at, sizeof(word));
    hash = mix64(hash ^ word);
  }
  if (at < bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, bytes - at);
    hash = mix64(hash ^ word);
  }
  return hash;
}

}  // namespace

void Dataset::gather(std::span<const std::uint64_t> index, std::span<float> out,
                     std::span<std::uint32_t> labels) const {
  CENTROID_CHECK(out.size() == index.size() * features && labels.size() == index.size());
  float* row = out.data();
  for (std::size_t i = 0; i < index.size(); ++i, row += features) {
    const std::uint64_t sample = index[i];
    CENTROID_CHECK(sample < samples);
    labels[i] = y[sample];
    if (is_sparse()) {
      std::fill_n(row, features, 0.0F);
      for (std::uint64_t k = row_begin[sample]; k < row_begin[sample + 1]; ++k)
        row[cols[k]] = vals[k];
    } else if (features > 0) {
      std::copy_n(x.data() + sample * features, features, row);
    }
  }
}

void Dataset::gather_tokens(std::span<const std::uint64_t> index, std::span<std::uint32_t> out,
                            std::span<std::uint32_t> labels,
                            std::span<std::uint32_t> lengths) const {
  const bool is_language = y.empty();
  CENTROID_CHECK(out.size() == index.size() * features && lengths.size() == index.size());
  CENTROID_CHECK(labels.size() == index.size() * targets());
  for (std::size_t i = 0; i < index.size(); ++i) {
    const std::uint64_t sample = index[i];
    CENTROID_CHECK(sample < samples);
    const std::uint32_t* const from = tokens.data() + token_begin[sample];
    const std::uint64_t length =
        token_begin[sample + 1] - token_begin[sample] - (is_language ? 1 : 0);
    CENTROID_CHECK(length >= 1 && length <= features);
    lengths[i] = static_cast<std::uint32_t>(length);
    std::uint32_t* const row = out.data() + i * features;
    std::copy_n(from, length, row);
    std::fill(row + length, row + features, 0U);
    if (!is_language) {
      labels[i] = y[sample];
      continue;
    }
    std::uint32_t* const next = labels.data() + i * features;
    std::copy_n(from + 1, length, next);
    std::fill(next + length, next + features, kNoLabel);
  }
}

std::uint64_t Dataset::fingerprint() const {
  std::uint64_t hash = mix64(samples, features);
  hash = mix64(hash, classes);
  hash = mix_array(hash, x);
  hash = mix_array(hash, y);
  hash = mix_array(hash, row_begin);
  hash = mix_array(hash, cols);
  hash = mix_array(hash, vals);
  if (vocabulary == 0) return hash;
  hash = mix_array(mix64(hash, vocabulary), tokens);
  return mix_array(hash, token_begin);
}

}  // namespace centroid::worker
