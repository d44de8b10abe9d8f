#include "tests/support/device_codec_cases.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/codec/codec.h"
#include "common/codec/cuda/device_codec.h"
#include "common/codec/error_feedback.h"
#include "common/codec/payload.h"
#include "common/codec/sign.h"
#include "tests/unit/codec_topk_cases.h"

namespace centroid::device_cases {
namespace {

using cuda::Dense;
using topk_cases::kDistributions;
using topk_cases::kNonFinite;
using topk_cases::numbers;

/// Numbers on the device, beginning `offset` numbers after a 16-byte boundary.
template <class T>
class Array {
 public:
  Array(Machine& machine, std::uint64_t n, std::uint64_t offset = 0)
      : machine_(machine),
        n_(n),
        data_(reinterpret_cast<T*>(machine.allocate((n + offset) * sizeof(T))) + offset) {}
  Array(Machine& machine, const std::vector<T>& values, std::uint64_t offset = 0)
      : Array(machine, values.size(), offset) {
    machine_.copy(data_, values.data(), n_ * sizeof(T));
  }
  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> out(n_);
    machine_.copy(out.data(), data_, n_ * sizeof(T));
    return out;
  }

 private:
  Machine& machine_;
  std::uint64_t n_;
  T* data_;
};

/// "" or the first place where the bits differ.
template <class T>
std::string difference(std::span<const T> got, std::span<const T> expected) {
  if (got.size() != expected.size())
    return std::to_string(got.size()) + " instead of " + std::to_string(expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0)
      return "place " + std::to_string(i) + " of " + std::to_string(got.size()) + ": " +
             std::to_string(static_cast<double>(got[i])) + " instead of " +
             std::to_string(static_cast<double>(expected[i]));
  return {};
}
template <class T>
std::string difference(const std::vector<T>& got, const std::vector<T>& expected) {
  return difference(std::span<const T>(got), std::span<const T>(expected));
}

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.error().to_string(); }

