#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/checkpoint/pieces.h"
#include "worker/parallel/element_map.h"
#include "worker/parallel/mesh.h"
#include "worker/parallel/shard_layout.h"

namespace centroid::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ranks = std::vector<std::uint32_t>;

template <class T>
std::string refusal(const Result<T>& result) {
  return result.ok() ? "not refused" : result.error().to_string();
}

TEST(ParallelMesh, AxesInAnyOrderAndTensorRanksAreNeighbours) {
  const auto mesh = Mesh::parse("pp=2,tp=2,dp=3", 12);
  ASSERT_TRUE(mesh.ok()) << refusal(mesh);
  EXPECT_EQ(mesh->text(), "dp=3,pp=2,tp=2");
  EXPECT_EQ(mesh->world(), 12u);
  EXPECT_EQ(mesh->place_of(7), (Place{.data = 0, .pipeline = 1, .tensor = 1}));
  EXPECT_THAT(mesh->ranks_along(Axis::kTensor, 7), ElementsAre(6, 7));
  EXPECT_THAT(mesh->ranks_along(Axis::kData, 7), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh->ranks_along(Axis::kPipeline, 7), ElementsAre(1, 7));
}

TEST(ParallelMesh, WithoutTextAllRanksAreDataParallel) {
  EXPECT_EQ(Mesh::parse("", 5)->text(), "dp=5,pp=1,tp=1");
  EXPECT_EQ(Mesh::parse("tp=4", 4)->text(), "dp=1,pp=1,tp=4");
}

TEST(ParallelMesh, BadOnesAreRefusedWithTheNumbers) {
  EXPECT_THAT(refusal(Mesh::parse("dp=2,pp=2,tp=2", 6)),
              AllOf(HasSubstr("2 x 2 x 2 must be 6"), HasSubstr("more ranks")));
  EXPECT_THAT(refusal(Mesh::parse("dp=2", 6)),
              AllOf(HasSubstr("2 x 1 x 1 must be 6"), HasSubstr("fewer ranks")));
  EXPECT_THAT(refusal(Mesh::parse("dp=4294967295,pp=4294967295,tp=4294967295", 6)),
              HasSubstr("more ranks than the 6"));
  EXPECT_THAT(refusal(Mesh::parse("dp=2,dp=3", 6)), HasSubstr("dp is there twice"));
  EXPECT_THAT(refusal(Mesh::parse("xp=2", 2)), HasSubstr("xp=2 is not an axis"));
  for (const char* text : {"dp", "dp=2,", ",", "=", "dp2"})
    EXPECT_THAT(refusal(Mesh::parse(text, 2)), HasSubstr("is not an axis and its size")) << text;
  for (const char* text : {"dp=0", "dp=-1", "dp=", "dp=2x", "dp= 2", "dp=4294967296"})
    EXPECT_THAT(refusal(Mesh::parse(text, 2)), HasSubstr("whole number from 1 on")) << text;
  EXPECT_THAT(refusal(Mesh::parse("", 0)), HasSubstr("no ranks"));
}

TEST(ParallelMesh, FewerWorkersHaveTheStagesFirstAndTheRestWaits) {
  const auto expect = [](const char* wanted, std::uint32_t world, std::uint32_t workers,
                         const char* mesh, std::uint32_t next) {
    SCOPED_TRACE(std::string(wanted) + " of " + std::to_string(workers));
    const Mesh whole = *Mesh::parse(wanted, world);
    const auto fit = whole.fit(workers);
    EXPECT_EQ(fit ? fit->text() : "none", mesh);
    EXPECT_EQ(whole.next_size(workers).value_or(0), next);
  };
  expect("dp=2,pp=2", 4, 1, "dp=1,pp=1,tp=1", 2);
  expect("dp=2,pp=2", 4, 2, "dp=1,pp=2,tp=1", 4);
  expect("dp=2,pp=2", 4, 3, "dp=1,pp=2,tp=1", 4);
  expect("dp=2,pp=2", 4, 4, "dp=2,pp=2,tp=1", 0);
  expect("dp=2,pp=2", 4, 9, "dp=2,pp=2,tp=1", 0);
  expect("dp=3,pp=3", 9, 2, "dp=1,pp=2,tp=1", 3);
  expect("dp=3,pp=3", 9, 8, "dp=2,pp=3,tp=1", 9);
  expect("dp=2,pp=2,tp=2", 8, 1, "none", 2);
  expect("dp=2,pp=2,tp=2", 8, 3, "dp=1,pp=1,tp=2", 4);
  expect("dp=2,pp=2,tp=2", 8, 7, "dp=1,pp=2,tp=2", 8);
}

