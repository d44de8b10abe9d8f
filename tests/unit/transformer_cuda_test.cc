// The transformer's CUDA kernels against the CPU's loops: elementwise ones the same bits, sums over
// rows within 1e-5 of the largest result. Built twice: with tests/support/simt.h, which runs them
// on the CPU, and (CENTROID_TEST_GPU) for a GPU, which works on pinned memory.

#if defined(CENTROID_TEST_GPU)
#include "tests/gpu/gpu.h"
#else
#include "tests/support/simt.h"
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/device/device.h"
#include "worker/model/cuda/kernels.h"
#include "worker/model/kernels.h"

namespace centroid::worker {
namespace {

/// Memory that kernels and the host reach at one address.
template <class T>
struct Array {
  std::unique_ptr<DeviceMemory> memory;
  std::size_t offset = 0, n = 0;
  T* data() { return reinterpret_cast<T*>(memory->data()) + offset; }
  std::vector<T> values() { return {data(), data() + n}; }
};

class TransformerCuda : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    RecordProperty("seed", GetParam());
#if defined(CENTROID_TEST_GPU)
    SKIP_WITHOUT_GPU();
    device_ = make_device(test::gpu_name()).value();
#else
    simt::use_seed(seed_);
    device_ = make_device("cpu").value();
#endif
    stream_ = device_->make_stream().value();
    queue_ = {std::max(device_->processors(), 2u), stream_->native()};
  }
  /// Numbers that stand on a 16-byte boundary, or one number behind it.
  template <class T>
  Array<T> array(const std::vector<T>& from) const {
    Array<T> out{device_->allocate_pinned((from.size() + 1) * sizeof(T)).value(), seed_ % 2,
                 from.size()};
    std::ranges::copy(from, out.data());
    return out;
  }
  /// The kernels were queued and have run.
  bool ran(const Status& queued) {
    const Status status = queued.ok() ? stream_->wait() : queued;
    if (!status.ok()) ADD_FAILURE() << status.error().to_string();
    return status.ok();
  }
  std::vector<float> random(std::size_t n, std::uint64_t stream, double spread = 1) const {
    CounterRng rng(seed_, stream);
    std::vector<float> out(n);
    for (float& x : out) x = static_cast<float>(spread * rng.normal());
    return out;
  }
  static void expect_near(const std::vector<float>& got, const std::vector<float>& right) {
    ASSERT_EQ(got.size(), right.size());
    float largest = 1;
    for (const float x : right) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], right[i], 1e-5F * largest) << i;
  }
  std::uint64_t seed_ = static_cast<std::uint64_t>(GetParam());
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  cuda::Queue queue_;
};

TEST_P(TransformerCuda, GeluIsTheCpusBitForBit) {
  for (const std::size_t n : {0, 1, 3, 4, 1023, 5000}) {
    const auto x = random(n, 1, 3), g = random(n, 2);
    auto in = array(x), out = array(g);
    std::vector<float> right(n), right_back = g;
    kernels::gelu(n, x.data(), right.data());
    kernels::gelu_back(n, x.data(), right_back.data());
    ASSERT_TRUE(ran(cuda::gelu_back(n, in.data(), out.data(), queue_)));
    EXPECT_EQ(out.values(), right_back);
    ASSERT_TRUE(ran(cuda::gelu(n, in.data(), out.data(), queue_)));
    EXPECT_EQ(out.values(), right);
  }
}

TEST_P(TransformerCuda, SwiGluIsTheCpusBitForBit) {
  for (const std::size_t width : {1, 4, 37, 128, 260}) {
    constexpr std::size_t kRows = 19;
    auto x = random(kRows * 2 * width, 1);
    const auto g = random(kRows * width, 2);
    auto in = array(x), out = array(g), gradient = array(g);
    std::vector<float> right(kRows * width);
    kernels::swiglu(kRows, width, x.data(), right.data());
    kernels::swiglu_back(kRows, width, g.data(), x.data());
    ASSERT_TRUE(ran(cuda::swiglu(kRows, width, in.data(), out.data(), queue_)));
    EXPECT_EQ(out.values(), right);
    ASSERT_TRUE(ran(cuda::swiglu_back(kRows, width, gradient.data(), in.data(), queue_)));
    EXPECT_EQ(in.values(), x);
  }
}

