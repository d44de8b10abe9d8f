#include "common/checkpoint/journal_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace centroid::journal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Rounds 1 to `rounds` of a run, one chunk each.
Contents contents(const std::string& folder, const std::string& terms, const std::string& run_id,
                  std::uint64_t rounds) {
  Contents out;
  out.folder = folder;
  Base base;
  base.run_id = run_id;
  base.terms = terms;
  out.bases.push_back(base);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    Contents::Ended ended;
    ended.round = Round(round);
    ended.is_commit = true;
    ended.has = ended.needed = 1;
    ended.route = out.routes.size() - 1;
    out.ended.push_back(ended);
  }
  return out;
}

/// Whose second chunk lies on server b.
Contents leader() {
  Contents out = contents("journal", "terms", "now", 5);
  out.routes.back().servers = {"", "b"};
  out.routes.back().owners = {0, 1};
  return out;
}

TEST(JournalMatch, OneOfAnotherRunCountsAsNotThere) {
  const Match stale = match(leader(), {contents("old", "server=b", "before", 5)}, Round(0));
  EXPECT_THAT(stale.absent, ElementsAre("b"));
  EXPECT_THAT(stale.problems, IsEmpty());
  EXPECT_THAT(stale.sound, IsEmpty());
  const Match beside = match(
      leader(), {contents("old", "server=b", "before", 5), contents("it", "server=b", "now", 5)},
      Round(0));
  EXPECT_THAT(beside.absent, IsEmpty());
  EXPECT_THAT(beside.sound, ElementsAre("b"));
  EXPECT_THAT(beside.problems, IsEmpty());
}

TEST(JournalMatch, EveryCopyIsCompared) {
  const Contents whole = contents("whole", "server=b", "now", 5);
  const Contents cut = contents("cut", "server=b", "now", 3);
  for (const auto& others : {std::vector{whole, cut}, std::vector{cut, whole}}) {
    const Match copies = match(leader(), others, Round(0));
    EXPECT_THAT(copies.problems, ElementsAre(HasSubstr("server 'b' in cut does not have it, and "
                                                       "ends with round 3; so for 1 more")));
    EXPECT_THAT(copies.sound, IsEmpty());
  }
  EXPECT_THAT(match(leader(), {whole, whole}, Round(0)).sound, ElementsAre("b"));
}

TEST(JournalMatch, OneThatIsDamagedIsNeitherSoundNorAbsent) {
  Contents damaged = contents("it", "server=b", "before", 0);  // what stands behind may be of now
  damaged.damage = "altered";
  const Match known = match(leader(), {damaged}, Round(0));
  EXPECT_THAT(known.absent, IsEmpty());
  EXPECT_THAT(known.sound, IsEmpty());
  EXPECT_THAT(known.problems, IsEmpty());
}

}  // namespace
}  // namespace centroid::journal
