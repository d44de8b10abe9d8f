#include "server/tables/row_files.h"

#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/checkpoint/safetensors.h"
#include "tests/unit/read_frozen.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::server {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

RowSpec spec_of(const std::string& text) { return parse_tables(text)->at(0); }

struct Seen {
  std::uint64_t key;
  std::uint32_t age, count;
  Floats values, slots;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> all_of(const RowTable& table, std::uint64_t now) {
  std::vector<Seen> rows;
  table.for_each(now, [&](const RowTable::Row& row) {
    rows.push_back({row.key,
                    row.age,
                    row.count,
                    {row.values.begin(), row.values.end()},
                    {row.slots.begin(), row.slots.end()}});
  });
  return rows;
}

/// A call of a table, to be made again on another.
struct Operation {
  bool is_push = false;
  Keys keys;
  Floats gradients;
  std::uint64_t now = 0;
  void run(RowTable& table) const {
    if (is_push) {
      ASSERT_TRUE(table.push(keys, gradients, now).ok());
      table.sweep(2 * keys.size(), now);
      return;
    }
    Floats out(keys.size() * table.spec().dim);
    table.pull(keys, out, now);
  }
};

Operation draw(CounterRng& rng, std::uint32_t dim, std::uint64_t space, std::uint64_t& now) {
  Operation operation;
  now += rng.below(3);
  operation.now = now;
  operation.is_push = rng.below(4) != 0;
  operation.keys.resize(1 + rng.below(300));
  // Some keys often, most seldom.
  for (auto& key : operation.keys) key = mix64(rng.below(rng.below(2) == 0 ? 50 : space));
  if (operation.is_push) operation.gradients.resize(operation.keys.size() * dim);
  for (auto& g : operation.gradients) g = static_cast<float>(rng.normal());
  return operation;
}

class RowFiles : public testing::Test {
 protected:
  TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "rows-emb.safetensors";
};

TEST_F(RowFiles, HoldTheStateOfOneMomentWhileTheTableGoesOnAndARestoredOneGoesOnAlike) {
  constexpr std::array kTables{
      "emb:dim=5,lr=0.1,init=uniform:0.05",          "emb:dim=3,optimizer=sgd,admit_after=3",
      "emb:dim=4,optimizer=ftrl,l1=0.01,max_age=40", "emb:dim=40,max_bytes=2200000",
      "emb:dim=64,admit_after=2,max_bytes=2200000",
  };
  std::uint64_t evictions = 0, copied = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng rng(seed);
    const RowSpec spec = spec_of(kTables[seed % kTables.size()]);
    const std::uint64_t space = spec.max_bytes != 0 ? 20'000 : 4'000;
    RowTable table(spec), again(spec);
    std::uint64_t now = 0;
    for (int i = 0; i < (spec.max_bytes != 0 ? 400 : 60); ++i)
      draw(rng, spec.dim, space, now).run(table);

    const auto before = all_of(table, now);
    const auto counters = table.counters();
    const RowTable::State state = table.freeze(now);
    std::vector<Operation> later;
    const auto read = [&](RowTable::Block& block) -> Result<bool> {
      for (int i = 0; i < 3; ++i) {
        Operation operation = draw(rng, spec.dim, space, now);
        if (operation.is_push && table.may_evict(operation.keys.size())) continue;
        operation.run(table);
        later.push_back(std::move(operation));
      }
      copied += table.frozen_bytes();
      return read_frozen(table, block, state.now);
    };
    std::filesystem::remove(path);
    const auto written = write_rows(path, spec, state, read);
    ASSERT_TRUE(written.ok()) << written.error().to_string();
    EXPECT_FALSE(table.is_frozen());
    EXPECT_EQ(table.frozen_bytes(), 0u);
    EXPECT_EQ(written->crc32c, file_crc32c(path).value());
    EXPECT_EQ(written->bytes, std::filesystem::file_size(path));

    const auto restored = read_rows(path, again);
    ASSERT_TRUE(restored.ok()) << restored.error().to_string();
    EXPECT_EQ(restored->now, state.now);
    EXPECT_EQ(again.candidates(), state.candidates);
    EXPECT_EQ(again.counters().pushed, counters.pushed);
    ASSERT_EQ(all_of(again, restored->now), before);
    for (int i = 0; i < 60; ++i) {
      later.push_back(draw(rng, spec.dim, space, now));
      later.back().run(table);
    }
    for (const Operation& operation : later) operation.run(again);
    ASSERT_EQ(all_of(again, now), all_of(table, now));
    EXPECT_EQ(again.counters().evicted, table.counters().evicted);
    EXPECT_EQ(again.counters().admitted, table.counters().admitted);
    evictions += table.counters().evicted - counters.evicted;
  }
  EXPECT_GT(evictions, 0u);  // else the seeds say nothing of them
  EXPECT_GT(copied, 0u);
}

