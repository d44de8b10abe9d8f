#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "server/aggregate/robust.h"

/// The distance of a robust aggregate from the mean of the honest contributions, as the literature
/// bounds it: a rule is (F, k)-robust if for every S of n - F of n contributions, with mean m,
/// |result - m|^2 <= k * mean over S of |x - m|^2 (Allouah et al. 2023, definition 2).
///
/// trimmed_mean  k = F / (n - 2F). Proof, for one coordinate: of all numbers in order, number j is
///               at most number j of S and at least number j - F of S. So the result lies between
///               the means of the n - 2F smallest and of the n - 2F largest of S. Let a be the sum
///               of x - m over the largest; over the F others it is -a. By Cauchy-Schwarz
///               a^2 / (n - 2F) + a^2 / F <= the sum of (x - m)^2.
/// median        k = floor(n / 2) / (ceil(n / 2) - F). Proof: at least ceil(n / 2) - F of S are not
///               below a median above m, and not above one below m; then as before.
/// nnm           k = 8F / (n - F) * (1 + k of the rule behind it) = 8F / (n - 2F) (lemma 5 there).
///
/// The bounds published for the first two are weaker: 6F / (n - 2F) * (1 + F / (n - 2F)) and
/// 4 * (1 + F / (n - 2F))^2. Squares of distances are sums over coordinates: what is true of each
/// coordinate, or of each chunk, is true of the model.
namespace centroid::server {
namespace {

using Rows = std::vector<std::vector<float>>;

struct Bounded {
  std::string text;
  double bound;
};

std::vector<Bounded> rules(std::size_t count, std::size_t trim) {
  const auto n = static_cast<double>(count), f = static_cast<double>(trim);
  const std::string number = std::to_string(trim);
  return {{"trimmed_mean:" + number, f / (n - 2 * f)},
          {"median", std::floor(n / 2) / (std::ceil(n / 2) - f)},
          {"nnm_trimmed_mean:" + number, 8 * f / (n - 2 * f)}};
}

std::vector<float> result_of(const std::string& text, const Rows& rows) {
  std::vector<const float*> addresses;
  for (const auto& row : rows) addresses.push_back(row.data());
  std::vector<float> out(rows[0].size());
  RobustMean(AggregateRule::parse(text).value())
      .combine(std::span<const float* const>(addresses), out);
  return out;
}

struct Distance {
  double squares;  ///< of the result from the mean of S
  double spread;   ///< mean over S of the squares of the distance from it
  double largest;  ///< number in S
};

Distance distance(const std::vector<float>& result, const Rows& rows, const std::vector<bool>& in) {
  Distance found{};
  const auto size = static_cast<double>(std::count(in.begin(), in.end(), true));
  for (std::size_t i = 0; i < result.size(); ++i) {
    double mean = 0;
    for (std::size_t r = 0; r < rows.size(); ++r)
      if (in[r]) mean += double{rows[r][i]} / size;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (!in[r]) continue;
      found.spread += std::pow(double{rows[r][i]} - mean, 2) / size;
      found.largest = std::max(found.largest, std::abs(double{rows[r][i]}));
    }
    found.squares += std::pow(double{result[i]} - mean, 2);
  }
  return found;
}

/// For every S that may be the honest ones. Returns the largest part of the bound that is used.
double check(const Rows& rows, std::size_t trim) {
  double most = 0;
  for (const Bounded& rule : rules(rows.size(), trim)) {
    const auto result = result_of(rule.text, rows);
    std::vector<bool> in(rows.size(), true);
    std::fill_n(in.begin(), trim, false);
    do {
      const Distance at = distance(result, rows, in);
      const double rounding = 1e-6 * at.largest * std::sqrt(static_cast<double>(result.size()));
      EXPECT_LE(std::sqrt(at.squares), std::sqrt(rule.bound * at.spread) + rounding) << rule.text;
      if (at.spread > 1e-9) most = std::max(most, at.squares / (rule.bound * at.spread));
    } while (std::next_permutation(in.begin(), in.end()));
  }
  return most;
}

TEST(RobustBound, IsReachedAndNeverPassedOnSmallNumbers) {
  for (std::size_t count = 3; count <= 6; ++count)
    for (std::size_t trim = 1; 2 * trim < count; ++trim) {
      SCOPED_TRACE(std::to_string(count) + " rows, " + std::to_string(trim) + " false");
      double most = 0;
      Rows rows(count, std::vector<float>(1));
      for (unsigned digits = 0; digits < 1u << 2 * count; ++digits) {
        for (std::size_t r = 0; r < count; ++r)
          rows[r][0] = static_cast<float>(digits >> 2 * r & 3);
        most = std::max(most, check(rows, trim));
        if (testing::Test::HasFailure()) return;
      }
      EXPECT_NEAR(most, 1, 1e-6);  // trimmed_mean, with F ones among zeros
    }
}

/// What the false workers send who know all the others' numbers.
enum class Attack { kSignFlip, kLittle, kInnerProduct, kMimic, kZero, kFar, kBeside, kCount };

std::vector<float> lie(Attack attack, const Rows& honest, CounterRng& random) {
  const std::size_t n = honest[0].size();
  std::vector<float> lies(n);
  const auto count = static_cast<double>(honest.size());
  const std::size_t chosen = random.below(honest.size());
  const double much = random.uniform() * 3;
  for (std::size_t i = 0; i < n; ++i) {
    double mean = 0, squares = 0;
    for (const auto& row : honest) mean += double{row[i]} / count;
    for (const auto& row : honest) squares += std::pow(double{row[i]} - mean, 2) / count;
    double x = 0;
    switch (attack) {
      case Attack::kSignFlip:
        x = -much * 10 * mean;
        break;
      case Attack::kLittle:
        x = mean - much * std::sqrt(squares);
        break;  // Baruch et al. 2019
      case Attack::kInnerProduct:
        x = -much / 3 * mean;
        break;  // Xie et al. 2019
      case Attack::kMimic:
        x = double{honest[chosen][i]};
        break;  // Karimireddy et al. 2022
      case Attack::kFar:
        x = i % 2 == 0 ? 1e30 : -3e38;
        break;
      case Attack::kBeside:
        x = double{honest[chosen][i]} + (i == 0 ? much * 20 : 0);
        break;
      default:
        break;
    }
    lies[i] = static_cast<float>(x);
  }
  return lies;
}

/// Workers with dissimilar data: each has a centre of its own, some far from the others.
TEST(RobustBound, HoldsForDissimilarWorkersUnderEveryAttack) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    CounterRng random(seed, 5);
    const std::size_t count = 3 + random.below(7), trim = 1 + random.below((count - 1) / 2);
    const auto attack = static_cast<Attack>(seed % static_cast<std::uint64_t>(Attack::kCount));
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(count) + " rows, " +
                 std::to_string(trim) + " false, attack " +
                 std::to_string(static_cast<int>(attack)));
    Rows rows(count - trim, std::vector<float>(1 + random.below(60)));
    for (auto& row : rows) {
      const double centre = random.normal(), scale = random.below(4) == 0 ? 10 : 0.1;
      for (float& x : row) x = static_cast<float>(centre + scale * random.normal());
    }
    const Rows honest = rows;
    for (std::size_t f = 0; f < trim; ++f) rows.push_back(lie(attack, honest, random));
    check(rows, trim);
    if (HasFailure()) return;
  }
}

