#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "common/base/random.h"
#include "tests/bench/cuda_report.h"
#include "worker/model/cuda/kernels.h"

namespace centroid::bench {

namespace {

using worker::cuda::Dropout;
using worker::cuda::Norm;

/// Where less is moved it is the launch that takes the time.
constexpr double kLeastBytes = 16e6;

class Models {
 public:
  Models(Device& device, CudaReport& report)
      : device_(device), report_(report), queue_(report.queue()) {}

  void run() {
    // mlp:784-1024-1024-10: 256 samples, and as many as make the kernels long.
    for (const std::uint64_t rows : {256u, 16'384u}) layer(rows, 1024);
    cross_entropy(256, 10);
    // transformer:layers=4,width=128,context=128: 256 samples.
    constexpr std::uint64_t kRows = 256 * 128, kWidth = 128, kHeads = 4;
    embedding(kRows, kWidth, 256);
    normalisation(kRows, kWidth);
    attention(256, kHeads, 128, 128, kWidth / kHeads);
    feed_forward(kRows, 4 * kWidth);
    cross_entropy(kRows, 256);
    // A vocabulary of 32,000.
    cross_entropy(4096, 32'000);
    embedding(kRows, kWidth, 32'000);
  }

 private:
  using Memory = std::unique_ptr<DeviceMemory>;
  static float* floats(const Memory& memory) { return reinterpret_cast<float*>(memory->data()); }
  static std::uint32_t* words(const Memory& memory) {
    return reinterpret_cast<std::uint32_t*>(memory->data());
  }

  template <class T>
  Memory filled(const std::vector<T>& values) {
    Memory memory = must(device_.allocate(values.size() * sizeof(T)));
    must(report_.stream().copy(memory->data(), reinterpret_cast<const std::byte*>(values.data()),
                               values.size() * sizeof(T)));
    must(report_.stream().wait());
    return memory;
  }
  Memory normal(std::uint64_t n, std::uint64_t stream = 1) {
    std::vector<float> values(n);
    CounterRng rng(7, stream);
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(n, 1 << 16); ++i)
      values[i] = static_cast<float>(rng.normal());
    for (std::uint64_t i = 1 << 16; i < n; ++i) values[i] = values[i % (1 << 16)];
    return filled(values);
  }
  static std::vector<std::uint32_t> numbers_below(std::uint64_t n, std::uint64_t most) {
    std::vector<std::uint32_t> values(n);
    CounterRng rng(9);
    for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(rng.below(most));
    return values;
  }
  Memory below(std::uint64_t n, std::uint64_t most) { return filled(numbers_below(n, most)); }

  /// Bytes of tokens that the warps of embed_back look at, once for every 128 columns: back to the
  /// first equal token, and, of those that are the first, on to the end.
  static double searched(const std::vector<std::uint32_t>& tokens, std::uint64_t width) {
    constexpr std::uint64_t kLanes = 32;
    std::unordered_map<std::uint32_t, std::uint64_t> first_of;
    std::uint64_t looks = 0;
    for (std::uint64_t row = 0; row < tokens.size(); ++row) {
      const auto [first, is_first] = first_of.try_emplace(tokens[row], row);
      looks += is_first ? row / kLanes + (tokens.size() - row / kLanes * kLanes) / kLanes
                        : first->second / kLanes + 1;
    }
    const std::uint64_t parts = (width + 4 * kLanes - 1) / (4 * kLanes);
    return static_cast<double>(looks * parts * kLanes * sizeof(std::uint32_t));
  }

  /// `bytes` an element of `elements`.
  void row(const std::string& what, std::uint64_t elements, double bytes,
           const std::function<Status()>& work) {
    const double moved = bytes * static_cast<double>(elements);
    const double bar = moved >= kLeastBytes ? moved / (kPartOfCopy * report_.copy()) : 0;
    report_.row(what, report_.median(work), moved, bar);
  }
  static std::string shape(const char* name, std::uint64_t rows, std::uint64_t width) {
    return std::string(name) + " " + std::to_string(rows) + " x " + std::to_string(width);
  }

  void layer(std::uint64_t rows, std::uint64_t width) {
    const std::uint64_t n = rows * width;
    const Memory z = normal(n), slope = normal(n, 2), bias = normal(width, 3), sums = normal(width);
    const Memory scratch = normal(worker::cuda::sum_rows_scratch(rows, width) + 1);
    row(shape("bias, relu", rows, width), n, 8, [&] {
      return worker::cuda::bias_activate(false, rows, width, floats(bias), floats(z), nullptr,
                                         queue_);
    });
    row(shape("bias, gelu and its slope", rows, width), n, 12, [&] {
      return worker::cuda::bias_activate(true, rows, width, floats(bias), floats(z), floats(slope),
                                         queue_);
    });
    row(shape("way back of relu", rows, width), n, 12,
        [&] { return worker::cuda::scale_by_slope(false, n, floats(z), floats(slope), queue_); });
    row(shape("sums of columns", rows, width), n, 4, [&] {
      return worker::cuda::sum_rows(rows, width, floats(z), floats(sums), floats(scratch), queue_);
    });
    row(shape("zero", rows, width), n, 4, [&] { return worker::cuda::zero(n, floats(z), queue_); });
    row(shape("add", rows, width), n, 12,
        [&] { return worker::cuda::add(n, floats(slope), floats(z), queue_); });
  }

  /// Logits are read once, and of long rows once more for the gradient, which is written.
  void cross_entropy(std::uint64_t rows, std::uint64_t classes) {
    const std::uint64_t n = rows * classes;
    const Memory logits = normal(n), labels = below(rows, classes), bias = normal(classes, 2);
    const Memory losses = normal(rows), correct = below(rows, 2);
    for (const bool needs_gradient : {false, true})
      row(shape(needs_gradient ? "cross-entropy, gradient" : "cross-entropy", rows, classes), n,
          !needs_gradient   ? 4
          : classes <= 1024 ? 8
                            : 12,
          [&] {
            return worker::cuda::cross_entropy(words(labels), rows, classes, floats(bias), 1e-3F,
                                               needs_gradient, floats(logits), floats(losses),
                                               words(correct), queue_);
          });
  }

  void embedding(std::uint64_t rows, std::uint64_t width, std::uint64_t vocabulary) {
    const std::uint64_t n = rows * width, context = 128;
    const auto chosen = numbers_below(rows, vocabulary);
    const Memory tokens = filled(chosen), table = normal(vocabulary * width);
    const Memory positions = normal(context * width, 2), x = normal(n), out = normal(n, 3);
    const Memory keys = filled(std::vector<std::uint64_t>(rows / context, 5));
    const Dropout dropout{6554, 1 / 0.9F, reinterpret_cast<const std::uint64_t*>(keys->data()),
                          context, 3};
    const std::string of = " of " + std::to_string(vocabulary);
    row(shape("embed", rows, width) + of, n, 8, [&] {
      return worker::cuda::embed({}, rows, words(tokens), context, width, floats(table),
                                 floats(positions), floats(out), queue_);
    });
    // Bounded by the search for equal tokens, which counts in the bar as if they came from memory.
    const double moved = 4.0 * static_cast<double>(n);
    report_.row(shape("way back of embed", rows, width) + of, report_.median([&] {
      return worker::cuda::embed_back(rows, words(tokens), width, floats(x), floats(table), queue_);
    }),
                moved, (moved + searched(chosen, width)) / (kPartOfCopy * report_.copy()));
    if (vocabulary > 256) return;
    row(shape("dropout", rows, width), n, 8, [&] {
      return worker::cuda::drop(dropout, false, rows, width, floats(x), floats(out), queue_);
    });
    std::vector<std::uint32_t> order(rows);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::reverse(order);
    const Memory index = filled(order);
    for (const bool place : {false, true})
      row(shape(place ? "rows placed" : "rows gathered", rows, width), n, 8, [&] {
        return worker::cuda::move_rows(place, rows, width, words(index), floats(x), floats(out),
                                       queue_);
      });
  }

  void normalisation(std::uint64_t rows, std::uint64_t width) {
    const std::uint64_t n = rows * width;
    const Memory weight = normal(width), bias = normal(width, 2), x = normal(n),
                 more = normal(n, 3);
    const Memory sum = normal(n), y = normal(n), dy = normal(n, 4), stats = normal(2 * rows);
    const Memory dweight = normal(width), dbias = normal(width);
    const Memory scratch = normal(worker::cuda::norm_back_scratch(rows, width));
    for (const bool is_layer : {false, true}) {
      const Norm norm{floats(weight), is_layer ? floats(bias) : nullptr};
      row(shape(is_layer ? "residual, layer norm" : "residual, rms norm", rows, width), n, 16, [&] {
        return worker::cuda::add_norm(norm, {}, rows, width, floats(x), floats(more), floats(sum),
                                      floats(y), floats(stats), queue_);
      });
      row(shape(is_layer ? "way back of layer norm" : "way back of rms norm", rows, width), n, 24,
          [&] {
            return worker::cuda::norm_back(norm, rows, width, floats(sum), floats(stats),
                                           floats(dy), floats(y), floats(dweight), floats(dbias),
                                           floats(scratch), queue_);
          });
    }
  }

  void attention(std::uint64_t samples, std::uint64_t heads, std::uint64_t rows,
                 std::uint64_t width, std::uint64_t head_width) {
    const std::uint64_t count = samples * heads, n = count * rows * width;
    const Memory scores = normal(n), dscores = normal(n, 2), lse = normal(count * rows);
    const Memory delta = normal(count * rows, 3);
    const worker::cuda::RowNumbers at{heads, heads * rows, heads};
    row(shape("attention's softmax", count * rows, width), n, 8, [&] {
      return worker::cuda::causal_softmax(count, rows, 0, width, 0.1F, floats(scores), floats(lse),
                                          at, queue_);
    });
    row(shape("way back of attention's softmax", count * rows, width), n, 16, [&] {
      return worker::cuda::causal_softmax_back(count, rows, 0, width, 0.1F, floats(lse),
                                               floats(delta), at, floats(scores), floats(dscores),
                                               queue_);
    });
    const std::uint64_t groups = count * rows;
    row(shape("products of heads", groups, head_width), groups * head_width, 8, [&] {
      return worker::cuda::head_dots(groups, head_width, floats(scores), floats(dscores),
                                     floats(delta), queue_);
    });
  }

  void feed_forward(std::uint64_t rows, std::uint64_t width) {
    const std::uint64_t n = rows * width;
    const Memory in = normal(2 * n), out = normal(n, 2);
    row(shape("gelu", rows, width), n, 8,
        [&] { return worker::cuda::gelu(n, floats(in), floats(out), queue_); });
    row(shape("way back of gelu", rows, width), n, 12,
        [&] { return worker::cuda::gelu_back(n, floats(in), floats(out), queue_); });
    row(shape("swiglu", rows, width), n, 12,
        [&] { return worker::cuda::swiglu(rows, width, floats(in), floats(out), queue_); });
    row(shape("way back of swiglu", rows, width), n, 20,
        [&] { return worker::cuda::swiglu_back(rows, width, floats(out), floats(in), queue_); });
  }

  Device& device_;
  CudaReport& report_;
  cuda::Queue queue_;
};

}  // namespace

void measure_model_kernels(Device& device, CudaReport& report) { Models(device, report).run(); }

}  // namespace centroid::bench
