// The bytes of every codec, as checksums that were taken on x86-64 with AVX-512: any other machine,
// and any instruction set, must give the same.
#include <bit>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/codec/codec.h"
#include "common/codec/error_feedback.h"
#include "common/codec/spec.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

/// Numbers of many scales, of whole-number operations only: no logarithm that another library
/// rounds otherwise.
std::vector<float> numbers(std::size_t n, std::uint64_t stream) {
  CounterRng random(77, stream);
  std::vector<float> x(n);
  for (float& v : x) {
    const auto bits = static_cast<std::uint32_t>(random.next());
    v = std::bit_cast<float>((bits & 0x807FFFFFu) | (100u + (bits >> 24) % 40u) << 23);
  }
  return x;
}

template <class T>
std::uint32_t checksum(const std::vector<T>& of) {
  return crc32c(std::as_bytes(std::span<const T>(of)));
}

struct Case {
  const char* spec;
  std::uint32_t payload, sum;
};

TEST(EveryMachine, WritesTheSamePayloadsAndTheSameSums) {
  const std::size_t n = 5003;
  const std::vector<float> x = numbers(n, 1), start = numbers(n, 2);
  ASSERT_EQ(checksum(x), 0xDD4878D7u);
  for (const Case& expected : {
           Case{"f32", 0xDD4878D7, 0xFBBD84E7},
           Case{"bf16", 0xB620E975, 0x9806B4F4},
           Case{"f16", 0xC0B86B6F, 0xD3437C27},
           Case{"int8", 0x3F7994EF, 0x8A00D055},
           Case{"sign", 0x841C46B4, 0x9082BF0E},
           Case{"int8:rounding=stochastic", 0xBE895B1C, 0xF55990C1},
           Case{"topk:0.01", 0x011FB582, 0x101DD612},
           Case{"topk:0.1,values=bf16", 0xACBA8BA6, 0x8F2EE765},
           Case{"topk:0.3,values=int8", 0x92141B8F, 0x5F7AAF10},
           Case{"topk:0.05,values=int8,rounding=stochastic,feedback=off", 0xE0450C7E, 0xFD90D205},
       }) {
    const auto codec = make_codec(expected.spec).value();
    for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
      const Isa before = limit_isa(isa);
      std::vector<std::byte> payload(codec->max_bytes(n));
      payload.resize(codec->encode(x, payload, 5).value());
      std::vector<float> sum = start;
      EXPECT_TRUE(codec->decode_add(payload, 0.37f, false, sum).ok());
      limit_isa(before);
      EXPECT_TRUE(checksum(payload) == expected.payload && checksum(sum) == expected.sum)
          << "{\"" << expected.spec << "\", 0x" << std::hex << checksum(payload) << ", 0x"
          << checksum(sum) << "} with " << to_string(isa);
    }
  }
}

TEST(EveryMachine, LeavesTheSameResidualsAndMomentum) {
  const auto plan =
      ChunkPlan::make({{"a", DType::kF32, {5003}}, {"b", DType::kF32, {31, 17}}}, 4096).value();
  struct Left {
    const char* spec;
    std::uint32_t sent, residual, momentum;
  };
  for (const Left& expected : {
           Left{"topk:0.01", 0x4B62CB44, 0xC52403C1, 0},
           Left{"topk:0.02,values=int8,momentum=0.9,warmup=4", 0xECECA958, 0x661BCDFE, 0x7A926F52},
           Left{"topk:0.02,values=bf16,momentum=0.9,nesterov=on,clip=1000", 0x3D57317E, 0x4D482F4A,
                0xE439042C},
           Left{"sign", 0x276AB31F, 0x2252A95F, 0},
           Left{"int8:feedback=on", 0x2AE5341B, 0x923F5C60, 0},
       }) {
    for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
      const Isa before = limit_isa(isa);
      const auto feedback = ErrorFeedback::make(expected.spec, plan).value();
      std::uint32_t sent = 0;
      for (std::uint64_t round = 0; round < 6; ++round) {
        const std::vector<float> gradient = numbers(plan.total_elements(), 10 + round);
        for (const Chunk& chunk : plan.chunks()) {
          const auto payload = feedback->encode(chunk.id, gradient, round);
          ASSERT_TRUE(payload.ok()) << payload.error().message();
          sent = crc32c(*payload, sent);
        }
        feedback->commit();
      }
      const auto state = feedback->state();
      const std::uint32_t residual = crc32c(std::as_bytes(state.residual));
      const std::uint32_t momentum = crc32c(std::as_bytes(state.momentum));
      limit_isa(before);
      EXPECT_TRUE(sent == expected.sent && residual == expected.residual &&
                  momentum == expected.momentum)
          << "{\"" << expected.spec << "\", 0x" << std::hex << sent << ", 0x" << residual << ", 0x"
          << momentum << "} with " << to_string(isa);
    }
  }
}

}  // namespace
}  // namespace centroid
