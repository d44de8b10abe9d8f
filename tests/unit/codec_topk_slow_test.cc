// The cases of codec_topk_test.cc by the ten thousands, with threads, seeds and tiny buffers.
#include <array>
#include <cstdio>

#include <gtest/gtest.h>

#include "common/codec/spec.h"
#include "tests/unit/codec_topk_cases.h"

namespace centroid {
namespace {

constexpr std::uint64_t kSlowSeed = 50'000;

TEST(TopkSlow, MoreThanFiftyThousandCasesGiveTheReference) {
  ThreadPool two(2), three(3), five(5);
  const std::array<ThreadPool*, 4> pools{nullptr, &two, &three, &five};
  CounterRng random(kSlowSeed);
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSlowSeed));
  std::size_t cases = 0;
  for (int round = 0; round < 90; ++round) {
    for (int distribution = 0; distribution < topk_cases::kDistributions; ++distribution) {
      const std::size_t most = round < 40 ? 300 : round < 70 ? 30'000 : 700'000;
      const std::size_t n = round == 89 ? std::size_t{1} << 20 : 1 + random.below(most);
      const auto x = topk_cases::numbers(distribution, n, random.next());
      const auto order = topk_cases::order_of(x);
      for (const std::uint64_t k :
           {std::uint64_t{1}, KeepRatio{1'000'000}.count_of(n), KeepRatio{10'000'000}.count_of(n),
            KeepRatio{100'000'000}.count_of(n), 1 + random.below(n), std::uint64_t{n}}) {
        const auto expected = topk_cases::reference(x, order, k);
        for (const topk::Kernels* kernels : topk::runnable_kernels()) {
          for (const bool fused : {false, true}) {
            if (fused && distribution == topk_cases::kNonFinite) continue;
            const topk_cases::Way way{kernels, pools[random.below(4)], random.next(),
                                      random.below(3) == 0 ? 64 + random.below(2000) : 0, fused};
            ASSERT_EQ(topk_cases::difference(x, k, expected, way), "")
                << "distribution " << distribution << " n " << n << " k " << k << " "
                << way.to_string();
            ++cases;
          }
        }
      }
    }
  }
  std::printf("%zu cases\n", cases);
  EXPECT_GE(cases, topk::runnable_kernels().size() * 12'500u);
}

}  // namespace
}  // namespace centroid
