#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/rows/row_rules.h"
#include "server/rows/row_table.h"
#include "tests/unit/read_frozen.h"

namespace centroid::server {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

RowSpec spec_of(RowRule rule, std::uint32_t dim = 16) {
  RowSpec spec;
  spec.name = "emb";
  spec.dim = dim;
  spec.rule = rule;
  spec.learning_rate = 0.1;
  spec.initializer = *RowInitializer::parse("uniform:0.05");
  spec.seed = 7;
  return spec;
}

Floats pulled(RowTable& table, const Keys& keys, std::uint64_t now = 0) {
  Floats out(keys.size() * table.spec().dim);
  table.pull(keys, out, now);
  return out;
}

/// One row of the reference, in double.
struct Reference {
  std::vector<double> w, z, n;
  double sum = 0;
  double rate = 0;  ///< of the step before
};

Reference new_reference(const RowSpec& spec, std::uint64_t key) {
  Floats initial(spec.dim);
  initial_row(spec, key, initial);
  Reference row;
  row.w.assign(initial.begin(), initial.end());
  row.rate = spec.learning_rate;
  row.z.resize(spec.dim);
  row.n.resize(spec.dim);
  for (std::size_t i = 0; i < spec.dim; ++i)
    if (row.w[i] != 0)
      row.z[i] = -row.w[i] * (spec.ftrl_beta / spec.learning_rate + spec.l2) -
                 std::copysign(spec.l1, row.w[i]);
  return row;
}

void step(const RowSpec& spec, Reference& row, std::span<const double> g, double rate) {
  double squares = 0;
  for (const double x : g) squares += x * x;
  row.sum += squares / spec.dim;
  for (std::size_t i = 0; i < spec.dim; ++i) {
    if (spec.rule == RowRule::kSgd) row.w[i] -= rate * g[i];
    if (spec.rule == RowRule::kAdagrad)
      row.w[i] -= rate * g[i] / (std::sqrt(row.sum) + spec.epsilon);
    if (spec.rule != RowRule::kFtrl) continue;
    const double next = row.n[i] + g[i] * g[i];
    const double before = (spec.ftrl_beta + std::sqrt(row.n[i])) / row.rate;
    const double sigma = (spec.ftrl_beta + std::sqrt(next)) / rate - before;
    row.z[i] += g[i] - sigma * row.w[i];
    row.n[i] = next;
    const double z = row.z[i];
    row.w[i] = std::fabs(z) <= spec.l1 ? 0
                                       : -(z - std::copysign(spec.l1, z)) /
                                             ((spec.ftrl_beta + std::sqrt(next)) / rate + spec.l2);
  }
  row.rate = rate;
}

TEST(RowTable, FollowsAReferenceInDouble) {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng rng(seed);
    constexpr std::array kRules{RowRule::kSgd, RowRule::kAdagrad, RowRule::kFtrl};
    RowSpec spec = spec_of(kRules[seed % 3], static_cast<std::uint32_t>(1 + rng.below(33)));
    spec.admit_after = static_cast<std::uint32_t>(1 + rng.below(3));
    if (seed % 2 == 0) spec.l2 = 0.5;
    RowTable table(spec);
    std::map<std::uint64_t, Reference> rows;
    std::map<std::uint64_t, std::uint32_t> seen;
    for (int push = 0; push < 40; ++push) {
      Keys keys(1 + rng.below(64));
      Floats gradients(keys.size() * spec.dim);
      std::map<std::uint64_t, std::vector<double>> sums;  // a key may come twice
      for (auto& key : keys) key = rng.below(200) << (rng.below(2) * 30);
      for (auto& g : gradients) g = static_cast<float>(rng.normal());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        auto& sum = sums[keys[i]];
        sum.resize(spec.dim);
        for (std::size_t c = 0; c < spec.dim; ++c) sum[c] += gradients[i * spec.dim + c];
      }
      ASSERT_TRUE(table.push(keys, gradients, 0).ok());
      for (const auto& [key, sum] : sums) {
        if (++seen[key] < spec.admit_after) continue;
        if (!rows.contains(key)) rows[key] = new_reference(spec, key);
        step(spec, rows[key], sum, spec.learning_rate);
      }
    }
    ASSERT_EQ(table.rows(), rows.size());
    for (const auto& [key, count] : seen) {
      const Floats values = pulled(table, {key});
      const auto expected = rows.contains(key) ? rows[key].w : new_reference(spec, key).w;
      for (std::size_t c = 0; c < spec.dim; ++c)
        ASSERT_NEAR(values[c], expected[c], 2e-4) << "key " << key << " column " << c;
    }
  }
}

