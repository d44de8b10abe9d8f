// Bars of the codecs, each as a ratio of two things measured in turn in this process, or as bytes:
// docs/explanation/compression.md#speed explains the rows. Exit status 1 when a bar was missed.
#include "tests/bench/codec_bench.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "common/base/config.h"
#include "common/base/random.h"
#include "common/base/result.h"
#include "common/tensor/multiversion.h"

namespace centroid::bench {
namespace {

int missed = 0;

void print(const std::string& what, double value, const std::string& unit, const std::string& bar,
           const std::string& detail) {
  std::printf("%-58s %9.3f %-6s %-18s %s\n", what.c_str(), value, unit.c_str(), bar.c_str(),
              detail.c_str());
  std::fflush(stdout);
}

std::string number(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Read {
  CENTROID_KERNEL void run(const float* x, std::size_t n, std::uint32_t* out) {
    std::array<std::uint32_t, 64> any{};
    std::size_t i = 0;
    for (; i + 64 <= n; i += 64) {
      for (std::size_t j = 0; j < 64; j += 16) __builtin_prefetch(x + i + j + 1024);
      for (std::size_t j = 0; j < 64; ++j) any[j] |= std::bit_cast<std::uint32_t>(x[i + j]);
    }
    for (; i < n; ++i) any[0] |= std::bit_cast<std::uint32_t>(x[i]);
    for (const std::uint32_t a : any) *out |= a;
  }
};

struct Add {
  CENTROID_KERNEL void run(const float* __restrict g, float* __restrict e, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) e[i] = e[i] + g[i];
  }
};

}  // namespace

Floats::Floats(std::size_t n) : n_(n), memory_(n * sizeof(float) + 64) {
  std::fill(span().begin(), span().end(), 0.0f);
}

void fill_normal(std::span<float> x, std::uint64_t seed) {
  CounterRng random(seed);
  for (std::size_t i = 0; i < x.size(); i += 2) {  // both numbers of Box and Muller
    const auto radius =
        std::sqrt(-2.0f * std::log(1.0f - static_cast<float>(random.uniform()) * 0.99999994f));
    const float angle = 6.2831853f * static_cast<float>(random.uniform());
    x[i] = 1e-3f * radius * std::cos(angle);
    if (i + 1 < x.size()) x[i + 1] = 1e-3f * radius * std::sin(angle);
  }
}

std::string fill_input(std::span<float> x, int which) {
  static constexpr std::array<const char*, kInputs> kNames{
      "normal",        "layers of different scale",
      "all equal",     "ascending",
      "descending",    "98 % zeros",
      "99.95 % zeros", "bfloat16 ties",
      "one huge row",  "spikes every 64",
      "random bits"};
  CounterRng random(17);
  if (which == 0 || which == 7 || which == 8) fill_normal(x, 3);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto bits = random.next();
    const auto uniform = static_cast<float>(bits >> 40) * 0x1p-24f;
    const auto place = static_cast<float>(i);
    switch (which) {
      case 1:
        x[i] = (uniform - 0.5f) * std::exp2(static_cast<float>(i / 65536 * 7 % 12)) /
               (0.01f + static_cast<float>(bits & 0xFFFF) * 0x1p-16f);
        break;
      case 2:
        x[i] = 1.5f;
        break;
      case 3:
        x[i] = place;
        break;
      case 4:
        x[i] = static_cast<float>(x.size()) - place;
        break;
      case 5:
        x[i] = bits % 50 == 0 ? uniform : 0.0f;
        break;
      case 6:
        x[i] = bits % 2000 == 0 ? uniform : 0.0f;
        break;
      case 7:
        x[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x[i]) & 0xFFFF0000u);
        break;
      case 8:
        x[i] *= i / 300'000 == 9 ? 1e4f : 1.0f;
        break;
      case 9:
        x[i] = i % 64 == 7 ? 50.0f + uniform : uniform;
        break;
      case 10:
        x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        if (!std::isfinite(x[i])) x[i] = 0;
        break;
      default:
        break;
    }
  }
  return kNames[static_cast<std::size_t>(which)];
}

std::size_t Turns::add(std::function<void()> work, std::function<void()> prepare) {
  contenders_.push_back({std::move(work), std::move(prepare), {}});
  return contenders_.size() - 1;
}

void Turns::run(std::uint64_t repetitions) {
  for (std::uint64_t r = 0; r <= repetitions; ++r) {
    for (Contender& c : contenders_) {
      if (c.prepare) c.prepare();
      const auto begin = std::chrono::steady_clock::now();
      c.work();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (r > 0) c.seconds.push_back(took.count());  // the first turn warms up
    }
  }
}

double Turns::median(std::size_t contender) const {
  return middle_of(contenders_[contender].seconds);
}

double Turns::ratio(std::size_t a, std::size_t b) const {
  std::vector<double> ratios = contenders_[a].seconds;
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] /= contenders_[b].seconds[i];
  return middle_of(std::move(ratios));
}

void heading(const std::string& text) { std::printf("\n%s\n", text.c_str()); }

void row(const std::string& what, double value, const std::string& unit,
         const std::string& detail) {
  print(what, value, unit, "", detail);
}

void at_most(const std::string& what, double value, double bar, const std::string& detail) {
  missed += value > bar ? 1 : 0;
  print(what, value, "", (value > bar ? "MISSED  <= " : "held  <= ") + number(bar), detail);
}

void at_least(const std::string& what, double value, double bar, const std::string& detail) {
  missed += value < bar ? 1 : 0;
  print(what, value, "", (value < bar ? "MISSED  >= " : "held  >= ") + number(bar), detail);
}

int missed_bars() { return missed; }

std::uint32_t read_pass(std::span<const float> x) {
  std::uint32_t any = 0;
  run_multiversioned<Read>(x.data(), x.size(), &any);
  return any;
}

void add_pass(std::span<const float> g, std::span<float> e) {
  run_multiversioned<Add>(g.data(), e.data(), e.size());
}

}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid;
  bench::Options options;
  std::string only;
  config::Schema schema("centroid-bench-codecs", "Compression of gradients against its limits.");
  schema.field("elements", &options.elements,
               {.text = "numbers of the gradient", .min = 1'000'000});
  schema.field("repetitions", &options.repetitions, {.text = "turns of every contender", .min = 1});
  schema.field("only", &only,
               {.text = "one part",
                .choices = {"", "selection", "distributions", "others", "feedback", "bytes",
                            "dense", "sign", "merge"}});
  const auto outcome = schema.load(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", outcome.error().message().c_str());
    return 2;
  }
  if (*outcome == config::Schema::Outcome::kPrinted) return 0;
  std::printf("%llu numbers, %llu turns each, medians; instruction set %s\n",
              static_cast<unsigned long long>(options.elements),
              static_cast<unsigned long long>(options.repetitions),
              std::string(to_string(active_isa())).c_str());
  const std::pair<const char*, void (*)(const bench::Options&)> parts[] = {
      {"selection", bench::bench_selection}, {"distributions", bench::bench_distributions},
      {"others", bench::bench_others},       {"feedback", bench::bench_feedback},
      {"bytes", bench::bench_bytes},         {"dense", bench::bench_dense},
      {"sign", bench::bench_sign},           {"merge", bench::bench_merge}};
  for (const auto& [name, part] : parts)
    if (only.empty() || only == name) part(options);
  std::printf("\n%d bars missed\n", bench::missed_bars());
  return bench::missed_bars() > 0 ? 1 : 0;
}
