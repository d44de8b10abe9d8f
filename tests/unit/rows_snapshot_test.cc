#include "server/tables/rows_snapshot.h"

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "tests/support/progress.h"

namespace centroid::server {
namespace {

using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

constexpr std::chrono::seconds kLong{30};
constexpr std::uint32_t kDim = 16;
constexpr double kForHours = 1e-12;  ///< a share so small that the first rest lasts for hours

/// Tables of so many rows each, beside the keys that wait for admission.
std::shared_ptr<RowTables> tables_of(std::uint64_t rows) {
  auto tables = std::make_shared<RowTables>();
  auto specs = parse_tables("emb:dim=16,lr=0.1;seldom:dim=16,optimizer=sgd,admit_after=2");
  Keys keys(rows);
  std::iota(keys.begin(), keys.end(), 1);
  for (RowSpec& spec : *specs) {
    RowTable& table = tables->tables.emplace_back(std::move(spec));
    for (int push = 0; push < 2; ++push)
      EXPECT_TRUE(table.push(keys, Floats(rows * kDim, 0.5f), 0).ok());
    const Keys once{rows + 1, rows + 2, rows + 3};
    EXPECT_TRUE(table.push(once, Floats(3 * kDim, 0.5f), 0).ok());
  }
  return tables;
}

/// What the service does when a client pushes.
void push(RowTables& tables, std::size_t at, const Keys& keys, float gradient) {
  const std::lock_guard lock(tables.mutex);
  RowTable& table = tables.tables[at];
  const std::uint64_t before = table.frozen_bytes();
  EXPECT_TRUE(table.push(keys, Floats(keys.size() * kDim, gradient), 0).ok());
  tables.frozen_bytes += table.frozen_bytes() - before;
}

struct Row {
  bool is_waiting;
  std::uint32_t count;
  Floats values, slots;
  bool operator==(const Row&) const = default;
};
using Rows = std::map<std::pair<std::size_t, std::uint64_t>, Row>;

/// All of a snapshot, as a checkpoint reads it.
Rows read_all(RowsSnapshot& snapshot, const std::function<void()>& each = [] {}) {
  Rows rows;
  RowTable::Block block;
  for (std::size_t table = 0; table < snapshot.states().size(); ++table)
    for (auto more = snapshot.read(table, block); *more; more = snapshot.read(table, block)) {
      const std::size_t n = block.keys.size(), slots = block.slots.size() / n;
      for (std::size_t i = 0; i < n; ++i) {
        Row row{block.is_candidates, block.counts[i], {}, {}};
        if (!block.is_candidates) {
          row.values.assign(&block.values[i * kDim], &block.values[i * kDim] + kDim);
          row.slots.assign(block.slots.data() + i * slots, block.slots.data() + (i + 1) * slots);
        }
        EXPECT_TRUE(rows.emplace(std::pair(table, block.keys[i]), std::move(row)).second);
      }
      each();
    }
  return rows;
}

std::shared_ptr<RowsSnapshot> snapshot_of(const std::shared_ptr<RowTables>& tables,
                                          std::shared_ptr<DutyCycle> duty = nullptr) {
  if (duty) duty->begin();
  return std::make_shared<RowsSnapshot>(tables, 0, PushedRows(), std::move(duty));
}

TEST(RowsSnapshot, HasTheRowsOfOneMomentWhilePushesGoOnAndTheReaderRests) {
  constexpr std::uint64_t kRows = 60'000;  // several pieces
  const auto tables = tables_of(kRows);
  tables->copy_budget = std::uint64_t{1} << 30;
  const Rows before = read_all(*snapshot_of(tables));
  EXPECT_EQ(before.size(), 2 * kRows + 6);

  const auto snapshot = snapshot_of(tables, std::make_shared<DutyCycle>(0.2));
  auto reading = std::async(std::launch::async, [&] { return read_all(*snapshot); });
  CounterRng rng(3);
  std::uint64_t copied = 0;
  while (reading.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    Keys keys(500);
    for (auto& key : keys) key = 1 + rng.below(kRows + 10);  // some are new
    push(*tables, rng.below(2), keys, static_cast<float>(rng.normal()));
    copied = std::max<std::uint64_t>(copied, tables->frozen_bytes);
  }
  EXPECT_TRUE(reading.get() == before);
  EXPECT_GT(copied, 0u);
  EXPECT_EQ(tables->frozen_bytes, 0u);
  EXPECT_FALSE(tables->tables[0].is_frozen() || tables->tables[1].is_frozen());
}

TEST(RowsSnapshot, TheReaderRestsWhereCopiesOfAllThatIsLeftHaveRoom) {
  const auto tables = tables_of(30'000);
  const auto duty = std::make_shared<DutyCycle>(kForHours);
  const auto snapshot = snapshot_of(tables, duty);
  Keys keys(30'000);
  std::iota(keys.begin(), keys.end(), 1);
  tables->copy_budget =
      tables->tables[0].frozen_bytes_at_most() + tables->tables[1].frozen_bytes_at_most();
  for (const std::size_t at : {0, 1}) push(*tables, at, keys, 1.0f);
  EXPECT_GT(tables->frozen_bytes, tables->copy_budget / 2);
  EXPECT_LE(tables->frozen_bytes, tables->copy_budget);
  std::atomic<std::size_t> blocks = 0;
  test::Progress progress;
  const auto count_block = [&] {
    ++blocks;
    progress.notify();
  };
  auto reading =
      std::async(std::launch::async, [&] { return read_all(*snapshot, count_block).size(); });
  EXPECT_TRUE(progress.await([&] { return blocks >= 8; }));  // it rests within the second piece
  for (int turns = 0; turns < 100; ++turns) {                // nobody makes it go on
    const std::lock_guard lock(tables->mutex);
    EXPECT_TRUE(tables->tables[0].is_frozen() || tables->tables[1].is_frozen());
  }
  EXPECT_EQ(reading.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  duty->hurry();
  EXPECT_EQ(reading.get(), 60'006u);
}

TEST(RowsSnapshot, TheReaderHurriesWhenHalfOfTheRoomForCopiesIsTaken) {
  const auto tables = tables_of(60'000);
  const auto duty = std::make_shared<DutyCycle>(kForHours);
  const auto snapshot = snapshot_of(tables, duty);
  Keys keys(30'000);  // half of them
  std::iota(keys.begin(), keys.end(), 30'001);
  push(*tables, 1, keys, 1.0f);
  tables->copy_budget = tables->frozen_bytes + tables->frozen_bytes / 2;
  auto reading = std::async(std::launch::async, [&] { return read_all(*snapshot).size(); });
  EXPECT_EQ(reading.wait_for(kLong), std::future_status::ready) << "it rests";
  duty->hurry();
  EXPECT_EQ(reading.get(), 120'006u);
}

}  // namespace
}  // namespace centroid::server