/// Bytes as numbers, to print them.
std::vector<std::uint8_t> plain(Bytes bytes) {
  std::vector<std::uint8_t> out(bytes.size());
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

struct Selected {
  cuda::SelectSummary summary;
  std::vector<std::uint32_t> index;
  std::vector<float> value;
};

/// A selection, with output memory of exactly the documented size.
Selected run_select(Machine& machine, const cuda::AddArguments& add, std::uint64_t n,
                    std::uint64_t k) {
  const std::uint64_t most = std::min(n, k);
  const Array<std::byte> memory(machine, cuda::select_bytes(n));
  const Array<std::uint32_t> index(machine, most);
  const Array<float> value(machine, most);
  const Array<cuda::SelectSummary> summary(machine, std::uint64_t{1});
  cuda::SelectArguments of;
  of.add = add;
  of.n = n;
  of.k = k;
  of.memory = memory.data();
  of.index = index.data();
  of.value = value.data();
  of.summary = summary.data();
  expect_ok(cuda::select(of, machine.queue()));
  Selected out{summary.read()[0], index.read(), value.read()};
  if (out.summary.count > most) {
    ADD_FAILURE() << out.summary.count << " selected of " << n << ", k = " << k;
    out.summary.count = most;
  }
  out.index.resize(out.summary.count);
  out.value.resize(out.summary.count);
  return out;
}

void compare_selection(Machine& machine, const std::vector<float>& x, std::uint64_t k, int way) {
  const std::uint64_t n = x.size();
  const std::uint64_t offset = static_cast<std::uint64_t>(way) % 4;
  const bool adds = way >= 2;
  std::vector<float> residual(adds ? n : 0, 0.0f), gradient = x;
  for (std::uint64_t i = 0; i < residual.size(); i += 3) std::swap(residual[i], gradient[i]);
  TopkSelector selector;
  TopkSelector::Selection expected;
  std::vector<float> sums = adds ? residual : x;
  if (adds)
    expected = selector.add_and_select(gradient, sums, k);
  else
    expected = selector.select(x, k);
  const Array<float> at(machine, adds ? residual : x, offset);
  const Array<float> g(machine, gradient, way == 3 ? offset - 1 : offset);
  cuda::AddArguments add;
  add.x = at.data();
  if (adds) add.gradient = g.data();
  const Selected got = run_select(machine, add, n, k);
  EXPECT_EQ(got.summary.nonfinite, 0u);
  EXPECT_EQ(difference(std::span<const std::uint32_t>(got.index), expected.index), "");
  EXPECT_EQ(difference(std::span<const float>(got.value), expected.value), "");
  EXPECT_EQ(difference(at.read(), sums), "");
}

std::vector<std::byte> cpu_encode(Dense type, Rounding rounding, std::uint64_t stream,
                                  std::span<const float> x, bool& is_finite) {
  std::vector<std::byte> out(4 * x.size() + 1);
  is_finite = true;
  if (type == Dense::kBf16 || type == Dense::kF16) {
    const auto codec = make_codec(type == Dense::kBf16 ? "bf16" : "f16");
    out.resize(codec.value()->encode(x, out).value());
    return out;
  }
  const ValueType values = type == Dense::kInt8   ? ValueType::kInt8
                           : type == Dense::kSign ? ValueType::kSign
                                                  : ValueType::kBf16;
  out.resize(payload::encode_dense(values, {rounding, stream}, x, out.data()));
  is_finite = out[0] == static_cast<std::byte>(values);
  out.erase(out.begin());
  return out;
}

/// x̂ of the encoded bytes.
std::vector<float> cpu_decode(Dense type, Bytes bytes, std::size_t n) {
  std::vector<float> out(n);
  if (type == Dense::kInt8) {
    int8::dequantize(bytes, out);
  } else if (type == Dense::kSign) {
    sign::dequantize(bytes, out);
  } else {
    const auto codec = make_codec(type == Dense::kF16 ? "f16" : "bf16");
    EXPECT_TRUE(codec.value()->decode(bytes, out).ok());
  }
  return out;
}

void compare_encoding(Machine& machine, Dense type, Rounding rounding, const std::vector<float>& x,
                      std::uint64_t offset) {
  const std::uint64_t n = x.size(), stream = 77 + n;
  bool is_finite = true;
  const auto expected = cpu_encode(type, rounding, stream, x, is_finite);
  const std::uint64_t bytes = type == Dense::kInt8   ? int8::bytes(n)
                              : type == Dense::kSign ? sign::bytes(n)
                                                     : 2 * n;
  const Array<float> at(machine, x, offset % 4);
  const Array<std::byte> out(machine, bytes, offset);
  const Array<std::uint32_t> flags(machine, std::vector<std::uint32_t>{0});
  cuda::EncodeArguments of;
  of.type = type;
  of.rounding = rounding;
  of.stream = stream;
  of.x = at.data();
  of.n = n;
  of.out = out.data();
  of.flags = flags.data();
  expect_ok(cuda::encode(of, machine.queue()));
  const std::uint32_t seen = flags.read()[0];
  const bool has_nonfinite =
      std::ranges::any_of(x, [&](float v) { return topk::key_of(v) >= topk::kInfinity; });
  const bool is_flagged = type == Dense::kInt8 ? !is_finite : has_nonfinite;
  EXPECT_EQ((seen & cuda::kNotFinite) != 0, is_flagged);
  if (!is_finite) return;  // the CPU then sends f32
  EXPECT_EQ(difference(plain(out.read()), plain(expected)), "");
  if (rounding == Rounding::kStochastic) return;  // never with error feedback

  const auto sent = cpu_decode(type, expected, n);
  bool is_exact = true;
  std::vector<float> rest(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    rest[i] = x[i] - sent[i];
    is_exact = is_exact && (type == Dense::kSign || sent[i] + rest[i] == x[i]);
  }
  EXPECT_EQ((seen & cuda::kInexact) == 0, is_exact);
  const bool is_done = is_exact && !has_nonfinite;
  // No momentum, one on the same boundary as x, and one on another.
  for (const int way : {0, 1, 2}) {
    const Array<float> momentum(machine, x, way == 2 ? (offset + 1) % 4 : offset % 4);
    machine.copy(at.data(), x.data(), 4 * n);
    expect_ok(cuda::subtract(type, at.data(), way == 0 ? nullptr : momentum.data(), n, flags.data(),
                             machine.queue()));
    EXPECT_EQ(difference(at.read(), is_done ? rest : x), "");
    const bool is_zero = is_done && way != 0;
    EXPECT_EQ(difference(momentum.read(), is_zero ? std::vector<float>(n, 0.0f) : x), "");
  }
}

/// Blocks of 256 numbers whose scale of signs depends on the order of the additions: one number
/// makes the mean half-way between two bfloat16; small numbers are lost if each is added to it, but
/// not if they are added together first.
std::vector<float> order_of_signs() {
  std::vector<float> x;
  const auto add_block = [&]() { return x.insert(x.end(), sign::kBlock, 0.0f); };
  // All in one of the 32 sums (sign_kernels.h).
  for (std::size_t sum = 0; sum < 32; ++sum) {
    const auto block = add_block();
    for (std::ptrdiff_t row = 0; row < 8; ++row)
      block[32 * row + static_cast<std::ptrdiff_t>(sum)] = -0x1p-17f;
    block[static_cast<std::ptrdiff_t>(32 * (sum % 8) + sum)] = 257;
  }
  // In three sums: two are added first if sums that are `second` apart are added first.
  for (const std::ptrdiff_t first : {1, 2, 4, 8, 16})
    for (const std::ptrdiff_t second : {1, 2, 4, 8, 16}) {
      if (first == second) continue;
      const auto block = add_block();
      block[0] = 257;
      block[first] = block[first + second] = 0x1.8p-17f;
    }
  return x;
}

}  // namespace