// No mesh is smaller with one worker more, and the next size is the first that is larger.
TEST(ParallelMesh, GrowsWithTheWorkersUpToTheWholeOne) {
  for (std::uint32_t data = 1; data <= 4; ++data)
    for (std::uint32_t stages = 1; stages <= 4; ++stages)
      for (std::uint32_t parts = 1; parts <= 3; ++parts) {
        const std::string text = "dp=" + std::to_string(data) + ",pp=" + std::to_string(stages) +
                                 ",tp=" + std::to_string(parts);
        const Mesh whole = *Mesh::parse(text, data * stages * parts);
        const auto size = [&](std::uint32_t workers) {
          const auto mesh = whole.fit(workers);
          return mesh ? mesh->world() : 0;
        };
        for (std::uint32_t workers = 1; workers <= whole.world() + 2; ++workers) {
          SCOPED_TRACE(text + " of " + std::to_string(workers));
          EXPECT_LE(size(workers), std::min(workers, whole.world()));
          EXPECT_GE(size(workers), size(workers - 1));
          const std::uint32_t next = whole.next_size(workers).value_or(0);
          EXPECT_EQ(next == 0, workers >= whole.world());
          if (next == 0) {
            EXPECT_EQ(size(workers), whole.world());
          } else {
            EXPECT_GT(size(next), size(workers));
            EXPECT_EQ(size(next - 1), size(workers));
          }
        }
      }
}

// Each axis divides the ranks into groups that agree, and a place names one rank.
TEST(ParallelMesh, EveryRankIsOnceInEachAxis) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto pick = [&](std::uint64_t which) {
      return static_cast<std::uint32_t>(1 + mix64(seed, which) % 5);
    };
    const std::uint32_t dp = pick(0), pp = pick(1), tp = pick(2), world = dp * pp * tp;
    const auto mesh = Mesh::parse(
        "dp=" + std::to_string(dp) + ",pp=" + std::to_string(pp) + ",tp=" + std::to_string(tp),
        world);
    ASSERT_TRUE(mesh.ok()) << refusal(mesh);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      ASSERT_EQ(mesh->rank_of(mesh->place_of(rank)), rank);
      for (const Axis axis : {Axis::kData, Axis::kPipeline, Axis::kTensor}) {
        const Ranks group = mesh->ranks_along(axis, rank);
        ASSERT_EQ(group.size(), mesh->size(axis));
        ASSERT_EQ(std::count(group.begin(), group.end(), rank), 1) << to_string(axis);
        for (const std::uint32_t other : group)
          ASSERT_EQ(mesh->ranks_along(axis, other), group) << to_string(axis);
      }
    }
  }
}