/// ||w - w64|| / ||w64|| after a thousand updates of 64 rows.
double error_after_a_thousand(const RowSpec& spec) {
  const auto schedule = *LearningRateSchedule::parse(spec.schedule);
  CounterRng rng(8);
  RowTable table(spec);
  Keys keys(64);
  std::vector<Reference> rows;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = i * 7919;
    rows.push_back(new_reference(spec, keys[i]));
  }
  Floats gradients(keys.size() * spec.dim);
  for (std::uint64_t push = 1; push <= 1000; ++push) {
    for (auto& g : gradients) g = static_cast<float>(rng.normal());
    EXPECT_TRUE(table.push(keys, gradients, 0, push).ok());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto first = gradients.begin() + static_cast<std::ptrdiff_t>(i * spec.dim);
      const std::vector<double> gradient(first, first + spec.dim);
      step(spec, rows[i], gradient, spec.learning_rate * schedule.factor(push));
    }
  }
  const Floats values = pulled(table, keys);
  double error = 0, length = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = rows[i / spec.dim].w[i % spec.dim];
    error += (values[i] - expected) * (values[i] - expected);
    length += expected * expected;
  }
  return std::sqrt(error / length);
}

TEST(RowTable, AThousandUpdatesStayWithinAMillionthOfTheReference) {
  for (const char* const schedule :
       {"constant", "cosine:rounds=1000,warmup=50,floor=0.01", "step:every=200"})
    for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kFtrl})
      for (const double l1 : {0.0, 0.5}) {
        if (rule != RowRule::kFtrl && l1 > 0) continue;
        RowSpec spec = spec_of(rule);
        spec.l1 = l1;
        spec.l2 = 0.01;
        spec.schedule = schedule;
        const double error = error_after_a_thousand(spec);
        std::printf("%s: ||w - w64|| / ||w64|| = %.2e\n", to_string(spec).c_str(), error);
        EXPECT_LE(error, 1e-6) << to_string(spec);
      }
}

TEST(RowTable, AnotherRateMovesNoValueAndIsFollowedFromThenOn) {
  for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kFtrl}) {
    RowSpec spec = spec_of(rule);
    if (rule == RowRule::kFtrl) spec.l1 = 0.5;
    RowTable table(spec);
    Reference row = new_reference(spec, 5);
    CounterRng rng(9);
    for (const double rate : {0.1, 0.01, 0.5}) {
      const Floats before = pulled(table, {5});
      spec.learning_rate = rate;
      table.change(spec);
      ASSERT_TRUE(table.push(Keys{5}, Floats(spec.dim, 0.0f), 0).ok());
      EXPECT_EQ(pulled(table, {5}), before) << to_string(rule) << " " << rate;
      for (int push = 0; push < 100; ++push) {
        Floats gradient(spec.dim);
        for (auto& g : gradient) g = static_cast<float>(rng.normal());
        ASSERT_TRUE(table.push(Keys{5}, gradient, 0).ok());
        step(spec, row, std::vector<double>(gradient.begin(), gradient.end()), rate);
      }
      const Floats values = pulled(table, {5});
      for (std::size_t i = 0; i < spec.dim; ++i)
        EXPECT_NEAR(values[i], row.w[i], 2e-5) << to_string(rule) << " " << rate;
    }
  }
}

TEST(RowTable, EachPushHasTheRateOfItsStepWhateverCameBefore) {
  for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kFtrl}) {
    RowSpec spec = spec_of(rule);
    RowSpec plain = spec;
    spec.schedule = "cosine:rounds=100,warmup=10,floor=0.1";
    const auto schedule = *LearningRateSchedule::parse(spec.schedule);
    RowTable table(spec), other(plain);
    CounterRng rng(4);
    for (int push = 0; push < 50; ++push) {
      const std::uint64_t step = 1 + rng.below(120);
      Floats gradient(2 * spec.dim);
      for (auto& g : gradient) g = static_cast<float>(rng.normal());
      ASSERT_TRUE(table.push(Keys{1, 2}, gradient, 0, step).ok());
      plain.learning_rate = spec.learning_rate * schedule.factor(step);
      other.change(plain);
      ASSERT_TRUE(other.push(Keys{1, 2}, gradient, 0, push % 2 == 0 ? 0 : 9).ok());
    }
    EXPECT_EQ(pulled(table, {1, 2}), pulled(other, {1, 2})) << to_string(rule);
  }
}

