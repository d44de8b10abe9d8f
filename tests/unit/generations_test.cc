#include "worker/parallel/generations.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace centroid::parallel {
namespace {

using Part = std::shared_ptr<ShardedParameters>;

/// A part of the model; nobody looks into it.
Part part(int& one) {
  return {reinterpret_cast<ShardedParameters*>(&one), [](ShardedParameters*) {}};
}

Held held(std::uint64_t generation, Part parameters) {
  Held out;
  out.generation = generation;
  out.parameters = std::move(parameters);
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
    first_.prepare(held(1, part(a_)));
    second_.prepare(held(1, part(b_)));
    waits_.prepare(held(1, nullptr));
    for (Generations* one : {&first_, &second_, &waits_}) one->complete();
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
  waits_.complete();
  const auto all = claims({&first_, &second_, &waits_});
  EXPECT_EQ(Generations::newest(all), 2u);
  EXPECT_EQ(all[2].numbers[0], 2u);
  for (Generations* one : {&first_, &second_, &waits_}) {
    one->go_back(2);
    const Held& own = one->present();
    EXPECT_EQ(own.generation, 2u);
    EXPECT_EQ(own.parameters, one == &first_ ? part(c_) : one == &second_ ? part(d_) : nullptr);
    EXPECT_EQ(one->claim()[0], 2u);
    EXPECT_EQ(one->next().generation, 0u);  // its memory is free
  }
}

TEST_F(GenerationsTest, AGroupThatWasTheNextOneIsThereUntilALaterOneIsComplete) {
  prepare();
  waits_.complete();
  first_.go_back(2);
  first_.prepare(held(3, part(a_)));
  first_.go_back(2);  // group 3 was lost, too
  EXPECT_EQ(first_.present().parameters, part(c_));
  EXPECT_EQ(first_.claim()[0], 2u);
}

TEST_F(GenerationsTest, WhereNoRankKnowsTheNextGroupToBeCompleteAllGoBackToThePresentOne) {
  prepare();
  const auto all = claims({&waits_, &second_, &first_});
  EXPECT_EQ(Generations::newest(all), 1u);  // the first that has a part
  EXPECT_EQ(all[1].numbers[0], 1u);
  first_.go_back(1);
  EXPECT_EQ(first_.present().parameters, part(a_));
  EXPECT_EQ(first_.next().generation, 0u);
  waits_.go_back(1);
  EXPECT_EQ(waits_.present().generation, 1u);
  EXPECT_EQ(waits_.claim()[0], 1u);
}

TEST_F(GenerationsTest, ARankThatHasNothingOfAGroupClaimsNone) {
  Generations newcomer;
  newcomer.prepare(held(2, part(c_)));
  EXPECT_EQ(Generations::newest(claims({&newcomer, &waits_})), 1u);
  newcomer.go_back(1);
  EXPECT_EQ(newcomer.present().generation, 0u);
  EXPECT_EQ(newcomer.next().generation, 0u);
  EXPECT_EQ(newcomer.claim()[0], 0u);
  first_.clear();
  EXPECT_EQ(first_.claim()[0], 0u);
}

}  // namespace
}  // namespace centroid::parallel