TEST(Sharding, GroupsOfEachStrategy) {
  const auto of = [](const char* text) { return *Sharding::parse(text, 4); };
  for (const char* text : {"full", "grad"}) {
    EXPECT_THAT(of(text).shard_ranks(2, 4), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(of(text).replica_ranks(2, 4), ElementsAre(2));
  }
  EXPECT_THAT(of("none").shard_ranks(2, 4), ElementsAre(2));
  EXPECT_THAT(of("none").replica_ranks(2, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(of("hybrid:2").shard_ranks(2, 4), ElementsAre(2, 3));
  EXPECT_THAT(of("hybrid:2").replica_ranks(2, 4), ElementsAre(0, 2));
  EXPECT_THAT(of("hybrid:2").replica_ranks(1, 4), ElementsAre(1, 3));
  EXPECT_TRUE(of("hybrid:2").shards_parameters());
  EXPECT_FALSE(of("grad").shards_parameters());
  for (const char* text : {"full", "grad", "none", "hybrid:2"}) EXPECT_EQ(of(text).text(), text);
}

TEST(Sharding, BadOnesAreRefusedWithTheNumbers) {
  EXPECT_THAT(refusal(Sharding::parse("hybrid:3", 4)),
              AllOf(HasSubstr("divide the 4"), HasSubstr("is 3")));
  for (const char* text : {"hybrid:0", "hybrid:", "hybrid:x", "hybrid:8"})
    EXPECT_THAT(refusal(Sharding::parse(text, 4)), HasSubstr("must divide the 4")) << text;
  for (const char* text : {"", "Full", "hybrid"})
    EXPECT_THAT(refusal(Sharding::parse(text, 4)), HasSubstr("full, grad, none or hybrid:K"));
}

std::vector<Range> shards(std::uint64_t items, std::uint32_t ranks) {
  std::vector<Range> out;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) out.push_back(shard_of(items, ranks, rank));
  return out;
}

TEST(Shards, TheFirstRanksGetTheRemainder) {
  EXPECT_THAT(shards(100, 3), ElementsAre(Range{0, 34}, Range{34, 33}, Range{67, 33}));
  EXPECT_THAT(shard_counts(10, 3), ElementsAre(4, 3, 3));
  EXPECT_THAT(shard_counts(9, 2), ElementsAre(5, 4));
  EXPECT_THAT(shard_counts(7, 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(shard_counts(10, 4), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(shard_counts(4, 2), ElementsAre(2, 2));
  EXPECT_THAT(shard_counts(2, 4), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(shard_counts(0, 2), ElementsAre(0, 0));
}

TEST(Shards, TheOldRuleGivesTheRemainderToTheLast) {
  EXPECT_EQ(shard_of(10, 3, 0, Remainder::kLast), (Range{0, 3}));
  EXPECT_EQ(shard_of(10, 3, 1, Remainder::kLast), (Range{3, 3}));
  EXPECT_EQ(shard_of(10, 3, 2, Remainder::kLast), (Range{6, 4}));
}

TEST(Shards, RoundRobin) {
  EXPECT_THAT(round_robin(10, 2, 0), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(round_robin(10, 2, 1), ElementsAre(1, 3, 5, 7, 9));
  EXPECT_THAT(round_robin(7, 3, 0), ElementsAre(0, 3, 6));
  EXPECT_THAT(round_robin(7, 3, 1), ElementsAre(1, 4));
  EXPECT_THAT(round_robin(7, 3, 2), ElementsAre(2, 5));
  EXPECT_THAT(round_robin(2, 4, 1), ElementsAre(1));
  EXPECT_THAT(round_robin(2, 4, 3), ElementsAre());
  EXPECT_THAT(round_robin(24, 4, 0), ElementsAre(0, 4, 8, 12, 16, 20));
}

TEST(Shards, AreCompleteDisjointAndDifferByOneAtMost) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::uint64_t items = seed == 1   ? 10'007
                                : seed == 2 ? 1'000'003
                                            : mix64(seed, 0) >> (mix64(seed, 1) % 64);
    const auto ranks = static_cast<std::uint32_t>(1 + mix64(seed, 2) % 40);
    std::uint64_t position = 0;
    for (const Range& shard : shards(items, ranks)) {
      ASSERT_EQ(shard.begin, position);
      ASSERT_LE(shard.count - items / ranks, 1u);
      position = shard.end();
    }
    ASSERT_EQ(position, items);
  }
}

TEST(Reshard, MovesTheElementsToTheirNewRanks) {
  EXPECT_THAT(reshard(8, 2, 4), ElementsAre(Move{0, 0, {0, 2}}, Move{0, 1, {2, 2}},
                                            Move{1, 2, {4, 2}}, Move{1, 3, {6, 2}}));
  EXPECT_THAT(reshard(8, 4, 2), ElementsAre(Move{0, 0, {0, 2}}, Move{1, 0, {2, 2}},
                                            Move{2, 1, {4, 2}}, Move{3, 1, {6, 2}}));
  // 1..9 on three ranks becomes 1..5 and 6..9.
  EXPECT_THAT(reshard(9, 3, 2), ElementsAre(Move{0, 0, {0, 3}}, Move{1, 0, {3, 2}},
                                            Move{1, 1, {5, 1}}, Move{2, 1, {6, 3}}));
  EXPECT_THAT(reshard(1, 4, 3), ElementsAre(Move{0, 0, {0, 1}}));
  EXPECT_TRUE(reshard(0, 4, 3).empty());
}

TEST(Reshard, EveryElementMovesOnceFromItsOwnerToItsOwner) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::uint64_t elements = mix64(seed, 0) % 100;
    const auto from = static_cast<std::uint32_t>(1 + mix64(seed, 1) % 9);
    const auto to = static_cast<std::uint32_t>(1 + mix64(seed, 2) % 9);
    std::uint64_t position = 0;
    for (const Move& move : reshard(elements, from, to)) {
      ASSERT_EQ(move.elements.begin, position);
      ASSERT_GT(move.elements.count, 0u);
      position = move.elements.end();
      const Range source = shard_of(elements, from, move.from);
      const Range target = shard_of(elements, to, move.to);
      ASSERT_TRUE(source.begin <= move.elements.begin && position <= source.end());
      ASSERT_TRUE(target.begin <= move.elements.begin && position <= target.end());
    }
    ASSERT_EQ(position, elements);
  }
}

TEST(ShardLayout, UnitsAreWholeLayersAndSmallOnesAreCoalesced) {
  const auto layout =
      ShardLayout::make({{"a.w", 100, 0}, {"a.b", 3, 0}, {"b.w", 2, 1}, {"c.w", 100, 2}}, 4, 105);
  ASSERT_TRUE(layout.ok()) << refusal(layout);
  ASSERT_EQ(layout->units().size(), 2u);
  EXPECT_EQ(layout->units()[0].parameters, (Range{0, 3}));
  EXPECT_EQ(layout->units()[0].elements, (Range{0, 105}));
  EXPECT_EQ(layout->units()[0].layers, 2u);
  EXPECT_EQ(layout->units()[1].elements, (Range{105, 100}));
  EXPECT_EQ(layout->unit_of(2), 0u);
  EXPECT_EQ(layout->unit_of(3), 1u);
  EXPECT_EQ(layout->within_unit(2), (Range{103, 2}));
  EXPECT_EQ(layout->within_unit(3), (Range{0, 100}));
  EXPECT_EQ(layout->shard(0, 0), (Range{0, 27}));
  EXPECT_EQ(layout->shard(0, 1), (Range{27, 26}));
  EXPECT_EQ(layout->shard_elements(0), 52u);
  EXPECT_EQ(layout->elements(), 205u);
  EXPECT_EQ(layout->largest_unit(), 105u);
}

TEST(ShardLayout, FiftySmallParametersAreFewerThanTenUnits) {
  std::vector<ParameterShape> parameters;
  for (std::uint32_t i = 0; i < 50; ++i) parameters.push_back({"bias", 10 + i, i});
  EXPECT_LT(ShardLayout::make(parameters, 4)->units().size(), 10u);
}

// Four ranks, a parameter of a million elements with two planes of state: 8 MB become 2 MB.
TEST(ShardLayout, OptimizerStateIsDividedByTheRanks) {
  const auto layout = ShardLayout::make({{"w", 1'000'000, 0}}, 4);
  EXPECT_EQ(layout->elements() * 2 * sizeof(float), 8'000'000u);
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(layout->shard_elements(rank) * 2 * sizeof(float), 2'000'000u);
}

TEST(ShardLayout, AParameterMayHaveFewerElementsThanRanks) {
  const auto layout = ShardLayout::make({{"scale", 1, 0}}, 5);
  EXPECT_EQ(layout->shard(0, 0), (Range{0, 1}));
  for (std::uint32_t rank = 1; rank < 5; ++rank) EXPECT_EQ(layout->shard(0, rank), (Range{1, 0}));
}

TEST(ShardLayout, BadModelsAreRefusedByName) {
  EXPECT_THAT(refusal(ShardLayout::make({{"w", 1, 0}}, 0)), HasSubstr("no ranks"));
  EXPECT_THAT(refusal(ShardLayout::make({}, 2)), HasSubstr("no parameters"));
  EXPECT_THAT(refusal(ShardLayout::make({{"w", 1, 0}, {"b", 0, 0}}, 2)),
              HasSubstr("parameter 1 (b) has no elements"));
  EXPECT_THAT(refusal(ShardLayout::make({{"w", 1, 3}, {"b", 1, 2}}, 2)),
              HasSubstr("parameter 1 (b) is of layer 2 and follows one of layer 3"));
  EXPECT_THAT(refusal(ShardLayout::make({{"w", ~0ull, 0}, {"b", 1, 0}}, 2)),
              HasSubstr("up to parameter 1 (b)"));
}

TEST(ShardLayout, UnitsAndShardsCoverEveryElementOnce) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<ParameterShape> parameters;
    std::uint32_t layer = 0;
    for (std::uint64_t i = 0, count = 1 + mix64(seed, 0) % 30; i < count; ++i) {
      layer += static_cast<std::uint32_t>(mix64(seed, 10 + i) % 2);
      parameters.push_back({"p", 1 + mix64(seed, 100 + i) % 50, layer});
    }
    const auto ranks = static_cast<std::uint32_t>(1 + mix64(seed, 1) % 7);
    const std::uint64_t least = mix64(seed, 2) % 80;
    const auto layout = ShardLayout::make(parameters, ranks, least);
    ASSERT_TRUE(layout.ok()) << refusal(layout);
    std::uint64_t position = 0, parameter = 0, sharded = 0;
    for (std::size_t unit = 0; unit < layout->units().size(); ++unit) {
      const ShardLayout::Unit& one = layout->units()[unit];
      ASSERT_EQ(one.elements.begin, position);
      ASSERT_EQ(one.parameters.begin, parameter);
      if (unit + 1 < layout->units().size()) {
        ASSERT_GE(one.elements.count, least);
        ASSERT_NE(parameters[one.parameters.end() - 1].layer,
                  parameters[one.parameters.end()].layer);
      }
      std::uint64_t within = 0;
      for (; parameter < one.parameters.end(); ++parameter) {
        ASSERT_EQ(layout->unit_of(parameter), unit);
        ASSERT_EQ(layout->within_unit(parameter), (Range{within, parameters[parameter].elements}));
        within += parameters[parameter].elements;
      }
      ASSERT_EQ(within, one.elements.count);
      position = one.elements.end();
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) sharded += layout->shard_elements(rank);
    ASSERT_EQ(parameter, parameters.size());
    ASSERT_EQ(position, layout->elements());
    ASSERT_EQ(sharded, layout->elements());
  }
}

/// The elements of the model that each of these has, and whether it is the one that writes them.
std::vector<std::pair<std::uint64_t, bool>> listed(const ElementMap& map, Range elements) {
  std::vector<std::pair<std::uint64_t, bool>> out;
  for (const ElementMap::Run& run : map.runs(elements)) {
    EXPECT_EQ(run.at, out.size());
    for (std::uint64_t i = 0; i < run.elements.count; ++i)
      out.emplace_back(run.elements.begin + i, run.is_own);
  }
  return out;
}

TEST(ElementMap, PartsHaveRowsColumnsOrAllOfATensor) {
  const auto tensors = [](Shape rows, Shape columns) {
    return Manifest{{"first", DType::kF32, {2}},
                    {"rows", DType::kF32, std::move(rows)},
                    {"columns", DType::kF32, std::move(columns)},
                    {"whole", DType::kF32, {2}}};
  };
  const Manifest model = tensors({3, 2}, {2, 3});
  const std::vector<Manifest> parts = {tensors({2, 2}, {2, 2}), tensors({1, 2}, {2, 1})};
  const Range own{1, 3};  // a stage
  using Elements = std::vector<std::pair<std::uint64_t, bool>>;
  const Elements low = {{2, true}, {3, true},  {4, true},  {5, true},  {8, true},
                        {9, true}, {11, true}, {12, true}, {14, true}, {15, true}};
  const Elements high = {{6, true}, {7, true}, {10, true}, {13, true}, {14, false}, {15, false}};
  EXPECT_EQ(listed(ElementMap(model, own, parts, 0), {0, 10}), low);
  EXPECT_EQ(listed(ElementMap(model, own, parts, 1), {0, 6}), high);
  EXPECT_EQ(listed(ElementMap(model, own, parts, 0), {3, 4}),
            Elements(low.begin() + 3, low.begin() + 7));
  const auto all = ElementMap(model, own, {}, 0).runs({1, 9});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].elements, (Range{3, 9}));
}

