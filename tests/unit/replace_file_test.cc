#include "common/checkpoint/replace_file.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/faulty_storage.h"
#include "tests/unit/temporary_directory.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kOld = "what was there", kNew = "what comes instead, which is longer";

class ReplaceFile : public ::testing::Test {
 protected:
  fs::path path() const { return folder_.path() / "file.json"; }
  Status replace(const std::string& text,
                 Replacement how = Replacement{fault::Stem("test")}) const {
    return replace_file(path(), text, how);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& one : fs::directory_iterator(folder_.path()))
      out.push_back(one.path().filename().string());
    return out;
  }
  unsigned mode() const {
    struct stat about{};
    EXPECT_EQ(::stat(path().c_str(), &about), 0);
    return about.st_mode & 0777u;
  }
  TemporaryDirectory folder_;
};

TEST_F(ReplaceFile, MakesAFileAndPutsAnotherInItsPlace) {
  for (const std::string& text : {kOld, kNew, std::string(), std::string("x"), kOld}) {
    ASSERT_TRUE(replace(text).ok());
    EXPECT_EQ(slurp(path()), text);
    EXPECT_THAT(names(), ElementsAre("file.json"));
  }
}

TEST_F(ReplaceFile, TheRightsAreTheWritersWhateverWasThere) {
  Replacement secret{fault::Stem("test")};
  secret.mode = 0600;
  spill(path(), kOld);
  spill(path().string() + ".tmp", "a draft that all may read");
  ASSERT_EQ(::chmod((path().string() + ".tmp").c_str(), 0666), 0);
  ASSERT_TRUE(replace(kNew, secret).ok());
  EXPECT_EQ(mode(), 0600u);
}

TEST_F(ReplaceFile, ADraftThatIsALinkIsNotFollowed) {
  const fs::path other = folder_.path() / "other";
  spill(other, "of somebody else");
  fs::create_symlink(other, path().string() + ".tmp");
  ASSERT_TRUE(replace(kNew).ok());
  EXPECT_EQ(slurp(other), "of somebody else");
  EXPECT_FALSE(fs::is_symlink(path()));
}

// Every operation fails once: the old content stays, or the new one is there; a draft never stays.
TEST_F(ReplaceFile, FailureAtAnyOperationLeavesOneOfTheTwo) {
  int operations = 0;
  for (int fail_at = 1;; ++fail_at) {
    ASSERT_LT(fail_at, 50);
    spill(path(), kOld);
    operations = 0;
    std::string failed;
    Status done;
    {
      const test::ScopedFaults hook([&](std::string_view operation, const fs::path&) {
        if (test::is_query(operation) || ++operations != fail_at) return 0;
        failed = operation;
        return ENOSPC;
      });
      done = replace(kNew);
    }
    SCOPED_TRACE("operation " + std::to_string(fail_at) + ": " + failed);
    if (done.ok()) break;
    EXPECT_EQ(done.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(done.error().message(), HasSubstr(folder_.path().string()));
    EXPECT_THAT(names(), ElementsAre("file.json"));
    const bool has_its_name = failed == "sync_directory";
    EXPECT_EQ(slurp(path()), has_its_name ? kNew : kOld);
  }
  EXPECT_EQ(slurp(path()), kNew);
  EXPECT_EQ(operations, 8);  // remove, create, 2 writes, sync, close, rename, the folder's sync
}

TEST_F(ReplaceFile, WhereItIsSaidSoFailureMeansThatThereIsNone) {
  Replacement sure{fault::Stem("test")};
  sure.is_undone_if_unsure = true;
  const test::ScopedFaults hook([&](std::string_view operation, const fs::path& at) {
    return operation == "sync_directory" && at == folder_.path() ? EIO : 0;
  });
  EXPECT_EQ(replace(kNew, sure).error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(names(), ElementsAre());
}

// The process dies before each operation; the next call takes away what it left.
TEST_F(ReplaceFile, DeathAtAnyOperationLeavesOneOfTheTwo) {
  bool left_a_draft = false;
  for (int die_at = 1;; ++die_at) {
    ASSERT_LT(die_at, 50);
    ASSERT_TRUE(replace(kOld).ok());
    ASSERT_THAT(names(), ElementsAre("file.json"));
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int operations = 0;
      const test::ScopedFaults hook([&](std::string_view, const fs::path&) {
        if (++operations == die_at) ::_exit(9);
        return 0;
      });
      ::_exit(replace(kNew).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 0) break;
    ASSERT_EQ(WEXITSTATUS(status), 9);
    EXPECT_THAT(slurp(path()), AnyOf(kOld, kNew)) << die_at;
    EXPECT_EQ(slurp(path()) == kNew, die_at > 7) << die_at;
    left_a_draft |= names().size() == 2;
  }
  EXPECT_TRUE(left_a_draft);
}

TEST_F(ReplaceFile, IsAskedLastAndMayRefuse) {
  spill(path(), kOld);
  Replacement fenced{fault::Stem("test")};
  fenced.draft = folder_.path() / "mine";
  std::string draft;
  fenced.may = [&]() -> Status {
    draft = slurp(fenced.draft);
    return Error(ErrorCode::kAborted, "deposed");
  };
  EXPECT_EQ(replace(kNew, fenced).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(draft, kNew);
  EXPECT_EQ(slurp(path()), kOld);
  fenced.may = [] { return Status(); };
  EXPECT_TRUE(replace(kNew, fenced).ok());
  EXPECT_EQ(slurp(path()), kNew);
  EXPECT_THAT(names(), ElementsAre("file.json"));
}

TEST_F(ReplaceFile, ADirectoryInTheWayIsNamedAndStays) {
  fs::create_directory(path().string() + ".tmp");
  const Status refused = replace(kNew);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("file.json.tmp"));
  EXPECT_THAT(names(), ElementsAre("file.json.tmp"));
}

}  // namespace
}  // namespace centroid