TEST_F(RowFiles, AnEmptyTableHasOneToo) {
  const RowSpec spec = spec_of("emb:dim=4,optimizer=sgd");
  RowTable table(spec), again(spec);
  const RowTable::State state = table.freeze(7);
  ASSERT_TRUE(write_rows(path, spec, state, [&](RowTable::Block& block) -> Result<bool> {
                return read_frozen(table, block, 7);
              }).ok());
  const auto restored = read_rows(path, again);
  ASSERT_TRUE(restored.ok()) << restored.error().to_string();
  EXPECT_EQ(again.rows(), 0u);
}

TEST_F(RowFiles, AreRefusedForATableWhoseRowsWouldMeanSomethingElse) {
  const RowSpec spec = spec_of("emb:dim=4,init=uniform:0.05,seed=3");
  RowTable table(spec);
  ASSERT_TRUE(table.push(Keys{1, 2}, Floats(8, 1.0f), 0).ok());
  const RowTable::State state = table.freeze(0);
  ASSERT_TRUE(write_rows(path, spec, state, [&](RowTable::Block& block) -> Result<bool> {
                return read_frozen(table, block, 0);
              }).ok());
  const auto refusal = [&](const std::string& text) {
    RowTable other(spec_of(text));
    const auto read = read_rows(path, other);
    return read.ok() ? "it was read" : read.error().message();
  };
  EXPECT_THAT(refusal("emb:dim=8,init=uniform:0.05,seed=3"), HasSubstr("dim was 4"));
  EXPECT_THAT(refusal("emb:dim=4,init=uniform:0.06,seed=3"), HasSubstr("init was uniform:0.05"));
  EXPECT_THAT(refusal("emb:dim=4,init=uniform:0.05"), HasSubstr("seed was 3"));
  EXPECT_THAT(refusal("emb:dim=4,optimizer=sgd,init=uniform:0.05,seed=3"),
              HasSubstr("optimizer was adagrad"));
  EXPECT_EQ(refusal("emb:dim=4,init=uniform:0.05,seed=3,lr=0.5,max_bytes=9000000,max_age=5"),
            "it was read");
  std::ofstream(path, std::ios::in | std::ios::binary).seekp(60).put('~');
  EXPECT_NE(refusal("emb:dim=4,init=uniform:0.05,seed=3"), "it was read");
}

TEST_F(RowFiles, WhatClientsPushedComesBack) {
  PushWindows windows, again;
  CounterRng rng(11);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t client = 1 + rng.below(40), sequence = 1 + rng.below(2000);
    if (const auto is_new = windows.is_new(client, sequence); is_new.ok() && *is_new)
      windows.mark(client, sequence);
  }
  windows.forget(7);
  EXPECT_EQ(windows.newest(7), 0u);
  PushedRows pushed;
  pushed.clients = windows.entries();
  pushed.journal = 12;
  pushed.server = "b";
  pushed.is_followed = true;
  ASSERT_TRUE(write_pushes(path, pushed).ok());
  const auto read = read_pushes(path);
  ASSERT_TRUE(read.ok()) << read.error().to_string();
  EXPECT_EQ(read->journal, 12u);
  EXPECT_EQ(read->server, "b");
  EXPECT_TRUE(read->is_followed);
  again.restore(read->clients);
  EXPECT_EQ(again.clients(), windows.clients());
  for (std::uint64_t client = 1; client <= 40; ++client) {
    EXPECT_EQ(again.newest(client), windows.newest(client));
    for (std::uint64_t sequence = 1; sequence <= 2000; ++sequence) {
      const auto was = windows.is_new(client, sequence), is = again.is_new(client, sequence);
      ASSERT_EQ(is.ok(), was.ok());
      if (is.ok()) {
        ASSERT_EQ(*is, *was) << client << " " << sequence;
      }
    }
  }
}

}  // namespace
}  // namespace centroid::server
