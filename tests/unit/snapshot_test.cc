#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checkpoint/checkpoint.h"
#include "tests/unit/store_fixture.h"

namespace centroid::server {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

/// Read one plane in pieces of `step` elements.
std::vector<float> read_plane(Snapshot& snapshot, std::size_t plane, std::size_t total,
                              std::size_t step) {
  std::vector<float> values(total);
  for (std::size_t at = 0; at < total; at += step) {
    const auto into = std::span(values).subspan(at, std::min(step, total - at));
    const Status status = snapshot.read(plane, at, into);
    if (!status.ok()) ADD_FAILURE() << status.error().to_string();
  }
  return values;
}

Planes read_all(Snapshot& snapshot, const Planes& shape, std::size_t step = 13) {
  Planes planes;
  for (std::size_t k = 0; k < shape.size(); ++k)
    planes.push_back(read_plane(snapshot, k, shape[k].size(), step));
  return planes;
}

std::size_t plane_bytes(const ParameterStore& store) {
  return static_cast<std::size_t>(store.plan().total_elements()) * sizeof(float);
}

TEST(Snapshot, KeepsItsVersionThroughRoundsOfBothModes) {
  for (const Mode mode : {Mode::kSwap, Mode::kInPlace}) {
    CounterRng rng(1);
    const auto store = initialized_store(small_plan(), "adam", rng);
    run_round(*store, mode, rng);
    const Planes frozen = planes_of(*store);
    const auto snapshot = store->begin_snapshot(kUnlimited);
    for (int i = 0; i < 3; ++i) run_round(*store, mode, rng);
    EXPECT_NE(planes_of(*store), frozen);
    EXPECT_EQ(snapshot->version(), Version(2));
    EXPECT_EQ(snapshot->optimizer_step(), 1u);
    EXPECT_EQ(read_all(*snapshot, frozen), frozen);
    EXPECT_TRUE(snapshot->is_done());
  }
}

TEST(Snapshot, CopiesOnlyWhatChangesAndFreesWhatWasRead) {
  CounterRng rng(2);
  const auto store = initialized_store(small_plan(), "momentum", rng);
  const std::size_t plane = plane_bytes(*store), alone = 3 * plane;
  const Planes frozen = planes_of(*store);
  auto snapshot = store->begin_snapshot(kUnlimited);
  EXPECT_EQ(store->memory_bytes(), alone);
  run_round(*store, Mode::kSwap,
            rng);  // slots change; the old parameters are spare, not yet written
  EXPECT_EQ(store->memory_bytes(), alone + plane);
  EXPECT_EQ(read_plane(*snapshot, 1, frozen[1].size(), 50), frozen[1]);
  EXPECT_EQ(store->memory_bytes(), alone);

  const Chunk& first = store->plan().chunks()[0];
  EXPECT_EQ(std::as_const(*store).spare(first).size(), first.elements);
  EXPECT_EQ(store->memory_bytes(), alone) << "to read needs no copy";
  (void)store->spare(first);
  EXPECT_EQ(store->memory_bytes(), alone + first.elements * sizeof(float));
  run_round(*store, Mode::kSwap, rng);
  EXPECT_EQ(store->memory_bytes(), alone + plane);
  EXPECT_EQ(read_plane(*snapshot, 0, frozen[0].size(), 50), frozen[0]);
  EXPECT_EQ(store->memory_bytes(), alone);
  EXPECT_TRUE(snapshot->is_done());
  run_round(*store, Mode::kSwap, rng);
  EXPECT_EQ(store->memory_bytes(), alone) << "a finished snapshot costs nothing";
}

TEST(Snapshot, IsOneAtATimeAndBetweenRounds) {
  CounterRng rng(3);
  ParameterStore fresh(small_plan(), optimizer_of("momentum"));
  EXPECT_EQ(fresh.begin_snapshot(kUnlimited), nullptr) << "nothing to save";
  const auto store = initialized_store(small_plan(), "momentum", rng);
  auto snapshot = store->begin_snapshot(kUnlimited);
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(store->begin_snapshot(kUnlimited), nullptr);
  snapshot.reset();
  advance(*store, store->plan().chunks()[0], Mode::kSwap, rng);
  EXPECT_EQ(store->begin_snapshot(kUnlimited), nullptr) << "a slot is ahead of the version";
  for (const Chunk& chunk : store->plan().chunks().subspan(1))
    advance(*store, chunk, Mode::kSwap, rng);
  store->commit_swap();
  EXPECT_NE(store->begin_snapshot(kUnlimited), nullptr);
}

TEST(Snapshot, RefusesWrongRangesAndSecondReads) {
  CounterRng rng(4);
  const auto store = initialized_store(small_plan(), "momentum", rng);
  const std::uint64_t total = store->plan().total_elements();
  const auto snapshot = store->begin_snapshot(kUnlimited);
  std::vector<float> into(5);
  const auto code = [&](std::size_t plane, std::uint64_t offset) {
    const Status status = snapshot->read(plane, offset, into);
    return status.ok() ? std::string("ok") : std::string(to_string(status.error().code()));
  };
  EXPECT_EQ(code(2, 0), "invalid_argument");
  EXPECT_EQ(code(0, total - 4), "invalid_argument");
  EXPECT_EQ(code(1, total), "invalid_argument");
  EXPECT_EQ(code(0, std::numeric_limits<std::uint64_t>::max() - 2), "invalid_argument");
  into.resize(static_cast<std::size_t>(total));
  EXPECT_EQ(code(0, 0), "ok");
  into.resize(1);
  EXPECT_EQ(code(0, 3), "failed_precondition");
  EXPECT_EQ(code(1, 3), "ok");
}

TEST(Snapshot, IsFullUntilTheRestFitsIntoTheBudget) {
  CounterRng rng(5);
  const auto store = initialized_store(small_plan(), "momentum", rng);
  const std::size_t plane = plane_bytes(*store);
  const Planes frozen = planes_of(*store);
  EXPECT_FALSE(store->snapshot_is_full()) << "there is none";
  auto snapshot = store->begin_snapshot(2 * plane);
  EXPECT_FALSE(store->snapshot_is_full());
  snapshot.reset();
  snapshot = store->begin_snapshot(plane);
  EXPECT_TRUE(store->snapshot_is_full());
  EXPECT_EQ(read_plane(*snapshot, 0, frozen[0].size(), 20), frozen[0]);
  EXPECT_FALSE(store->snapshot_is_full());
  run_round(*store, Mode::kSwap, rng);
  run_round(*store, Mode::kSwap, rng);
  EXPECT_FALSE(store->snapshot_is_full());
  EXPECT_EQ(store->memory_bytes(), 4 * plane);
  EXPECT_EQ(read_plane(*snapshot, 1, frozen[1].size(), 20), frozen[1]);
}

TEST(Snapshot, TellsWhenThereIsRoomAndWhenTheNextOneMayBegin) {
  CounterRng rng(5);
  const auto store = initialized_store(small_plan(), "momentum", rng);
  const std::size_t elements = planes_of(*store)[0].size();
  int told = 0;
  auto snapshot = store->begin_snapshot(plane_bytes(*store), [&] { ++told; });
  ASSERT_TRUE(store->snapshot_is_full());
  std::vector<float> half(elements / 2);
  ASSERT_TRUE(snapshot->read(0, 0, half).ok());
  EXPECT_EQ(told, 0);
  std::vector<float> rest(elements - half.size());
  ASSERT_TRUE(snapshot->read(0, half.size(), rest).ok());
  EXPECT_FALSE(store->snapshot_is_full());
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(store->may_begin_snapshot());
  snapshot.reset();
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(store->may_begin_snapshot());
}

TEST(Snapshot, FailsRatherThanGrowBeyondTheBudget) {
  CounterRng rng(6), same_rng(6);
  const auto store = initialized_store(small_plan(), "momentum", rng);
  const auto other = initialized_store(small_plan(), "momentum", same_rng);
  const std::size_t budget = plane_bytes(*store) / 2;
  const auto snapshot = store->begin_snapshot(budget);
  EXPECT_TRUE(store->snapshot_is_full());
  for (const Chunk& chunk : store->plan().chunks()) {
    advance(*store, chunk, Mode::kSwap, rng);
    EXPECT_LE(store->memory_bytes(), 3 * plane_bytes(*store) + budget);
  }
  store->commit_swap();
  EXPECT_EQ(store->memory_bytes(), 3 * plane_bytes(*store));
  EXPECT_TRUE(snapshot->is_done());
  EXPECT_FALSE(store->snapshot_is_full());
  float value = 0;
  const Status status = snapshot->read(0, 0, {&value, 1});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
  run_round(*other, Mode::kSwap, same_rng);
  EXPECT_EQ(planes_of(*store), planes_of(*other)) << "the round goes on";
}

TEST(Snapshot, SurvivesALoadAndTheEndOfTheStore) {
  CounterRng rng(7);
  auto store = initialized_store(small_plan(), "adam", rng);
  run_round(*store, Mode::kSwap, rng);
  const Planes frozen = planes_of(*store);
  const auto snapshot = store->begin_snapshot(kUnlimited);
  const std::vector<float> other(100, 5.0f);
  ASSERT_TRUE(store->load(0, 30, other).ok());
  ASSERT_TRUE(store->load(2, 0, other).ok());
  store.reset();
  EXPECT_EQ(read_all(*snapshot, frozen), frozen);
}

TEST(Snapshot, IsWhatACheckpointWritesAndAStoreLoadsBack) {
  CounterRng rng(8);
  const auto store = initialized_store(small_plan(), "adam", rng);
  run_round(*store, Mode::kSwap, rng);
  const Planes frozen = planes_of(*store);
  const auto snapshot = store->begin_snapshot(kUnlimited);
  run_round(*store, Mode::kInPlace, rng);

  const auto folder = std::filesystem::path(::testing::TempDir()) /
                      ("centroid-snapshot-test-" + std::to_string(::getpid()));
  auto checkpoints = CheckpointDirectory::open(folder, 1);
  ASSERT_TRUE(checkpoints.ok()) << checkpoints.error().to_string();
  CheckpointInfo info;
  info.version = snapshot->version();
  info.optimizer_step = snapshot->optimizer_step();
  info.optimizer = "adam";
  info.slot_names = store->optimizer().slot_names();
  const Manifest& manifest = store->plan().manifest();
  const auto written = checkpoints->write(
      info, manifest, [&](std::size_t plane, std::uint64_t offset, std::span<float> into) {
        return snapshot->read(plane, offset, into);
      });
  ASSERT_TRUE(written.ok()) << written.error().to_string();
  EXPECT_TRUE(snapshot->is_done());

  ParameterStore copy(small_plan(), optimizer_of("adam"));
  const Status loaded =
      checkpoints->read(*written, manifest,
                        [&](std::size_t plane, std::uint64_t offset, std::span<const float> from) {
                          return copy.load(plane, offset, from);
                        });
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  copy.restore(written->info.version, written->info.optimizer_step);
  EXPECT_EQ(planes_of(copy), frozen);
  EXPECT_EQ(copy.version(), Version(2));
  EXPECT_EQ(copy.optimizer_step(), 1u);
  std::filesystem::remove_all(folder);
}

/// Ranges that cover all planes once, in random order.
struct Range3 {
  std::size_t plane, begin, count;
};
std::vector<Range3> random_cover(const Planes& planes, CounterRng& rng) {
  std::vector<Range3> ranges;
  const std::uint64_t longest = 1 + rng.below(90);
  for (std::size_t k = 0; k < planes.size(); ++k) {
    for (std::size_t at = 0; at < planes[k].size();) {
      const auto count = std::min<std::size_t>(1 + rng.below(longest), planes[k].size() - at);
      ranges.push_back({k, at, count});
      at += count;
    }
  }
  for (std::size_t i = ranges.size(); i > 1; --i) std::swap(ranges[i - 1], ranges[rng.below(i)]);
  return ranges;
}

/// A store whose rounds go chunk by chunk, in random order and random mode.
struct Trainer {
  ParameterStore& store;
  CounterRng& rng;
  std::vector<ChunkId> order{};
  Mode mode = Mode::kSwap;
  bool is_between_rounds() const { return order.empty(); }
  void step() {
    if (order.empty()) {
      if (rng.below(8) == 0) return store.commit_unchanged();
      mode = rng.below(2) == 0 ? Mode::kSwap : Mode::kInPlace;
      for (const Chunk& chunk : store.plan().chunks())
        order.insert(order.begin() + static_cast<std::ptrdiff_t>(rng.below(order.size() + 1)),
                     chunk.id);
    }
    advance(store, store.plan().chunk(order.back()), mode, rng);
    order.pop_back();
    if (order.empty()) commit(store, mode);
  }
};

TEST(SnapshotProperty, AlwaysEqualsTheFrozenCopyUnderAnyInterleaving) {
  int finished = 0, dropped = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng rng(seed);
    const std::vector<std::string> names{"sgd", "momentum", "adam"};
    const auto store = initialized_store(small_plan(), names[rng.below(3)], rng);
    const std::uint64_t alone = store->memory_bytes();
    Trainer trainer{*store, rng};
    std::shared_ptr<Snapshot> snapshot;
    Planes frozen;
    std::vector<Range3> cover;
    std::size_t budget = 0;
    const std::uint64_t read_share = rng.below(100);  // who is faster differs per seed
    for (int i = 0; i < 400; ++i) {
      if (!snapshot && trainer.is_between_rounds()) {
        budget = rng.below(2) == 0 ? kUnlimited : rng.below(alone);
        snapshot = store->begin_snapshot(budget);
        ASSERT_NE(snapshot, nullptr);
        frozen = planes_of(*store);
        cover = random_cover(frozen, rng);
      }
      if (snapshot && (store->snapshot_is_full() || rng.below(100) < read_share)) {
        const auto [plane, begin, count] = cover.back();
        cover.pop_back();
        std::vector<float> values(count);
        ASSERT_TRUE(snapshot->read(plane, begin, values).ok());
        ASSERT_TRUE(std::equal(values.begin(), values.end(),
                               frozen[plane].begin() + static_cast<std::ptrdiff_t>(begin)));
        ASSERT_EQ(snapshot->is_done(), cover.empty());
        if (cover.empty() || rng.below(300) == 0) {
          ++(cover.empty() ? finished : dropped);
          snapshot.reset();
          ASSERT_EQ(store->memory_bytes(), alone);
        }
      } else {
        trainer.step();
      }
      ASSERT_LE(store->memory_bytes() - alone, budget);
    }
  }
  EXPECT_GT(finished, 100);
  EXPECT_GT(dropped, 10);
}

