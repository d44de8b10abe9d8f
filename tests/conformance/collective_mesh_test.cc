#include "tests/conformance/collective_fixture.h"

namespace centroid::collective::testing {
namespace {

using ::testing::ElementsAre;

TEST(Nodes, TheRosterNamesThemForGroupsAndSubgroups) {
  Job job(Carrier::kInProcess, 3);
  job.join({"a", "b", "a"});
  job.run([&](Group& group) {
    EXPECT_THAT(group.nodes(), ElementsAre("a", "b", "a"));
    const auto pair = group.rank() == 0 ? group.subgroup({0}) : group.subgroup({1, 2});
    ASSERT_TRUE(pair.ok());
    EXPECT_EQ(pair->nodes()[0], group.rank() == 0 ? "a" : "b");
  });
}

TEST(Nodes, AreUnknownWhenTheRosterSaysNothing) {
  Job job(Carrier::kInProcess, 2);
  job.run([&](Group& group) { EXPECT_THAT(group.nodes(), ElementsAre("", "")); });
}

TEST(Nodes, ARosterWithAnotherNumberOfThemIsRefused) {
  auto mesh = Mesh::open(tcp_factory(), transport::Endpoint());
  ASSERT_TRUE(mesh.ok());
  Roster roster;
  roster.endpoints.push_back((*mesh)->endpoint());
  roster.nodes = {"a", "b"};
  const auto group = (*mesh)->join(roster, now() + 1s);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code(), ErrorCode::kInvalidArgument);
}

TEST(Nodes, ThisOneHasAName) {
  EXPECT_FALSE(this_node().empty());
  EXPECT_EQ(this_node(), this_node());
}

}  // namespace
}  // namespace centroid::collective::testing
