#include "tests/conformance/collective_fixture.h"

namespace centroid::collective::testing {
namespace {

// Parts of 64 and 256 MiB: a rank that writes a whole part before it reads would never end.
void reduce_parts(Carrier carrier, std::uint32_t world, std::size_t part_bytes) {
  Job job(carrier, world);
  job.run([&](Group& group) {
    Floats data(world * (part_bytes / 4), 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
    EXPECT_EQ(data, Floats(data.size(), static_cast<float>(world)));
  });
}

struct LargeSlow : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, LargeSlow,
                         ::testing::Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

TEST_P(LargeSlow, PartsOf64MebibytesDoNotBlock) { reduce_parts(GetParam(), 3, 64 << 20); }
TEST_P(LargeSlow, PartsOf256MebibytesDoNotBlock) { reduce_parts(GetParam(), 2, 256 << 20); }

}  // namespace
}  // namespace centroid::collective::testing