Machine::Machine(Device& device) : device_(device) {
  auto stream = device.make_stream();
  CENTROID_CHECK(stream.ok());
  stream_ = std::move(stream).value();
}

std::byte* Machine::allocate(std::size_t bytes) {
  auto memory = device_.allocate(bytes);
  CENTROID_CHECK(memory.ok());
  memory_.push_back(std::move(memory).value());
  return memory_.back()->data();
}

void Machine::free_all() {
  expect_ok(stream_->wait());
  memory_.clear();
}

void Machine::copy(void* to, const void* from, std::size_t bytes) {
  expect_ok(stream_->copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes));
  expect_ok(stream_->wait());
}

void compare_selections(Machine& machine, std::uint64_t n, std::uint64_t seed) {
  constexpr std::uint64_t kMany = 50'000;  // from this size on fewer cases
  for (int distribution = 0; distribution < kDistributions; ++distribution) {
    if (n > kMany && distribution % 7 != 0) continue;
    const auto x = numbers(distribution, n, seed);
    int way = distribution == kNonFinite ? 0 : distribution;
    const bool is_odd = (way + seed) % 2 != 0;
    for (const std::uint64_t k : {is_odd ? 1 : n + 5, n / 100 + 1, is_odd ? n / 4 + 1 : n}) {
      SCOPED_TRACE("distribution " + std::to_string(distribution) + ", n = " + std::to_string(n) +
                   ", k = " + std::to_string(k) + ", way " + std::to_string(way % 6));
      compare_selection(machine, x, k, way++ % (distribution == kNonFinite ? 2 : 6));
      machine.free_all();
    }
  }
}

void compare_nonfinite(Machine& machine, std::uint64_t n, std::uint64_t seed) {
  auto gradient = numbers(kNonFinite, n, seed);
  gradient[n / 2] = std::bit_cast<float>(0xFF812345u);  // a signalling NaN
  const auto before = numbers(0, n, seed);
  for (const bool stores : {false, true}) {
    SCOPED_TRACE(stores ? "stored" : "not stored");
    auto residual = before;
    TopkSelector selector;
    const auto expected = selector.add_and_select(gradient, residual, n / 10, stores);
    const Array<float> at(machine, before, 1), g(machine, gradient, 1);
    cuda::AddArguments add;
    add.x = at.data();
    add.gradient = g.data();
    add.store_nonfinite = stores;
    const Selected got = run_select(machine, add, n, n / 10);
    EXPECT_GT(expected.nonfinite, 0u);
    EXPECT_EQ(got.summary.nonfinite, expected.nonfinite);
    EXPECT_EQ(got.summary.first_nonfinite, expected.first_nonfinite);
    EXPECT_EQ(got.summary.count, 0u);
    EXPECT_EQ(difference(at.read(), residual), "");
    machine.free_all();
  }
}

