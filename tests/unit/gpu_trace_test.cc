#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/trace_capture.h"
#include "common/base/trace_events.h"
#include "tests/support/examples.h"
#include "tests/support/late_device.h"
#include "tests/support/nccl_stand_in.h"
#include "tests/support/simt.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

using namespace test;

/// A GPU computes from when the parameters are there until the last bucket is computed: not while
/// it only copies, adds or, to be slow, sleeps.
TEST(GpuTrace, ComputingIsComputing) {
  simt::use_seed(1);
  simt::use_stream_seed(1);
  const centroid::test::StandIn nccl;
  const auto model = make_model("mlp:12-40-5,relu").value();
  const Dataset data = random_data(20, 1);
  GroupOptions options;
  options.devices = "cuda:0,cuda:1,cuda:2";
  options.nccl = NCCL_STAND_IN;
  options.bucket_bytes = 1024;  // two buckets
  options.open = simt::open_late;
  options.slowdown = 3;
  const auto group = make_replica_group(*model, options).value();
  model->initialize(7, group->params());
  ASSERT_TRUE(group->step(data, first(20), {}).ok());
  const trace::Capture trace = trace::capture(600);
  const auto spans_of = [&](const std::string& lane, const std::string& name) {
    std::vector<trace::Capture::Span> out;
    for (const auto& span : trace.spans)
      if (trace.lanes[span.lane] == lane && span.name == name) out.push_back(span);
    return out;
  };
  for (const std::string gpu : {"cuda:0", "cuda:1", "cuda:2"}) {
    const auto computing = spans_of(gpu, "compute"),
               moving = spans_of(gpu + " transfer", "exchange");
    ASSERT_FALSE(computing.empty());
    ASSERT_GE(moving.size(), 3u);
    const auto& last = computing.back();
    const auto& parameters = moving[moving.size() - 3];
    constexpr double kRounding = 2;  // microseconds
    EXPECT_GE(last.begin_us + kRounding, parameters.begin_us + parameters.duration_us) << gpu;
    EXPECT_LE(last.begin_us + last.duration_us,
              moving.back().begin_us + moving.back().duration_us + kRounding)
        << gpu;
  }
}

}  // namespace
}  // namespace centroid::worker