TEST(RowTable, APushWithoutAStepIsRefusedByAScheduleAndChangesNothing) {
  RowSpec spec = spec_of(RowRule::kSgd);
  spec.schedule = "constant:warmup=3";
  RowTable table(spec);
  const Status silent = table.push(Keys{1}, Floats(16, 1.0f), 0);
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(silent.error().message(), HasSubstr("'emb' has the schedule constant:warmup=3"));
  EXPECT_EQ(table.rows(), 0u);
  EXPECT_TRUE(table.push(Keys{1}, Floats(16, 1.0f), 0, 1).ok());
  spec.schedule = "constant";
  table.change(spec);
  EXPECT_TRUE(table.push(Keys{1}, Floats(16, 1.0f), 0).ok());
}

TEST(RowTable, AtARateOfZeroEveryRowStaysAndGoesOnFromThere) {
  for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kFtrl}) {
    RowSpec spec = spec_of(rule);
    spec.l1 = rule == RowRule::kFtrl ? 0.5 : 0;
    spec.schedule = "linear:rounds=10";  // 0 from step 11 on
    RowTable table(spec);
    const auto push = [&](std::uint64_t step, float gradient) {
      ASSERT_TRUE(table.push(Keys{1}, Floats(16, gradient), 0, step).ok());
    };
    push(1, 0.3f);
    const Floats before = pulled(table, {1});
    for (const float gradient : {1.0f, -3.0f, 1e18f}) push(11, gradient);
    EXPECT_EQ(pulled(table, {1}), before) << to_string(rule);
    push(2, 0.0f);
    EXPECT_EQ(pulled(table, {1}), before) << to_string(rule);
  }
}

TEST(RowTable, APullOfAnUnknownRowGivesItsInitialValuesAndStoresNothing) {
  RowTable table(spec_of(RowRule::kAdagrad));
  const Floats once = pulled(table, {5, 6, 5});
  EXPECT_EQ(table.rows(), 0u);
  EXPECT_TRUE(std::equal(once.begin(), once.begin() + 16, once.begin() + 32));
  EXPECT_FALSE(std::equal(once.begin(), once.begin() + 16, once.begin() + 16));
  for (const float x : once) EXPECT_LE(std::fabs(x), 0.05f);
  ASSERT_TRUE(table.push(Keys{5}, Floats(16, 0.0f), 0).ok());
  EXPECT_EQ(pulled(table, {5, 6, 5}), once);  // a gradient of 0 changes nothing
  RowSpec other = spec_of(RowRule::kAdagrad);
  other.seed = 8;
  RowTable another(other);
  EXPECT_NE(pulled(another, {5, 6, 5}), once);
}

TEST(RowTable, NormalInitialValuesHaveTheirScale) {
  RowSpec spec = spec_of(RowRule::kSgd, 64);
  spec.initializer = *RowInitializer::parse("normal:0.5");
  RowTable table(spec);
  Keys keys(1000);
  std::iota(keys.begin(), keys.end(), 0);
  double sum = 0, squares = 0;
  for (const float x : pulled(table, keys)) sum += x, squares += double{x} * x;
  EXPECT_NEAR(sum / 64'000, 0, 0.01);
  EXPECT_NEAR(squares / 64'000, 0.25, 0.01);
}

std::map<std::uint64_t, Floats> contents(const RowTable& table, std::uint64_t now = 0) {
  std::map<std::uint64_t, Floats> out;
  table.for_each(now, [&](const RowTable::Row& row) {
    EXPECT_TRUE(out.empty() || out.rbegin()->first < row.key);
    Floats& all = out[row.key];
    all.assign(row.values.begin(), row.values.end());
    all.insert(all.end(), row.slots.begin(), row.slots.end());
  });
  return out;
}

TEST(RowTable, TheSameBitsWhateverTheOrderOfGrowth) {
  for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kFtrl}) {
    CounterRng rng(3);
    Keys keys(5000);
    for (auto& key : keys) key = rng.next();
    Floats gradients(keys.size() * 16);
    for (auto& g : gradients) g = static_cast<float>(rng.normal());
    RowTable whole(spec_of(rule)), pieces(spec_of(rule));
    ASSERT_TRUE(whole.push(keys, gradients, 0).ok());
    for (std::size_t i = keys.size(); i-- > 0;)  // one by one, backwards
      ASSERT_TRUE(
          pieces.push(std::span(keys).subspan(i, 1), std::span(gradients).subspan(i * 16, 16), 0)
              .ok());
    EXPECT_EQ(contents(whole), contents(pieces));
  }
}

