// How devices of one worker share the work: the time of a step on N CPU devices, each with the same
// batch, over that on one. 1 is perfect, N is one after the other.
//
//   centroid-bench-devices                        CPU devices, as many as there are cores
//   centroid-bench-devices cuda:0,cuda:1 [tf32]   these, with 256 samples each: a step whose
//                                                 gradient comes to the host, and a local step with
//                                                 SGD, which stays on the GPUs
//   centroid-bench-devices cuda:0 f32 --json      local steps as {"steps": {model: milliseconds}}
//
// --bar 1.4, last: exit status 1 when two devices take longer than so many times one.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "tests/bench/verdict.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

constexpr std::uint64_t kPerDevice = 16, kPerGpu = 256;  // samples
constexpr int kSteps = 15, kRepeats = 5;

Dataset random_data(const Model& model, std::uint64_t samples) {
  CounterRng rng(1);
  Dataset data;
  data.samples = samples;
  data.features = model.features();
  data.classes = model.classes();
  data.vocabulary = model.vocabulary();
  for (std::uint64_t i = 0; model.vocabulary() == 0 && i < samples * data.features; ++i)
    data.x.push_back(static_cast<float>(rng.normal()));
  for (std::uint64_t i = 0; model.vocabulary() == 0 && i < samples; ++i)
    data.y.push_back(static_cast<std::uint32_t>(rng.below(data.classes)));
  for (std::uint64_t i = 0; model.vocabulary() > 0 && i <= samples; ++i)
    data.token_begin.push_back(i * (data.features + 1));
  for (std::uint64_t i = 0; model.vocabulary() > 0 && i < samples * (data.features + 1); ++i)
    data.tokens.push_back(static_cast<std::uint32_t>(rng.below(data.vocabulary)));
  return data;
}

std::string cpus(std::size_t devices) {
  std::string names = "cpu:0";
  for (std::size_t d = 1; d < devices; ++d) names += ",cpu:" + std::to_string(d);
  return names;
}

/// Best mean time of a step, in seconds. `stays`: of a local step on the GPUs.
double time_of(const Model& model, const std::string& devices, std::uint64_t per_device,
               Matmul matmul = Matmul::kF32, bool stays = false) {
  auto made = make_replica_group(model, {.devices = devices, .matmul = matmul});
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.error().to_string().c_str());
    std::exit(2);
  }
  const auto group = std::move(made).value();
  model.initialize(1, group->params());
  const Dataset data = random_data(model, per_device * group->devices());
  std::vector<std::uint64_t> samples(data.samples);
  std::iota(samples.begin(), samples.end(), 0);
  ResidentTraining* const resident = stays ? group->resident() : nullptr;
  if (stays && (resident == nullptr || !resident->reserve(0).ok() ||
                !resident->load(group->params()).ok())) {
    std::fprintf(stderr, "%s: nothing stays on these devices (docs/how-to/gpu.md)\n",
                 devices.c_str());
    std::exit(2);
  }
  const OptimizerStep sgd{.rule = rules::Sgd{1e-3F, 0}};
  const std::span<const std::uint64_t> batch = samples;
  const auto one = [&] {
    return stays ? resident->advance(data, {&batch, 1}, {&sgd, 1}).ok()
                 : group->step(data, samples, [](TensorId) {}).ok();
  };
  double best = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < kSteps; ++step)
      if (!one()) std::abort();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::min(best, seconds.count() / kSteps);
  }
  return best;
}

/// Taken off the end of the arguments; 0: none is given.
double take_bar(int& argc, char** argv) {
  if (argc < 3 || std::string(argv[argc - 2]) != "--bar") return 0;
  const double bar = std::strtod(argv[argc - 1], nullptr);
  if (!(bar > 0)) {
    std::fprintf(stderr, "--bar takes a number above 0, not %s\n", argv[argc - 1]);
    std::exit(2);
  }
  argc -= 2;
  return bar;
}

}  // namespace
}  // namespace centroid::worker

int main(int argc, char** argv) {
  using namespace centroid::worker;
  using centroid::bench::Bar;
  const double bar = take_bar(argc, argv);
  int missed = 0;
  const auto judge = [&](double times) {
    missed |= centroid::bench::verdict("times one device", times, Bar::kAtMost, bar, "times");
  };
  constexpr const char* kSpecs[] = {"mlp:784-1024-1024-10",
                                    "transformer:layers=4,width=128,context=128"};
  if (argc > 1) {
    const std::string all = argv[1], first = all.substr(0, all.find(','));
    const auto matmul = parse_matmul(argc > 2 ? argv[2] : "f32");
    if (!matmul.ok()) {
      std::fprintf(stderr, "%s\n", matmul.error().to_string().c_str());
      return 2;
    }
    if (argc > 3 && std::string(argv[3]) == "--json") {
      std::string steps;
      for (const char* spec : kSpecs) {
        const double best = time_of(*make_model(spec).value(), first, kPerGpu, *matmul, true);
        steps += steps.empty() ? "" : ", ";
        steps.append("\"").append(spec).append("\": ").append(std::to_string(1e3 * best));
      }
      std::printf("{\"steps\": {%s}}\n", steps.c_str());
      return 0;
    }
    for (const char* spec : kSpecs) {
      const auto model = make_model(spec).value();
      const double one = time_of(*model, first, kPerGpu, *matmul);
      std::printf("%-44s %s %8.2f ms\n", spec, first.c_str(), 1e3 * one);
      if (first.starts_with("cuda"))
        std::printf("%-44s %s %8.2f ms, a local step\n", spec, first.c_str(),
                    1e3 * time_of(*model, first, kPerGpu, *matmul, true));
      if (first == all) continue;
      const double many = time_of(*model, all, kPerGpu, *matmul);
      std::printf("%-44s %s %8.2f ms, %.2f of one\n", spec, all.c_str(), 1e3 * many, many / one);
      judge(many / one);
    }
    return missed;
  }
  const std::size_t cores = std::thread::hardware_concurrency();
  std::printf("%zu cores; %llu samples per device; best of %d times %d steps\n", cores,
              static_cast<unsigned long long>(kPerDevice), kRepeats, kSteps);
  for (const char* spec : kSpecs) {
    const auto model = make_model(spec).value();
    const double one = time_of(*model, cpus(1), kPerDevice);
    std::printf("%-44s 1 device %8.2f ms\n", spec, 1e3 * one);
    for (std::size_t devices = 2; devices <= std::min<std::size_t>(cores, 8); devices *= 2) {
      const double many = time_of(*model, cpus(devices), kPerDevice);
      std::printf("%-44s %zu devices %7.2f ms, %.2f of one\n", spec, devices, 1e3 * many,
                  many / one);
      if (devices == 2) judge(many / one);
    }
  }
  return missed;
}