void compare_dense(Machine& machine, std::uint64_t n, std::uint64_t seed) {
  for (int distribution = 0; distribution < kDistributions; ++distribution) {
    const auto x = numbers(distribution, n, seed);
    const std::uint64_t offset = distribution % 3 == 0   ? 0
                                 : distribution % 3 == 1 ? 2
                                                         : static_cast<std::uint64_t>(distribution);
    for (const Dense type :
         {Dense::kBf16, Dense::kF16, Dense::kFiniteBf16, Dense::kInt8, Dense::kSign}) {
      SCOPED_TRACE("distribution " + std::to_string(distribution) + ", n = " + std::to_string(n) +
                   ", type " + std::to_string(static_cast<int>(type)) + ", offset " +
                   std::to_string(offset));
      compare_encoding(machine, type, Rounding::kNearest, x, offset);
      if (type == Dense::kInt8) compare_encoding(machine, type, Rounding::kStochastic, x, offset);
      machine.free_all();
    }
  }
}

void compare_order_of_signs(Machine& machine) {
  const auto x = order_of_signs();
  for (const std::uint64_t offset : {0, 1})
    compare_encoding(machine, Dense::kSign, Rounding::kNearest, x, offset);
  machine.free_all();
}

void compare_rounds(Machine& machine, std::uint64_t n, std::uint64_t seed) {
  for (const char* spec :
       {"topk:0.05", "topk:0.05,values=bf16,momentum=0.9",
        "topk:0.02,values=int8,momentum=0.9,nesterov=on", "topk:0.5,momentum=0.5,masking=off",
        "topk:0.99", "topk:0.9,values=int8,momentum=0.9", "int8:feedback=on", "sign",
        "bf16:feedback=on", "f16:feedback=on"}) {
    SCOPED_TRACE(spec);
    const auto parsed = CodecSpec::parse(spec);
    const auto cpu = make_codec(spec);
    ASSERT_TRUE(parsed.ok() && cpu.ok());
    Manifest manifest;  // the second tensor begins at an odd position
    manifest.push_back({"w", DType::kF32, {n}});
    manifest.push_back({"b", DType::kF32, {n / 3}});
    const auto plan = ChunkPlan::make(manifest, 4 * (n / 2) + 64);
    ASSERT_TRUE(plan.ok());
    const auto feedback = ErrorFeedback::make(spec, *plan);
    const auto codec = DeviceCodec::make(spec, {n, n, parsed->ratio}, machine.device());
    ASSERT_TRUE(feedback.ok() && codec.ok());
    const std::uint64_t total = plan->total_elements();
    const bool is_topk = parsed->kind == CodecSpec::Kind::kTopk;
    const bool has_momentum = parsed->feedback.momentum != 0;
    const std::vector<float> zeros(total, 0.0f);
    const Array<float> residual(machine, zeros), momentum(machine, zeros), g(machine, zeros);
    for (std::uint64_t round = 1; round <= 3; ++round) {
      auto gradient = numbers(static_cast<int>(round % 2), total, seed + round);
      for (std::uint64_t i = 0; i < n / 2; ++i) gradient[i] *= 0x1p20f;  // one chunk has most of it
      machine.copy(g.data(), gradient.data(), 4 * total);
      for (std::size_t c = 0; c < plan->chunks().size();) {
        // One tensor at a time; with the dense codecs one chunk.
        const Chunk& first = plan->chunks()[c];
        DeviceCodec::Tensor tensor;
        tensor.gradient = g.data() + first.position;
        tensor.residual = residual.data() + first.position;
        tensor.momentum = has_momentum ? momentum.data() + first.position : nullptr;
        tensor.elements = is_topk ? (first.tensor.value == 0 ? n : n / 3) : first.elements;
        expect_ok((*codec)->begin(tensor, parsed->ratio));
        expect_ok((*codec)->stream().wait());
        const auto is_done = (*codec)->done();
        ASSERT_TRUE(is_done.ok() && *is_done);
        std::uint64_t at = 0;
        for (; at < tensor.elements; ++c) {
          const Chunk& chunk = plan->chunks()[c];
          std::vector<std::byte> bytes((*cpu)->max_bytes(chunk.elements) + 4 * chunk.elements + 1);
          const auto written = (*codec)->encode(at, chunk.elements, bytes);
          ASSERT_TRUE(written.ok()) << written.error().to_string();
          bytes.resize(*written);
          const auto expected = (*feedback)->encode(chunk.id, gradient, round);
          ASSERT_TRUE(expected.ok());
          EXPECT_EQ(difference(plain(bytes), plain(*expected)), "") << to_string(chunk.id);
          at += chunk.elements;
        }
      }
      expect_ok((*codec)->stream().wait());
      const auto state = (*feedback)->state();
      const auto residual_now = residual.read(), momentum_now = momentum.read();
      EXPECT_EQ(difference(std::span<const float>(residual_now), state.residual), "");
      if (has_momentum) {
        EXPECT_EQ(difference(std::span<const float>(momentum_now), state.momentum), "");
      }
    }
    EXPECT_EQ((*feedback)->totals().dense_chunks > 0, is_topk && parsed->ratio.billionths > 2e8);
    machine.free_all();
  }
}

