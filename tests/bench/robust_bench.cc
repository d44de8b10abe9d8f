// Median, trimmed mean and neighbour mixing against the sum that a mean takes: the same chunks, one
// thread.
//   centroid-bench-robust [--elements N] [--repetitions N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/config.h"
#include "common/base/random.h"
#include "common/codec/codec.h"
#include "common/tensor/buffer.h"
#include "server/aggregate/robust.h"

namespace centroid {
namespace {

constexpr std::size_t kChunk = 262'144;  // 1 MiB of floats

double median(std::vector<double> seconds) {
  std::ranges::nth_element(seconds,
                           seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2));
  return seconds[seconds.size() / 2];
}

/// Contributions of `workers`, each a whole model, and where the result goes.
struct Model {
  Model(const std::string& spec, std::size_t workers, std::size_t elements)
      : codec(make_codec(spec).value()), n(elements), out(elements * sizeof(float)) {
    Buffer x(kChunk * sizeof(float)), bytes(codec->max_bytes(kChunk));
    for (std::size_t w = 0; w < workers; ++w) {
      auto& mine = payloads.emplace_back();
      for (std::size_t at = 0; at < n; at += kChunk) {
        const auto values = x.as<float>().first(std::min(kChunk, n - at));
        CounterRng random(w + 1, at);
        for (float& v : values) v = static_cast<float>(random.normal());
        const std::size_t size = codec->encode(values, bytes.bytes()).value();
        Buffer& kept = mine.emplace_back(size);
        std::ranges::copy(bytes.bytes().first(size), kept.data());
      }
    }
  }
  std::span<float> result(std::size_t chunk) const {
    return out.as<float>().subspan(chunk * kChunk, std::min(kChunk, n - chunk * kChunk));
  }
  std::unique_ptr<Codec> codec;
  std::size_t n;
  Buffer out;
  std::vector<std::vector<Buffer>> payloads;  // of worker and chunk
};

void sum(const Model& model) {
  for (std::size_t c = 0; c < model.payloads[0].size(); ++c)
    for (std::size_t w = 0; w < model.payloads.size(); ++w)
      CENTROID_CHECK(
          model.codec->decode_add(model.payloads[w][c].bytes(), 32.0f, w == 0, model.result(c))
              .ok());
}

void combine(const Model& model, server::RobustMean& robust) {
  std::vector<server::RobustMean::Encoded> rows(model.payloads.size());
  for (std::size_t c = 0; c < model.payloads[0].size(); ++c) {
    for (std::size_t w = 0; w < rows.size(); ++w)
      rows[w] = {model.codec.get(), model.payloads[w][c].bytes()};
    robust.combine(std::span<const server::RobustMean::Encoded>(rows), model.result(c));
  }
}

void compare(const std::string& spec, std::size_t workers, std::size_t elements,
             std::size_t repetitions) {
  const Model model(spec, workers, elements);
  const auto parse = [](const std::string& text) {
    return server::AggregateRule::parse(text).value();
  };
  server::RobustMean rules[] = {server::RobustMean(parse("median")),
                                server::RobustMean(parse("trimmed_mean:1")),
                                server::RobustMean(parse("nnm_trimmed_mean:1"))};
  std::vector<double> seconds[1 + std::size(rules)];
  for (std::size_t turn = 0; turn <= repetitions; ++turn)
    for (std::size_t which = 0; which < std::size(seconds); ++which) {
      const auto begin = std::chrono::steady_clock::now();
      if (which == 0)
        sum(model);
      else
        combine(model, rules[which - 1]);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (turn > 0) seconds[which].push_back(took.count());
    }
  const double numbers = static_cast<double>(workers * elements);
  const double one = median(seconds[0]);
  std::printf("%-6s %8zu", spec.c_str(), workers);
  for (const auto& all : seconds)
    std::printf("  %10.2f %8.2f", median(all) * 1e9 / numbers, median(all) / one);
  std::printf("\n");
}

}  // namespace
}  // namespace centroid

int main(int argc, char** argv) {
  using namespace centroid;
  std::uint64_t elements = 4'000'000, repetitions = 7, only = 0;
  config::Schema schema("centroid-bench-robust", "Robust aggregates against the sum.");
  schema.field("elements", &elements, {.text = "numbers of the model", .min = 1000});
  schema.field("workers", &only, {.text = "only f32 and so many workers; 0: several"});
  schema.field("repetitions", &repetitions, {.text = "turns of each", .min = 1});
  const auto outcome = schema.load(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", outcome.error().message().c_str());
    return 2;
  }
  if (*outcome == config::Schema::Outcome::kPrinted) return 0;
  std::printf(
      "%llu numbers, ns per received number and times the sum, medians of %llu turns, one "
      "thread\n%-6s %8s  %10s %8s  %10s %8s  %10s %8s  %10s %8s\n",
      static_cast<unsigned long long>(elements), static_cast<unsigned long long>(repetitions),
      "codec", "workers", "sum", "", "median", "", "trimmed:1", "", "nnm:1", "");
  if (only > 0) {
    compare("f32", only, elements, repetitions);
    return 0;
  }
  for (const std::size_t workers : {3, 5, 8, 16, 32})
    compare("f32", workers, elements, repetitions);
  compare("int8", 8, elements, repetitions);
  compare("sign", 8, elements, repetitions);
  return 0;
}