TEST_P(TransformerCuda, DropoutKeepsWhatTheCpuKeeps) {
  auto dropout = kernels::Dropout::of(0.3);
  const std::vector<std::uint64_t> keys = {seed_, 7, 9};
  dropout.keys = keys;
  dropout.context = 5;
  dropout.site = 11;
  auto on_device = array(keys);
  const cuda::Dropout same{dropout.threshold, dropout.scale, on_device.data(), 5, 11};
  for (const std::size_t width : {1, 4, 30, 257}) {
    const auto x = random(15 * width, 1);
    auto in = array(x), out = array(x);
    std::vector<float> right = x;
    kernels::add(dropout, 15, width, x.data(), right.data());
    ASSERT_TRUE(ran(cuda::drop(same, true, 15, width, in.data(), out.data(), queue_)));
    EXPECT_EQ(out.values(), right);
    kernels::drop(dropout, 15, width, x.data(), right.data());
    ASSERT_TRUE(ran(cuda::drop(same, false, 15, width, in.data(), in.data(), queue_)));
    EXPECT_EQ(in.values(), right);
  }
}

std::vector<std::tuple<bool, std::size_t, std::size_t>> norms() {
  std::vector<std::tuple<bool, std::size_t, std::size_t>> out;
  for (const bool is_layer : {false, true})
    for (const std::size_t width :
         {2, 4, 37, 128, 200, 1024, 1025, 1028})  // in registers up to 1024
      for (const std::size_t rows : {1, 17, 150})
        if (width < 1000 || rows == 17) out.emplace_back(is_layer, width, rows);
  return out;
}

TEST_P(TransformerCuda, NormalisationAndItsWayBack) {
  const std::vector<std::uint64_t> keys(30, seed_);
  auto keys_there = array(keys);
  for (const double probability : {0.0, 0.3})
    for (const auto& [is_layer, width, rows] : norms()) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
      auto dropout = kernels::Dropout::of(probability);
      dropout.keys = keys;
      dropout.context = 5;
      dropout.site = 3;
      const cuda::Dropout dropout_there{dropout.threshold, dropout.scale, keys_there.data(), 5, 3};
      const std::size_t n = rows * width;
      const auto x = random(n, 1), more = random(n, 2), w = random(width, 3), b = random(width, 4);
      const auto dy = random(n, 5), before = random(n, 6);
      const kernels::Norm norm{is_layer, w.data(), is_layer ? b.data() : nullptr};
      std::vector<float> sum(n), y(n), stats(2 * rows), dx = before, dw(width), db(width);
      kernels::add_norm(norm, dropout, rows, width, x.data(), more.data(), sum.data(), y.data(),
                        stats.data());
      kernels::norm_back(norm, rows, width, sum.data(), stats.data(), dy.data(), dx.data(),
                         dw.data(), db.data());
      auto fx = array(x), fmore = array(more), fw = array(w), fb = array(b), fdy = array(dy);
      auto fsum = array(x), fy = array(x), fdx = array(before), fdw = array(w), fdb = array(w);
      auto fstats = array(stats);
      auto scratch = array(std::vector<float>(cuda::norm_back_scratch(rows, width)));
      const cuda::Norm same{fw.data(), is_layer ? fb.data() : nullptr};
      ASSERT_TRUE(ran(cuda::add_norm(same, dropout_there, rows, width, fx.data(), fmore.data(),
                                     fsum.data(), fy.data(), fstats.data(), queue_)));
      EXPECT_EQ(fsum.values(), sum);
      expect_near(fy.values(), y);
      ASSERT_TRUE(ran(cuda::norm_back(same, rows, width, fsum.data(), fstats.data(), fdy.data(),
                                      fdx.data(), fdw.data(), fdb.data(), scratch.data(), queue_)));
      expect_near(fdx.values(), dx);
      expect_near(fdw.values(), dw);
      expect_near(fdb.values(), db);
    }
}

