#include "worker/parallel/generations.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace centroid::parallel {
namespace {

/// A part of the model; nobody looks into it.
ShardedParameters* part(int& one) { return reinterpret_cast<ShardedParameters*>(&one); }

Held held(std::uint64_t generation, ShardedParameters* parameters) {
  Held out;
  out.generation = generation;
  out.part.parameters = parameters;
  return out;
}

std::vector<Notice> claims(const std::vector<const Generations*>& ranks) {
  std::vector<Notice> out(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i)
    std::ranges::copy(ranks[i]->claim(), out[i].numbers.begin());
  return out;
}

/// Ranks 0 and 1 have parts, and rank 2 waits.
class GenerationsTest : public ::testing::Test {
 protected:
  GenerationsTest() {
    first_.complete(held(1, part(a_)));
    second_.complete(held(1, part(b_)));
    waits_.complete(held(1, nullptr));
  }
  void prepare() {
    first_.prepare(held(2, part(c_)));
    second_.prepare(held(2, part(d_)));
    waits_.prepare(held(2, nullptr));
  }
  int a_ = 0, b_ = 0, c_ = 0, d_ = 0;
  Generations first_, second_, waits_;
};

// Another rank was lost before the others knew it, and in the older group the survivors may lack
// parts that they have in this one.
TEST_F(GenerationsTest, ARankThatWaitsMayBeTheOnlyOneToKnowThatAGroupIsComplete) {
  prepare();
  waits_.complete(held(2, nullptr));
  const auto all = claims({&first_, &second_, &waits_});
  EXPECT_EQ(Generations::newest(all), 2u);
  EXPECT_EQ(all[2].numbers[0], 2u);
  for (Generations* one : {&first_, &second_, &waits_}) {
    const Held own = one->go_back(2);
    EXPECT_EQ(own.generation, 2u);
    EXPECT_EQ(own.part.parameters, one == &first_    ? part(c_)
                                   : one == &second_ ? part(d_)
                                                     : nullptr);
    EXPECT_EQ(one->claim()[0], 2u);
  }
  EXPECT_EQ(first_.present().generation, 0u);  // its memory is free
  EXPECT_EQ(first_.next().generation, 2u);
  EXPECT_EQ(waits_.present().generation, 2u);
}

TEST_F(GenerationsTest, WhereNoRankKnowsTheNextGroupToBeCompleteAllGoBackToThePresentOne) {
  prepare();
  const auto all = claims({&waits_, &second_, &first_});
  EXPECT_EQ(Generations::newest(all), 1u);  // the first that has a part
  EXPECT_EQ(all[1].numbers[0], 1u);
  EXPECT_EQ(first_.go_back(1).part.parameters, part(a_));
  EXPECT_EQ(first_.next().generation, 0u);
  EXPECT_EQ(waits_.go_back(1).generation, 1u);
  EXPECT_EQ(waits_.claim()[0], 1u);
}

TEST_F(GenerationsTest, ARankThatHasNothingOfAGroupClaimsNone) {
  Generations newcomer;
  newcomer.prepare(held(2, part(c_)));
  EXPECT_EQ(Generations::newest(claims({&newcomer, &waits_})), 1u);
  EXPECT_EQ(newcomer.go_back(1).generation, 0u);
  EXPECT_EQ(newcomer.next().generation, 0u);
  EXPECT_EQ(newcomer.claim()[0], 0u);
  first_.clear();
  EXPECT_EQ(first_.claim()[0], 0u);
}

}  // namespace
}  // namespace centroid::parallel