TEST(RowTable, RestoresExactly) {
  RowSpec spec = spec_of(RowRule::kFtrl);
  spec.max_age = 100;
  RowTable table(spec), copy(spec);
  CounterRng rng(4);
  for (std::uint64_t now = 1; now <= 50; ++now) {
    Keys keys(100);
    for (auto& key : keys) key = rng.below(1000);
    Floats gradients(keys.size() * 16);
    for (auto& g : gradients) g = static_cast<float>(rng.normal());
    ASSERT_TRUE(table.push(keys, gradients, now).ok());
  }
  table.for_each(50, [&](const RowTable::Row& row) { ASSERT_TRUE(copy.restore(row, 50).ok()); });
  EXPECT_EQ(contents(table, 50), contents(copy, 50));
  EXPECT_EQ(contents(table, 120), contents(copy, 120));  // ages too
  EXPECT_LT(contents(copy, 120).size(), contents(copy, 50).size());
  table.for_each(50, [&](const RowTable::Row& row) {
    EXPECT_EQ(copy.restore(row, 50).error().code(), ErrorCode::kAlreadyExists);
  });
}

/// As on a server that has just come, whose clock is behind that of who had the row.
TEST(RowTable, ARowMayBeOlderThanTheClock) {
  RowSpec spec = spec_of(RowRule::kSgd, 2);
  spec.admit_after = 2;
  const Floats values(2);
  for (std::uint32_t age = 0; age < 4; ++age) {
    RowTable table(spec);
    ASSERT_TRUE(table.restore({1, age, 1, values, {}}, 0).ok());
    ASSERT_TRUE(table.restore_candidate(2, age, 1, 0).ok());
    RowTable::Cursor cursor;
    Keys walked;
    EXPECT_FALSE(table.keys(cursor, 100, walked));
    EXPECT_EQ(walked, (Keys{1, 2})) << age;
    table.freeze(0);
    Keys frozen;
    RowTable::Block block;
    while (read_frozen(table, block, 0))
      frozen.insert(frozen.end(), block.keys.begin(), block.keys.end());
    EXPECT_EQ(frozen, (Keys{1, 2})) << age;
  }
}

TEST(RowTable, BadGradientsChangeNothing) {
  RowTable table(spec_of(RowRule::kAdagrad, 2));
  ASSERT_TRUE(table.push(Keys{1}, Floats{1, 2}, 0).ok());
  const auto before = contents(table);
  const auto refused = [&](const Keys& keys, const Floats& gradients) {
    const Status status = table.push(keys, gradients, 0);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(contents(table), before);
    EXPECT_EQ(table.counters().pushed, 1u);
    return status.error().message();
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(refused({1, 9}, {1, 1, 1, kNan}), HasSubstr("key 9, column 1, is nan"));
  EXPECT_THAT(refused({9, 1}, {-kInfinity, 1, 1, 1}), HasSubstr("key 9, column 0, is -inf"));
  EXPECT_THAT(refused({1}, {1.1e18f, 0}), HasSubstr("at most 1e18"));
  EXPECT_THAT(refused({1, 1}, {9e17f, 0, 9e17f, 0}), HasSubstr("the sum of gradients of key 1"));
  EXPECT_THAT(refused({1}, {1, 2, 3}), HasSubstr("1 keys has 3 floats of gradient, not 2"));
  EXPECT_EQ(table.counters().duplicates, 0u);
}

TEST(RowTable, TheLargestGradientsLeaveFiniteRows) {
  for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kFtrl}) {
    RowSpec spec = spec_of(rule, 3);
    for (const double rate : {1e-9, 1.0, 1e6}) {
      spec.learning_rate = rate;
      RowTable table(spec);
      for (int i = 0; i < 1000; ++i) {
        const float sign = i % 3 == 0 ? -1.0f : 1.0f;
        ASSERT_TRUE(table.push(Keys{1}, Floats{sign * 1e18f, -1e18f, sign * 1e-30f}, 0).ok());
      }
      for (const auto& [key, all] : contents(table))
        for (const float x : all) EXPECT_TRUE(std::isfinite(x)) << to_string(rule) << " " << rate;
    }
  }
}