TEST_P(TransformerCuda, CausalSoftmaxAndItsWayBack) {
  for (const std::size_t rows : {1, 9, 64})
    for (const std::size_t begin : {0, 5, 64, 1015, 1019}) {  // in registers up to a width of 1024
      if (begin > 1000 && rows == 64) continue;
      const std::size_t width = begin + rows, n = rows * width;
      const auto scores = random(n, 1, 3), dp = random(n, 2), delta = random(2 * rows, 3);
      std::vector<float> p = scores, lse(2 * rows), again = scores, ds = dp;
      kernels::causal_softmax(rows, begin, width, 0.4F, p.data(), lse.data(), 2);
      kernels::causal_softmax_back(rows, begin, width, 0.4F, lse.data(), delta.data(), 2,
                                   again.data(), ds.data());
      auto fp = array(scores), fagain = array(scores), fds = array(dp);
      auto flse = array(std::vector<float>(2 * rows)), right_lse = array(lse),
           fdelta = array(delta);
      ASSERT_TRUE(ran(cuda::causal_softmax(1, rows, begin, width, 0.4F, fp.data(), flse.data(),
                                           {1, 0, 2}, queue_)));
      expect_near(fp.values(), p);
      expect_near(flse.values(), lse);
      ASSERT_TRUE(ran(cuda::causal_softmax_back(1, rows, begin, width, 0.4F, right_lse.data(),
                                                fdelta.data(), {1, 0, 2}, fagain.data(), fds.data(),
                                                queue_)));
      EXPECT_EQ(fagain.values(), again);  // elementwise: the same bits
      EXPECT_EQ(fds.values(), ds);
    }
}

TEST_P(TransformerCuda, CrossEntropyAndItsGradient) {
  for (const std::size_t classes : {2, 4, 31, 132, 300, 1024, 1025, 1028}) {
    constexpr std::size_t kRows = 21;
    auto logits = random(kRows * classes, 1, 2);
    std::vector<std::uint32_t> labels(kRows);
    CounterRng rng(seed_, 9);
    for (auto& label : labels) label = static_cast<std::uint32_t>(rng.below(classes));
    labels[3] = kNoTarget;
    for (std::size_t j = 0; j < classes; ++j) logits[5 * classes + j] = 1;  // all the same
    labels[5] = seed_ % 2 == 0 ? 0 : 1;
    for (std::size_t j = 0; j < classes; ++j) {  // the largest is always the last one seen
      logits[6 * classes + j] = 0.5F * static_cast<float>(j);
      logits[7 * classes + j] = -3e38F;  // and the sum begins with numbers far below it
    }
    labels[6] = static_cast<std::uint32_t>(classes - 1);
    logits[8 * classes - 1] = 1;
    auto got = array(logits);
    auto on_device = array(labels);
    auto losses = array(std::vector<float>(kRows));
    auto correct = array(std::vector<std::uint32_t>(kRows));
    ASSERT_TRUE(ran(cuda::cross_entropy(on_device.data(), kRows, classes, nullptr, 0.1F, true,
                                        got.data(), losses.data(), correct.data(), queue_)));
    for (std::size_t r = 0; r < kRows; ++r) {
      std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(r * classes),
                             logits.begin() + static_cast<std::ptrdiff_t>((r + 1) * classes));
      const StepResult right =
          kernels::cross_entropy(std::span(labels).subspan(r, 1), classes, 0.1F, true, row.data());
      EXPECT_NEAR(losses.values()[r], right.loss_sum, 1e-5);
      EXPECT_EQ(correct.values()[r], right.correct) << r;
      const auto all = got.values();
      expect_near({all.begin() + static_cast<std::ptrdiff_t>(r * classes),
                   all.begin() + static_cast<std::ptrdiff_t>((r + 1) * classes)},
                  row);
    }
    // Wherever a NaN or an infinity stands in a row, its loss says so, and no other row's.
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF})
      for (const std::size_t at : {std::size_t{0}, classes / 2, classes - 1}) {
        auto spoiled = logits;
        spoiled[at] = bad;
        got = array(spoiled);
        ASSERT_TRUE(ran(cuda::cross_entropy(on_device.data(), kRows, classes, nullptr, 0.1F, true,
                                            got.data(), losses.data(), correct.data(), queue_)));
        EXPECT_FALSE(std::isfinite(losses.values()[0])) << bad << " at " << at;
        EXPECT_EQ(correct.values()[0], 0U);
        EXPECT_TRUE(std::isfinite(losses.values()[1]));
      }
    for (std::size_t j = 0; j < classes; ++j)
      if (j != labels[0]) logits[j] = -HUGE_VALF;  // no probability for the others
    got = array(logits);
    ASSERT_TRUE(ran(cuda::cross_entropy(on_device.data(), 1, classes, nullptr, 0.1F, true,
                                        got.data(), losses.data(), correct.data(), queue_)));
    EXPECT_EQ(losses.values()[0], 0.0F);
    EXPECT_EQ(correct.values()[0], 1U);
  }
}

