#include "worker/loop/local_planes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace centroid::worker {
namespace {

// By hand: own (3, 4), new (4, 3): both of norm 5, sqrt(2) apart, 24 / 25 the cosine.
TEST(LocalPlanesTest, DivergenceOfKnownPlanes) {
  const Manifest manifest{{.name = "w", .shape = {2}}};
  const ChunkPlan plan = ChunkPlan::make(manifest, 1024).value();
  std::vector<float> params{4, 3};
  Buffer own(2 * sizeof(float));
  LocalPlanes planes;
  ASSERT_TRUE(planes.open(plan, 1, params, std::move(own)).ok());
  Share share;
  share.end = 10;
  const auto between = [&](float a, float b) {
    planes.own()[0] = a;
    planes.own()[1] = b;
    return planes.divergence(share);
  };
  const Divergence turned = between(3, 4);
  EXPECT_NEAR(turned.ratio, std::sqrt(2.0) / 5, 1e-12);
  EXPECT_NEAR(turned.cosine, 24.0 / 25, 1e-12);
  EXPECT_NEAR(turned.shift, 0, 1e-12);
  const Divergence longer = between(8, 6);
  EXPECT_NEAR(longer.ratio, 1, 1e-12);
  EXPECT_NEAR(longer.cosine, 1, 1e-12);
  EXPECT_NEAR(longer.shift, 5, 1e-12);
  EXPECT_NEAR(between(-4, -3).cosine, -1, 1e-12);
  EXPECT_EQ(between(4, 3).ratio, 0);
  EXPECT_EQ(between(std::numeric_limits<float>::quiet_NaN(), 3).ratio, 1e300);
  share.end = 0;  // nothing was contributed
  EXPECT_EQ(between(3, 4).ratio, -1);
  share.end = 10;
  std::ranges::fill(params, 0.0F);
  EXPECT_EQ(between(3, 4).ratio, -1);
}

// Of what is trained: running values may be larger than all of it.
TEST(LocalPlanesTest, BuffersAreNoDivergence) {
  const Manifest manifest{{.name = "w", .shape = {2}}, {.name = "n.running_var", .shape = {1}}};
  const ChunkPlan plan = ChunkPlan::make(manifest, 1024).value();
  std::vector<float> params{4, 3, 1000};
  LocalPlanes planes;
  ASSERT_TRUE(planes.open(plan, 1, params, Buffer(3 * sizeof(float))).ok());
  Share share;
  share.end = 10;
  planes.own()[0] = 3;
  planes.own()[1] = 4;
  planes.own()[2] = 1;
  EXPECT_NEAR(planes.divergence(share).ratio, std::sqrt(2.0) / 5, 1e-12);
}

}  // namespace
}  // namespace centroid::worker