TEST(RowTable, ARowIsStoredByThePushThatAdmitsIt) {
  RowSpec spec = spec_of(RowRule::kSgd, 1);
  spec.admit_after = 3;
  spec.initializer = {};
  RowTable table(spec);
  for (int push = 0; push < 2; ++push) {
    ASSERT_TRUE(table.push(Keys{1, 1}, Floats{1, 1}, 0).ok());  // counts once
    EXPECT_EQ(pulled(table, {1}), Floats{0});
  }
  EXPECT_EQ(table.rows(), 0u);
  EXPECT_EQ(table.candidates(), 1u);
  EXPECT_EQ(table.counters().held_back, 2u);
  ASSERT_TRUE(table.push(Keys{1}, Floats{1}, 0).ok());
  EXPECT_EQ(pulled(table, {1}), Floats{-0.1f});
  EXPECT_EQ(table.rows(), 1u);
  EXPECT_EQ(table.candidates(), 0u);
}

TEST(RowTable, RowsExpireByAgeSweptOrNot) {
  for (const bool sweeps : {false, true}) {
    RowSpec spec = spec_of(RowRule::kSgd, 1);
    spec.max_age = 10;
    spec.initializer = {};
    RowTable table(spec);
    ASSERT_TRUE(table.push(Keys{1, 2}, Floats{1, 1}, 100).ok());
    EXPECT_EQ(pulled(table, {1}, 110), Floats{-0.1f});  // a use
    if (sweeps) table.sweep(1000, 111);
    EXPECT_EQ(contents(table, 111).size(), 1u);
    EXPECT_EQ(pulled(table, {1, 2}, 111), (Floats{-0.1f, 0}));
    EXPECT_EQ(table.rows(), 1u);
    EXPECT_EQ(table.counters().expired, 1u);
  }
}

TEST(RowTable, StaysWithinItsMemoryAndKeepsWhatIsUsed) {
  RowSpec spec = spec_of(RowRule::kAdagrad);
  for (const std::uint32_t admit_after : {1u, 2u}) {
    spec.admit_after = admit_after;
    spec.max_bytes = spec.least_bytes();
    ASSERT_TRUE(spec.check().ok());
    RowTable table(spec);
    Keys hot(64);
    std::iota(hot.begin(), hot.end(), std::uint64_t{1} << 50);
    const Floats gradients(64 * 16, 0.5f);
    CounterRng rng(9);
    for (std::uint64_t turn = 0; turn < 1500; ++turn) {
      Keys cold(64);
      for (auto& key : cold) key = turn * 64 + rng.below(64);
      ASSERT_TRUE(table.push(cold, gradients, turn).ok());
      ASSERT_TRUE(table.push(cold, gradients, turn).ok());
      ASSERT_TRUE(table.push(hot, gradients, turn).ok());
      ASSERT_LE(table.bytes(), spec.max_bytes);
    }
    EXPECT_GT(table.counters().evicted, 1000u);
    const auto left = contents(table);
    for (const std::uint64_t key : hot) EXPECT_TRUE(left.contains(key)) << key;
  }
}

TEST(RowTable, MemoryIsAtMostOneAndAHalfTimesTheValues) {
  RowSpec spec = spec_of(RowRule::kAdagrad);
  RowTable table(spec);
  CounterRng rng(1);
  const Floats gradients(1024 * 16, 0.5f);
  double worst = 0;
  for (int push = 0; push < 120; ++push) {
    Keys keys(1024);
    for (auto& key : keys) key = rng.next();
    ASSERT_TRUE(table.push(keys, gradients, 0).ok());
    const double values = static_cast<double>(table.rows()) * 16 * sizeof(float);
    if (push >= 20) worst = std::max(worst, static_cast<double>(table.bytes()) / values);
  }
  EXPECT_LE(worst, 1.5);
}

