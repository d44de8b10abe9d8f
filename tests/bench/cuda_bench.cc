// Kernels of codecs, optimizers and models against what the GPU's memory allows, and copies to the
// host beside them, measured in turn in this process. Exit status 1 when a bar was missed; 77, with
// the reason, without a GPU.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/config.h"
#include "common/base/random.h"
#include "common/codec/cuda/kernels.h"
#include "common/codec/int8.h"
#include "common/device/cuda/cuda_device.h"
#include "common/device/device.h"
#include "common/optim/cuda/kernels.h"
#include "common/optim/optimizer.h"
#include "tests/bench/cuda_passes.h"
#include "tests/bench/cuda_report.h"

namespace centroid::bench {
namespace {

/// The part of a copy's bandwidth that a selection is to reach: with an addition it is what
/// docs/how-to/gpu.md#measure-the-speed has as its goal.
constexpr double kSelection = 0.375;

class Bench {
 public:
  Bench(Device& device, std::uint64_t elements, CudaReport& report)
      : device_(device), n_(elements / 4 * 4), report_(report), stream_(&report.stream()) {
    for (auto* memory : {&x_, &g_, &out_}) *memory = must(device.allocate(4 * n_ + 1024));
    scratch_ = must(device.allocate(cuda::select_bytes(n_)));
    flags_ = must(device.allocate(64));
    index_ = must(device.allocate(4 * n_));
    summary_ = must(device.allocate_pinned(sizeof(cuda::SelectSummary)));
  }

  void run() {
    std::vector<float> normal(n_);
    CounterRng random(5);
    for (float& v : normal) v = static_cast<float>(random.normal() * 1e-3);
    fill(g_, normal);
    fill(x_, normal);
    const cuda::Queue queue = cuda::queue_of(device_, *stream_);
    const auto plain = [&](int code) { must(cuda::status_of(code, "launch")); };
    const double copy = median([&] { must(stream_->copy(out_->data(), x_->data(), 4 * n_)); });
    const double add = median(
        [&] { plain(add_pass(as<float>(g_), as<float>(x_), n_, queue.processors, queue.stream)); });
    fill(x_, normal);
    const double read = median([&] {
      plain(
          read_pass(as<float>(x_), n_, as<std::uint32_t>(flags_), queue.processors, queue.stream));
    });
    report_.use_copy(8.0 * static_cast<double>(n_) / copy);
    row("copy", copy, 8.0, 0);
    row("x += g", add, 12.0, 0);
    row("read x", read, 4.0, 0);

    select("x += g and the largest 1 %", n_ / 100, true, 12.0, 2 * (add + read));
    select("x += g and the largest 0.1 %", n_ / 1000, true, 12.0, 2 * (add + read));
    // Two passes, of equal numbers up to 8 bytes a number more (kernels.h).
    select("the largest 1 %", n_ / 100, false, 8.0, at(kSelection, 8.0));
    fill(x_, std::vector<float>(n_, 1.5f));
    select("the largest 1 % of equal numbers", n_ / 100, false, 16.0, at(kSelection, 16.0));
    fill(x_, std::vector<float>(n_, 0.0f));
    select("the largest 1 % of zeros", n_ / 100, false, 16.0, at(kSelection, 16.0));

    fill(x_, normal);
    encode("to bf16", cuda::Dense::kFiniteBf16, Rounding::kNearest, 6.0, copy);
    encode("to f16", cuda::Dense::kF16, Rounding::kNearest, 6.0, copy);
    encode("to int8, nearest", cuda::Dense::kInt8, Rounding::kNearest, 5.0, copy);
    encode("to int8, stochastic", cuda::Dense::kInt8, Rounding::kStochastic, 5.0, copy);
    encode("to sign", cuda::Dense::kSign, Rounding::kNearest, 4.13, good(4.13));
    for (const bool has_momentum : {false, true}) {
      subtract("bf16", cuda::Dense::kFiniteBf16, normal, has_momentum);
      subtract("int8", cuda::Dense::kInt8, normal, has_momentum);
      subtract("sign", cuda::Dense::kSign, normal, has_momentum);
    }
    fill(x_, normal);
    rests();
    fill(x_, normal);
    clip(read);
    for (const char* name : {"sgd", "momentum", "adagrad", "adam", "ftrl"}) update(name, copy);
    overlap(true);
    overlap(false);
    measure_model_kernels(device_, report_);
  }