TEST_P(TransformerCuda, ABiasIsAddedToLogits) {
  for (const std::size_t classes : {3, 64, 260, 1028}) {
    const auto logits = random(2 * classes, 1), bias = random(classes, 2);
    auto sums = logits;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += bias[i % classes];
    auto labels = array(std::vector<std::uint32_t>{0, 2});
    auto plain = array(sums), biased = array(logits), of_bias = array(bias);
    auto losses = array(std::vector<float>(2)), other_losses = array(std::vector<float>(2));
    auto correct = array(std::vector<std::uint32_t>(2));
    ASSERT_TRUE(ran(cuda::cross_entropy(labels.data(), 2, classes, nullptr, 1, true, plain.data(),
                                        losses.data(), correct.data(), queue_)));
    ASSERT_TRUE(
        ran(cuda::cross_entropy(labels.data(), 2, classes, of_bias.data(), 1, true, biased.data(),
                                other_losses.data(), correct.data(), queue_)));
    EXPECT_EQ(biased.values(), plain.values());
    EXPECT_EQ(other_losses.values(), losses.values());
  }
}

/// Four numbers at a time where rows allow it, and one where they do not.
TEST_P(TransformerCuda, RowsAreMovedEmbeddedAndCleared) {
  auto dropout = kernels::Dropout::of(0.3);
  const std::vector<std::uint64_t> keys = {seed_, 7};
  dropout.keys = keys;
  dropout.context = 3;
  dropout.site = 5;
  auto keys_there = array(keys);
  const std::vector<std::uint32_t> index = {4, 0, 5, 2, 1, 3};
  auto index_there = array(index);
  for (const std::size_t width : {1, 4, 30, 128, 129}) {
    SCOPED_TRACE(width);
    const auto x = random(6 * width, 1);
    std::vector<float> gathered(6 * width), placed(6 * width);
    for (std::size_t i = 0; i < x.size(); ++i) {
      gathered[i] = x[index[i / width] * width + i % width];
      placed[index[i / width] * width + i % width] = x[i];
    }
    auto in = array(x), out = array(std::vector<float>(6 * width, -1));
    ASSERT_TRUE(
        ran(cuda::move_rows(false, 6, width, index_there.data(), in.data(), out.data(), queue_)));
    EXPECT_EQ(out.values(), gathered);
    ASSERT_TRUE(
        ran(cuda::move_rows(true, 6, width, index_there.data(), in.data(), out.data(), queue_)));
    EXPECT_EQ(out.values(), placed);

    const auto positions = random(3 * width, 2);
    auto positions_there = array(positions);
    for (const bool drops : {false, true}) {
      kernels::Dropout on_host = dropout;
      if (!drops) on_host = {};
      const cuda::Dropout same{on_host.threshold, on_host.scale, keys_there.data(), 3, 5};
      std::vector<float> right(6 * width);
      kernels::embed(on_host, index, 3, width, x.data(), positions.data(), right.data());
      ASSERT_TRUE(ran(cuda::embed(same, 6, index_there.data(), 3, width, in.data(),
                                  positions_there.data(), out.data(), queue_)));
      EXPECT_EQ(out.values(), right);
    }

    const auto a = random(6 * width, 3);
    auto a_there = array(a), dots = array(std::vector<float>(6));
    std::vector<float> right(6, 0.0F);
    for (std::size_t i = 0; i < a.size(); ++i) right[i / width] += a[i] * x[i];
    ASSERT_TRUE(ran(cuda::head_dots(6, width, a_there.data(), in.data(), dots.data(), queue_)));
    expect_near(dots.values(), right);

    const float last = out.values().back();
    ASSERT_TRUE(ran(cuda::zero(6 * width - 1, out.data(), queue_)));
    const auto cleared = out.values();
    EXPECT_TRUE(std::all_of(cleared.begin(), cleared.end() - 1, [](float v) { return v == 0; }));
    EXPECT_EQ(cleared.back(), last);  // one less was to be cleared
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, TransformerCuda, ::testing::Range(1, 5));

}  // namespace
}  // namespace centroid::worker