// A header of safetensors has at most 100 MB, which a piece for each row would exceed.
TEST(ElementMap, TheColumnsOfALargeModelAreFewPiecesOfACheckpoint) {
  constexpr std::uint64_t kWidth = 5120, kTensor = 8, kData = 3;  // of 13 G parameters
  Manifest model;
  std::vector<Manifest> parts(kTensor);
  for (int layer = 0; layer < 40; ++layer) {
    for (const std::uint64_t columns : {3 * kWidth, 4 * kWidth}) {
      model.push_back({"w" + std::to_string(model.size()), DType::kF32, {kWidth, columns}});
      for (Manifest& part : parts) {
        part.push_back(model.back());
        part.back().shape.back() /= kTensor;
      }
    }
  }
  const ElementMap map(model, {0, model.size()}, parts, 5);
  const std::uint64_t elements = elements_of(parts[5]);
  for (std::uint32_t rank = 0; rank < kData; ++rank) {
    std::vector<ElementRun> runs;
    for (const ElementMap::Run& run : map.runs(shard_of(elements, kData, rank)))
      runs.push_back({run.elements.begin, run.elements.count, nullptr});
    EXPECT_GT(runs.size(), kWidth);
    const Manifest pieces = pieces_of(model, runs);
    EXPECT_EQ(elements_of(pieces), shard_of(elements, kData, rank).count);
    EXPECT_LE(pieces.size(), model.size() / kData + 5);
  }
}

}  // namespace
}  // namespace centroid::parallel