 private:
  using Memory = std::unique_ptr<DeviceMemory>;
  template <class T>
  static T* as(const Memory& memory) {
    return reinterpret_cast<T*>(memory->data());
  }

  void fill(const Memory& memory, const std::vector<float>& values) {
    must(stream_->copy(memory->data(), reinterpret_cast<const std::byte*>(values.data()),
                       4 * values.size()));
    must(stream_->wait());
  }

  /// That part of a copy's bandwidth, in milliseconds.
  double at(double part, double bytes) const {
    return bytes * static_cast<double>(n_) / (part * report_.copy());
  }
  double good(double bytes) const { return at(kPartOfCopy, bytes); }

  /// Milliseconds on the GPU.
  double median(const std::function<void()>& work) {
    return report_.median([&] {
      work();
      return Status();
    });
  }

  /// `bytes`: moved at least, per number. `bar`: at most so many milliseconds; 0: none.
  void row(const std::string& what, double time, double bytes, double bar) {
    report_.row(what, time, bytes * static_cast<double>(n_), bar);
  }

  void select(const std::string& what, std::uint64_t k, bool adds, double bytes, double bar) {
    cuda::SelectArguments of;
    of.add.gradient = adds ? as<float>(g_) : nullptr;
    of.add.x = as<float>(x_);
    of.n = n_;
    of.k = k;
    of.memory = scratch_->data();
    of.index = as<std::uint32_t>(index_);
    of.value = as<float>(out_);
    of.summary = as<cuda::SelectSummary>(summary_);
    const double time = median([&] { must(cuda::select(of, cuda::queue_of(device_, *stream_))); });
    row(what + " (" + std::to_string(of.summary->count) + ")", time, bytes, bar);
  }

  void encode(const std::string& what, cuda::Dense type, Rounding rounding, double bytes,
              double bar) {
    cuda::EncodeArguments of;
    of.type = type;
    of.rounding = rounding;
    of.x = as<float>(x_);
    of.n = n_;
    of.out = out_->data();
    of.flags = as<std::uint32_t>(flags_);
    row(what, median([&] { must(cuda::encode(of, cuda::queue_of(device_, *stream_))); }), bytes,
        bar);
  }

  /// What a dense payload leaves in the residual; momentum is cleared.
  void subtract(const std::string& of, cuda::Dense type, const std::vector<float>& x,
                bool has_momentum) {
    fill(x_, x);
    fill(flags_, {0.0f});
    const double bytes = has_momentum ? 12.0 : 8.0;
    const double time = median([&] {
      must(cuda::subtract(type, as<float>(x_), has_momentum ? as<float>(g_) : nullptr, n_,
                          as<std::uint32_t>(flags_), cuda::queue_of(device_, *stream_)));
    });
    row("rest of " + of + (has_momentum ? ", and momentum" : ""), time, bytes, good(bytes));
    fill(g_, x);
  }

  /// One number in a hundred, in order. A place of the array is a sector of 32 bytes that is read,
  /// and one that is written.
  void rests() {
    constexpr double kSector = 32;
    std::vector<float> places(n_ / 100);
    CounterRng random(6);
    for (std::uint64_t j = 0; j < places.size(); ++j)
      places[j] = std::bit_cast<float>(static_cast<std::uint32_t>(100 * j + random.below(100)));
    fill(index_, places);
    fill(out_, std::vector<float>(places.size(), 1e-3f));
    const double part = static_cast<double>(places.size()) / static_cast<double>(n_);
    for (const bool has_momentum : {false, true}) {
      const double bytes = part * (8 + (has_momentum ? 4 : 2) * kSector);
      const double time = median([&] {
        must(cuda::settle(as<std::uint32_t>(index_), as<float>(out_), places.size(), as<float>(x_),
                          has_momentum ? as<float>(g_) : nullptr,
                          cuda::queue_of(device_, *stream_)));
      });
      row(std::string("rest of 1 %") + (has_momentum ? ", and momentum" : ""), time, bytes,
          good(bytes));
    }
  }

  /// Bars: 70 % of the bandwidth of reading, or of a copy.
  void clip(double read) {
    const auto memory = must(device_.allocate(cuda::clip_bytes(n_)));
    const double time = median([&] {
      must(cuda::clip(as<float>(g_), n_, 1.0, memory->data(), cuda::queue_of(device_, *stream_)));
    });
    row("norm and factor of clipping", time, 4.0, read / kPartOfCopy);
  }