/// A codec of the device and its oracle, over one tensor of `n` numbers.
struct Twins {
  Twins(Machine& machine, const char* spec, const ChunkPlan& plan,
        const std::vector<float>& gradient)
      : feedback(ErrorFeedback::make(spec, plan).value()),
        codec(DeviceCodec::make(spec,
                                {gradient.size(), gradient.size(), CodecSpec::parse(spec)->ratio},
                                machine.device())
                  .value()),
        g(machine, gradient),
        residual(machine, std::vector<float>(gradient.size(), 0.0f)) {
    tensor.gradient = g.data();
    tensor.residual = residual.data();
    tensor.elements = gradient.size();
    tensor.name = "tensor w";
  }
  void expect_same_residual() const {
    const auto kept = residual.read();
    EXPECT_EQ(difference(std::span<const float>(kept), feedback->state().residual), "");
  }

  std::unique_ptr<ErrorFeedback> feedback;
  std::unique_ptr<DeviceCodec> codec;
  Array<float> g, residual;
  DeviceCodec::Tensor tensor;
};

void compare_refusals(Machine& machine) {
  const auto code_of = [&](const char* spec) {
    const auto codec = DeviceCodec::make(spec, {10, 10, {500'000'000}}, machine.device());
    return codec.ok() ? std::string("ok") : codec.error().to_string();
  };
  EXPECT_EQ(code_of("topk:0.5"), "ok");
  EXPECT_NE(code_of("topk:0.5,clip=1").find("unimplemented: codec spec"), std::string::npos);
  EXPECT_NE(code_of("topk:0.5,feedback=off").find("invalid_argument"), std::string::npos);
  EXPECT_NE(code_of("bf16").find("\"feedback\" is off"), std::string::npos);

  Manifest manifest;
  manifest.push_back({"w", DType::kF32, {1000}});
  const auto plan = ChunkPlan::make(manifest, 4096);
  ASSERT_TRUE(plan.ok());
  auto gradient = numbers(0, 1000, 1);
  gradient[700] = std::numeric_limits<float>::infinity();
  gradient[800] = std::numeric_limits<float>::quiet_NaN();
  for (const char* spec : {"topk:0.1", "int8:feedback=on", "sign"}) {
    Twins twins(machine, spec, *plan, gradient);
    expect_ok(twins.codec->begin(twins.tensor, {100'000'000}));
    std::vector<std::byte> out(4001);
    const auto got = twins.codec->encode(0, 1000, out);
    const auto expected = twins.feedback->encode(ChunkId{0}, gradient, 1);
    ASSERT_FALSE(got.ok());
    ASSERT_FALSE(expected.ok());
    EXPECT_EQ(got.error().to_string(), expected.error().to_string());
    twins.expect_same_residual();
    machine.free_all();
  }

  // Too large for f16: refused, and the sum stays for a round in which it is accepted.
  Twins twins(machine, "f16:feedback=on", *plan, gradient);
  for (const float large :
       {582863680.0f, -582863680.0f, 582863680.0f}) {  // its remainder is not a float
    auto next = numbers(0, 1000, 2);
    next[300] = large;
    machine.copy(twins.g.data(), next.data(), 4000);
    expect_ok(twins.codec->begin(twins.tensor, {}));
    std::vector<std::byte> out(4001);
    const auto got = twins.codec->encode(0, 1000, out);
    const auto expected = twins.feedback->encode(ChunkId{0}, next, 1);
    ASSERT_EQ(got.ok(), expected.ok());
    ASSERT_EQ(got.ok(), large < 0);
    if (got.ok()) {
      EXPECT_EQ(difference(plain(Bytes(out).first(*got)), plain(*expected)), "");
      twins.feedback->commit();
    } else {
      EXPECT_NE(got.error().message().find("too large for f16"), std::string::npos);
    }
    expect_ok(twins.codec->stream().wait());
    twins.expect_same_residual();
  }
  machine.free_all();
}

}  // namespace centroid::device_cases