/// Of a model in chunks, each with neighbours of its own.
TEST(RobustBound, HoldsForAModelOfManyChunks) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng random(seed, 6);
    const std::size_t count = 5 + random.below(4), trim = 1 + random.below(2), n = 60;
    const std::size_t part = 1 + random.below(20);
    Rows rows(count, std::vector<float>(n));
    for (auto& row : rows)
      for (std::size_t i = 0; i < n; ++i)
        row[i] = static_cast<float>(random.normal() * (random.below(9) == 0 ? 50 : 1));
    for (const Bounded& rule : rules(count, trim)) {
      std::vector<float> result;
      for (std::size_t at = 0; at < n; at += part) {
        Rows cut;
        for (const auto& row : rows)
          cut.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(at),
                           row.begin() + static_cast<std::ptrdiff_t>(std::min(at + part, n)));
        std::ranges::copy(result_of(rule.text, cut), std::back_inserter(result));
      }
      std::vector<bool> in(count, true);
      std::fill_n(in.begin(), trim, false);
      do {
        const Distance at = distance(result, rows, in);
        ASSERT_LE(at.squares, rule.bound * at.spread * (1 + 1e-5)) << rule.text;
      } while (std::next_permutation(in.begin(), in.end()));
    }
  }
}

}  // namespace
}  // namespace centroid::server