TEST(RowSpec, SaysWhatIsWrong) {
  const auto refused = [](auto change) {
    RowSpec spec = spec_of(RowRule::kAdagrad);
    EXPECT_TRUE(spec.check().ok());
    change(spec);
    const Status status = spec.check();
    EXPECT_FALSE(status.ok());
    return status.ok() ? std::string() : status.error().message();
  };
  EXPECT_THAT(refused([](RowSpec& s) { s.name = "a/b"; }), HasSubstr("name is 'a/b'"));
  EXPECT_THAT(refused([](RowSpec& s) { s.dim = 4097; }), HasSubstr("dim is 4097"));
  EXPECT_THAT(refused([](RowSpec& s) { s.learning_rate = 0; }), HasSubstr("learning_rate"));
  EXPECT_THAT(refused([](RowSpec& s) { s.admit_after = 0; }), HasSubstr("admit_after is 0"));
  EXPECT_THAT(refused([](RowSpec& s) { s.max_bytes = 1000; }), HasSubstr("max_bytes is 1000"));
  EXPECT_THAT(refused([](RowSpec& s) { s.l1 = NAN; }), HasSubstr("l1"));
  EXPECT_THAT(refused([](RowSpec& s) { s.schedule = "cosine"; }),
              HasSubstr("table 'emb': learning rate schedule \"cosine\": field \"rounds\""));
  for (const char* bad : {"", "ones", "uniform", "uniform:", "normal:-1", "normal:1x", "zeros:1"})
    EXPECT_FALSE(RowInitializer::parse(bad).ok()) << bad;
  EXPECT_FALSE(parse_row_rule("adam").ok());
}

TEST(RowSpec, TablesAreReadFromTheSetting) {
  const auto tables = parse_tables(
      "users:dim=8;items:dim=16,optimizer=ftrl,lr=0.5,l1=0.1,init=normal:0.01,seed=3,admit_after=2,"
      "max_bytes=100000000,max_age=1000");
  ASSERT_TRUE(tables.ok()) << tables.error().to_string();
  ASSERT_EQ(tables->size(), 2u);
  const RowSpec& users = (*tables)[0];
  const RowSpec& items = (*tables)[1];
  EXPECT_EQ(users.name, "users");
  EXPECT_EQ(users.rule, RowRule::kAdagrad);
  EXPECT_EQ(items.dim, 16u);
  EXPECT_EQ(items.rule, RowRule::kFtrl);
  EXPECT_EQ(items.l1, 0.1);
  EXPECT_EQ(items.initializer.kind, RowInitializer::Kind::kNormal);
  EXPECT_EQ(items.max_age, 1000u);
  EXPECT_EQ(items.schedule, "constant");
  EXPECT_TRUE(parse_tables("")->empty());
  const std::string scheduled =
      "a:dim=2,optimizer=sgd,lr=0.1,schedule=cosine:rounds=100,warmup=5,floor=0.1,seed=3";
  const auto again = parse_tables(scheduled);
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(again->at(0).schedule, "cosine:rounds=100,warmup=5,floor=0.1");
  EXPECT_EQ(again->at(0).seed, 3u);
  EXPECT_EQ(to_string(again->at(0)), scheduled);
  const auto refused = [](std::string_view text) {
    const auto bad = parse_tables(text);
    EXPECT_FALSE(bad.ok()) << text;
    return bad.ok() ? std::string() : bad.error().message();
  };
  EXPECT_THAT(refused("a"), HasSubstr("table 'a': dim is 0"));
  EXPECT_THAT(refused("a:dim=-1"), HasSubstr("'dim=-1': expected a number"));
  EXPECT_THAT(refused("a:dims=1"), HasSubstr("expected one of dim"));
  EXPECT_THAT(refused("a:dim=1,schedule=cosine:rounds=9,dims=1"), HasSubstr("\"dims\" is unknown"));
  EXPECT_THAT(refused("a:schedule=cosine:rounds=9,dim=1,floor=0.1"), HasSubstr("expected one of"));
  EXPECT_THAT(refused("a:dim=1;a:dim=2"), HasSubstr("'a' is there twice"));
  EXPECT_THAT(refused("a:dim=1;;b:dim=2"), HasSubstr("name is ''"));
}

}  // namespace
}  // namespace centroid::server
