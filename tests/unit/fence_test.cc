#include "server/election/fence.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::hours(1); }

TEST(Fence, IsShutBeforeTheFirstLeadAndAfterTheLease) {
  const TemporaryDirectory folder;
  Fence fence(folder.path(), "a");
  EXPECT_EQ(fence.holds().error().code(), ErrorCode::kUnavailable);
  fence.open(7, soon());
  EXPECT_TRUE(fence.check().ok());
  fence.open(7, std::chrono::steady_clock::now());
  EXPECT_EQ(fence.check().error().code(), ErrorCode::kUnavailable);
  fence.open(7, soon());
  EXPECT_TRUE(fence.check().ok());
}

TEST(Fence, SaysWhenItOpensAgainForThoseThatWaitForIt) {
  const TemporaryDirectory folder;
  Fence fence(folder.path(), "a");
  EXPECT_TRUE(fence.open(7, soon()));
  EXPECT_FALSE(fence.open(7, soon())) << "it was open";
  EXPECT_FALSE(fence.open(7, std::chrono::steady_clock::now()));
  EXPECT_TRUE(fence.open(7, soon())) << "the lease was late";
}

TEST(Fence, ALaterTermInTheFolderShutsItForGoodAndNamesTheServer) {
  const TemporaryDirectory folder;
  Fence old(folder.path(), "a"), young(folder.path(), "b");
  old.open(7, soon());
  ASSERT_TRUE(old.take().ok());
  young.open(9, soon());
  ASSERT_TRUE(young.take().ok());
  EXPECT_TRUE(young.check().ok());
  const Status refused = old.check();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kAborted);
  EXPECT_NE(refused.error().message().find("term 9 of server 'b'"), std::string::npos);
  EXPECT_EQ(old.holds().error().code(), ErrorCode::kAborted);
}

TEST(Fence, WithoutALeaseTheFolderStillTellsOfAnotherLeader) {
  const TemporaryDirectory folder;
  Fence old(folder.path(), "a"), young(folder.path(), "b");
  old.open(7, std::chrono::steady_clock::now());
  old.look();
  EXPECT_EQ(old.holds().error().code(), ErrorCode::kUnavailable);
  young.open(9, soon());
  ASSERT_TRUE(young.take().ok());
  old.look();
  EXPECT_EQ(old.holds().error().code(), ErrorCode::kAborted);
}

TEST(Fence, ATermBelowTheFoldersIsRefusedWithWhatToDo) {
  const TemporaryDirectory folder;
  Fence first(folder.path(), "a"), second(folder.path(), "b");
  first.open(900, soon());
  ASSERT_TRUE(first.take().ok());
  second.open(3, soon());
  const Status refused = second.take();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("not the one of before"), std::string::npos);
  EXPECT_TRUE(first.check().ok());
}

TEST(Fence, TakingTheTermRemovesWhatEarlierLivesOfThisServerLeft) {
  const TemporaryDirectory folder;
  const auto draft = [&](const char* name) { return folder.path() / name; };
  for (const char* name : {"term.json.tmp-a-17", "term.json.tmp-a-1-17", "term.json.tmp-b-17"})
    spill(draft(name), "{");
  Fence fence(folder.path(), "a");
  fence.open(7, soon());
  ASSERT_TRUE(fence.take().ok());
  EXPECT_FALSE(std::filesystem::exists(draft("term.json.tmp-a-17")));
  EXPECT_TRUE(std::filesystem::exists(draft("term.json.tmp-a-1-17"))) << "of the server 'a-1'";
  EXPECT_TRUE(std::filesystem::exists(draft("term.json.tmp-b-17"))) << "another one may write it";
  EXPECT_TRUE(fence.check().ok());
}

TEST(Fence, AServerWithAnExpiredLeaseTakesNoTerm) {
  const TemporaryDirectory folder;
  Fence old(folder.path(), "a"), young(folder.path(), "b");
  young.open(9, soon());
  old.open(9, std::chrono::steady_clock::now());
  EXPECT_EQ(old.take().error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / Fence::kFile));
  EXPECT_TRUE(young.take().ok());
}

TEST(Fence, AFileThatSaysNothingLetsNobodyWrite) {
  const TemporaryDirectory folder;
  Fence fence(folder.path(), "a");
  fence.open(7, soon());
  for (const char* text : {"", "{", "[]", "{\"term\": \"x\"}", "{\"term\": -1}"}) {
    std::ofstream(folder.path() / Fence::kFile) << text;
    EXPECT_EQ(fence.check().error().code(), ErrorCode::kFailedPrecondition) << text;
    EXPECT_EQ(fence.take().error().code(), ErrorCode::kFailedPrecondition) << text;
  }
}

}  // namespace
}  // namespace centroid::server
