#include "server/service/leader_gate.h"

#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

using testing::HasSubstr;

/// A leader whose rounds had reached the goal when it learned that another server leads must not
/// say that the job is over: shard servers would end, and the next leader would wait for them.
TEST(LeaderGate, ADeposedLeaderIsAStandbyWhateverItsJobHasReached) {
  const TemporaryDirectory folder;
  boost::asio::io_context context;
  const SystemClock clock;
  metrics::PrometheusRegistry registry;
  const Probe probe(registry);
  EventLog events(clock);
  JobPhase phase(clock, events, probe);
  Event changed(context.get_executor());
  const StopRequest stop;
  Fence fence(folder.path(), "server-a");
  LeaderGate gate(clock, changed, phase, stop);
  gate.stand_by(fence);
  gate.set_prepared();
  fence.open(3, clock.now() + std::chrono::hours(1));
  phase.set(Phase::kFinished, "the goal is reached");
  EXPECT_TRUE(gate.check_lead().ok());
  fence.close("term 4 is of server 'server-b'");
  const Status leads = gate.check_lead();
  ASSERT_FALSE(leads.ok());
  EXPECT_EQ(leads.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(leads.error().message(), HasSubstr("standby"));
}

}  // namespace
}  // namespace centroid::server