  void update(const char* name, double copy) {
    const auto optimizer = must(make_optimizer({.name = name, .learning_rate = 1e-3}));
    const std::vector<float> ones(n_, 1.0f);
    fill(out_, ones);
    fill(index_, ones);
    cuda::UpdateArguments of;
    of.rule = optimizer->at(2);
    of.n = n_;
    of.gradient = as<float>(g_);
    of.params = as<float>(x_);
    of.slots = {as<float>(out_), as<float>(index_)};
    const double bytes = 12.0 + 8.0 * static_cast<double>(optimizer->slots());
    const double time = median([&] { must(cuda::update(of, cuda::queue_of(device_, *stream_))); });
    row(std::string("step of ") + name, time, bytes, copy * bytes / 8.0 / kPartOfCopy);
  }

  /// What a copy to the host costs beside kernels of the same length. Bar with pinned memory: four
  /// fifths of the shorter one are hidden.
  void overlap(bool is_pinned) {
    using Clock = std::chrono::steady_clock;
    std::vector<std::byte> plain(is_pinned ? 0 : 4 * n_);
    const auto pinned = must(device_.allocate_pinned(is_pinned ? 4 * n_ : 0));
    std::byte* const host = is_pinned ? pinned->data() : plain.data();
    const auto other = must(device_.make_stream());
    const auto seconds = [&](int kernels, bool copies) {
      double best = 1e9;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const auto begin = Clock::now();
        const cuda::Queue queue = cuda::queue_of(device_, *stream_);
        for (int i = 0; i < kernels; ++i)
          must(cuda::status_of(
              add_pass(as<float>(g_), as<float>(x_), n_, queue.processors, queue.stream),
              "launch"));
        if (copies) must(other->copy(host, out_->data(), 4 * n_));
        must(stream_->wait());
        must(other->wait());
        best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
      }
      return best;
    };
    const double copy = seconds(0, true), ten = seconds(10, false);
    const int kernels = std::max(1, static_cast<int>(10 * copy / ten));
    const double compute = seconds(kernels, false), both = seconds(kernels, true);
    const double hidden = (copy + compute - both) / std::min(copy, compute);
    const std::string where = is_pinned ? "pinned memory" : "plain memory";
    report_.row("copy to the host's " + where, 1e3 * copy, 4.0 * static_cast<double>(n_), 0);
    report_.part("of a copy to " + where + ", hidden behind kernels", hidden, is_pinned ? 0.8 : 0);
  }

  Device& device_;
  std::uint64_t n_;
  CudaReport& report_;
  Stream* stream_;
  Memory x_, g_, out_, scratch_, flags_, index_, summary_;
};

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid;
  constexpr int kSkipped = 77;
  std::uint64_t elements = 25'000'000, repetitions = 21;
  std::string out;
  config::Schema schema("centroid-bench-cuda",
                        "Kernels of codecs, optimizers and models against a GPU's memory.");
  schema.field("elements", &elements,
               {.text = "numbers of the gradient", .min = 1'000'000, .max = 4'000'000'000});
  schema.field("repetitions", &repetitions, {.text = "runs of every kernel", .min = 1});
  schema.field("out", &out, {.text = "JSON file for the results"});
  const auto outcome = schema.load(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", outcome.error().message().c_str());
    return 2;
  }
  if (*outcome == config::Schema::Outcome::kPrinted) return 0;
  const auto gpus = cuda::device_count();
  if (!gpus.ok()) {
    std::printf("skipped: no GPU here: %s\n", gpus.error().to_string().c_str());
    return kSkipped;
  }
  const auto device = bench::must(make_device("cuda:0"));
  std::printf("%llu numbers, %llu runs each, medians; %u processors, CUDA %s\n",
              static_cast<unsigned long long>(elements),
              static_cast<unsigned long long>(repetitions), device->processors(),
              cuda_release().c_str());
  bench::CudaReport report(*device, repetitions);
  bench::Bench(*device, elements, report).run();
  std::printf("\n%d bars missed\n", report.missed());
  if (!out.empty()) bench::must(report.write(out, argc, argv));
  return report.missed() > 0 ? 1 : 0;
}
