#include "tests/component/contract.h"

namespace centroid::test {
namespace {

/// What is asked for while the state is given up is of the state that comes.
void restore_beside_checkpoint(Client& client, TestServer& server) {
  const auto first = client.round();
  ASSERT_TRUE(first);
  const auto begin = server.checkpoint();
  ASSERT_TRUE(begin.ok()) << begin.error().to_string();
  client.contribute(*first);
  const auto second = client.round(Round(2));
  ASSERT_TRUE(second);
  auto restored = std::async(std::launch::async, [&] { return server.restore(begin->version); });
  ASSERT_TRUE(server.wait_for_wait("round loop", "the end of round 2"));
  // Its session does not end at once.
  auto held = client.contribute_and_hold(*second, server.executor());
  ASSERT_TRUE(server.wait_until([&](const auto&) { return server.present() == 0; }));
  auto written = std::async(std::launch::async, [&] { return server.checkpoint(); });
  EXPECT_TRUE(server.wait_for_wait("round loop", "the workers leave"));
  EXPECT_TRUE(server.wait_for_wait("state", "the one that the job goes on with"));
  held.reset();
  const auto outcome = restored.get();
  ASSERT_TRUE(outcome.ok()) << outcome.error().to_string();
  const auto checkpoint = written.get();  // that version is there already
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->version, begin->version);
  EXPECT_EQ(checkpoint->created_unix_seconds, begin->created_unix_seconds);
}

TEST_F(ContractTest, ACheckpointDuringARestoreDoesNotUndoIt) {
  enter();
  restore_beside_checkpoint(client, server);
}

/// The server has more to send when the session ends.
TEST_F(ContractTest, AWorkerWithoutCreditGetsItsGoodbye) {
  client.join.manifest = {{.name = "a", .dtype = DType::kF32, .shape = {1 << 18}},
                          {.name = "b", .dtype = DType::kF32, .shape = {1 << 18}}};
  client.greeting.credit_bytes = client.join.manifest[0].bytes();  // one chunk
  enter();
  restore_beside_checkpoint(client, server);
}

}  // namespace
}  // namespace centroid::test