TEST(SnapshotProperty, HoldsWhileAnotherThreadReadsAndTheStoreTrains) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng rng(seed);
    const auto store = initialized_store(plan_of({5000, 3, 12000}, 1024), "adam", rng);
    Trainer trainer{*store, rng};
    const bool is_limited = seed % 2 == 0, is_dropped = seed % 5 == 0;
    auto snapshot = store->begin_snapshot(is_limited ? plane_bytes(*store) : kUnlimited);
    const Planes frozen = planes_of(*store);
    std::vector<Range3> cover = random_cover(frozen, rng);
    if (is_dropped) cover.resize(cover.size() / 2);

    std::atomic<bool> is_over = false;
    std::size_t wrong = 0;
    std::thread reader([&, mine = std::move(snapshot)]() mutable {
      for (const auto [plane, begin, count] : cover) {
        std::vector<float> values(count);
        const bool is_right =
            mine->read(plane, begin, values).ok() &&
            std::equal(values.begin(), values.end(),
                       frozen[plane].begin() + static_cast<std::ptrdiff_t>(begin));
        if (!is_right) ++wrong;
      }
      mine.reset();
      is_over = true;
    });
    while (!is_over) {
      if (store->snapshot_is_full())
        std::this_thread::yield();
      else
        trainer.step();
    }
    reader.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(store->memory_bytes(), 4 * plane_bytes(*store));
  }
}

}  // namespace
}  // namespace centroid::server
