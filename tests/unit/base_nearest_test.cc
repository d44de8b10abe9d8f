#include <gtest/gtest.h>

#include "common/base/nearest.h"

namespace centroid {
namespace {

const std::vector<std::string> kCommands{"checkpoints", "config", "events", "job",
                                         "list",        "status", "workers"};
const std::vector<std::string> kFlags{"--listen", "--checkpoint.every-rounds",
                                      "--checkpoint.every-epochs", "--run-dir", "--lr"};

TEST(Nearest, IsWhatTakesFewEdits) {
  EXPECT_EQ(nearest("chekpoints", kCommands), "checkpoints");
  EXPECT_EQ(nearest("statsu", kCommands), "status");
  EXPECT_EQ(nearest("lst", kCommands), "list");
  EXPECT_EQ(nearest("Jobs", kCommands), "job");
  EXPECT_EQ(nearest("--lisen", kFlags), "--listen");
  EXPECT_EQ(nearest("--run_dri", kFlags), "--run-dir");
  const std::vector<std::string> both{"--run_dir", "--run-dir"};  // as it was written
  EXPECT_EQ(nearest("--run-dirr", both), "--run-dir");
  EXPECT_EQ(nearest("--run_dirr", both), "--run_dir");
}

TEST(Nearest, IsNothingWhereNothingIsNear) {
  for (const char* word : {"banana", "ls", "-h", "", "x", "evaluate", "top"})
    EXPECT_EQ(nearest(word, kCommands), "") << word;
  // Two dashes are no likeness: of four letters two differ.
  for (const char* word : {"--port", "--rl-x", "--", "--x"})
    EXPECT_EQ(nearest(word, kFlags), "") << word;
  EXPECT_EQ(nearest("anything", {}), "");
  EXPECT_EQ(did_you_mean("banana", kCommands), "");
}

TEST(Nearest, IsWhatItBeginsOrEnds) {
  EXPECT_EQ(nearest("check", kCommands), "checkpoints");
  EXPECT_EQ(nearest("con", kCommands), "config");
  EXPECT_EQ(nearest("--every-rounds", kFlags), "--checkpoint.every-rounds");
  EXPECT_EQ(nearest("--checkpoint-every-epochs", kFlags), "--checkpoint.every-epochs");
  // Two begin so, and nobody knows which was meant.
  EXPECT_EQ(nearest("--check", kFlags), "");
  EXPECT_EQ(did_you_mean("check", kCommands), "; did you mean \"checkpoints\"?");
  EXPECT_EQ(did_you_mean("--checkpoint-every", kFlags),
            "; did you mean \"--checkpoint.every-rounds\", \"--checkpoint.every-epochs\"?");
  const std::vector<std::string> many{"--api.listen", "--api.token", "--api.rate", "--api.tls"};
  EXPECT_EQ(did_you_mean("--api", many),
            "; did you mean \"--api.listen\", \"--api.token\", \"--api.rate\", ...?");
}

}  // namespace
}  // namespace centroid
