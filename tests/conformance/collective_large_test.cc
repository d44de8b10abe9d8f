#include "tests/conformance/collective_fixture.h"

namespace centroid::collective::testing {
namespace {

// Parts of 64 and 256 MiB: a rank that writes a whole part before it reads would never end.
void reduce_parts(std::uint32_t world, std::size_t part_bytes) {
  Job job(Carrier::kTcp, world);
  job.run([&](Group& group) {
    Floats data(world * (part_bytes / 4), 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
    EXPECT_EQ(data, Floats(data.size(), static_cast<float>(world)));
  });
}

TEST(Large, PartsOf64MebibytesDoNotBlock) { reduce_parts(3, 64 << 20); }
TEST(Large, PartsOf256MebibytesDoNotBlock) { reduce_parts(2, 256 << 20); }

}  // namespace
}  // namespace centroid::collective::testing
