// What a worker costs its server when there are many: N workers that compute nothing and one
// centroid-server on loopback, a model of 1 KiB, star and bsp. Processor time of the server for
// each worker and round, which should not depend on N. With --instructions callgrind counts the
// server's instructions instead, which no cache and no neighbour changes.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/bench/bench_run.h"
#include "tests/bench/light_trainers.h"
#include "tests/bench/verdict.h"
#include "tests/support/http_client.h"

namespace centroid::bench {
namespace {

constexpr std::uint64_t kContributions =
    50'000;  // of one N, at least; the server's clock has 10 ms
constexpr std::uint64_t kMinRounds = 10, kWarmUpRounds = 2, kOtherFiles = 256;
constexpr std::uint64_t kCountedContributions = 10'000;  // callgrind is 50 times slower

struct Options {
  std::string workers = "64,256,1024,4000";
  std::uint64_t rounds = 0, parameters = 256;
  double bar = 0, bar_all = 0, bar_us = 0;
  bool instructions = false;
};

/// Of the server, microseconds for each worker and round.
struct Cost {
  std::uint64_t workers = 0, rounds = 0;
  double user = 0, system = 0;
  double round_ms = 0, join_seconds = 0;
  double all() const { return user + system; }
};

std::vector<std::uint64_t> numbers_of(const std::string& list) {
  std::vector<std::uint64_t> numbers;
  const char* const end = list.data() + list.size();
  for (const char* at = list.data();; ++at) {
    std::uint64_t number = 0;
    const auto [behind, failed] = std::from_chars(at, end, number);
    if (failed != std::errc() || number == 0 || (behind < end && *behind != ','))
      fail("--workers is \"" + list + "\" and must be numbers above 0, as 64,256");
    numbers.push_back(number);
    if (behind == end) return numbers;
    at = behind;
  }
}

/// Committed rounds, as the server's REST has them.
std::uint64_t version_of(const ServerProcess& server, std::uint64_t workers) {
  test::HttpClient client(server.api.port);
  const test::HttpReply reply = client.request("GET", "/v1/cluster");
  if (reply.status != 200) fail("GET /v1/cluster: status " + std::to_string(reply.status));
  const auto cluster = nlohmann::json::parse(reply.body);
  const auto world = cluster.at("world").get<std::uint64_t>();
  if (world != workers)
    fail("the server has " + std::to_string(world) + " workers and not " + std::to_string(workers));
  return cluster.at("version").get<std::uint64_t>();
}

std::vector<std::string> server_flags(std::uint64_t workers) {
  const std::string count = std::to_string(workers);
  return {"--min-workers", count,  "--max-workers", count,
          "--lease",       "600s", "--log.level",   "error"};
}

/// Of a server that `workers` join for so many rounds.
std::uint64_t instructions_of(const Options& options, std::uint64_t workers, std::uint64_t rounds) {
  const Folder folder;
  const std::string counts = folder.path() / "callgrind";
  ServerProcess server =
      start_server(folder.path(), server_flags(workers), "127.0.0.1", "", {},
                   {"valgrind", "--quiet", "--tool=callgrind", "--callgrind-out-file=" + counts});
  LightTrainers(server.data, workers, options.parameters).run(rounds);
  server.child.stop();
  std::ifstream file(counts);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("totals: ")) return std::stoull(line.substr(8));
  fail("callgrind counted nothing in " + counts);
}

/// Two runs of which one is longer: joins and the end cost both the same.
int count_instructions(const Options& options, const std::vector<std::uint64_t>& counts) {
  std::printf("%-10s %8s %14s\n", "workers", "rounds", "instructions");
  double first = 0, ratio = 1;
  for (const std::uint64_t workers : counts) {
    const std::uint64_t rounds =
        options.rounds > 0 ? options.rounds : std::max(kMinRounds, kCountedContributions / workers);
    const auto longer = instructions_of(options, workers, 2 * rounds);
    const auto shorter = instructions_of(options, workers, rounds);
    const double each =
        static_cast<double>(longer - shorter) / static_cast<double>(workers * rounds);
    std::printf("%-10llu %8llu %14.0f\n", static_cast<unsigned long long>(workers),
                static_cast<unsigned long long>(rounds), each);
    std::fflush(stdout);
    if (first == 0) first = each;
    ratio = each / first;
  }
  std::printf("the last to the first: %.2f times\n", ratio);
  return verdict("instructions", ratio, Bar::kAtMost, options.bar, "times");
}

Cost measure(const Options& options, std::uint64_t workers) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const Folder folder;
  const ServerProcess server = start_server(folder.path(), server_flags(workers));
  Cost cost;
  cost.workers = workers;
  cost.rounds =
      options.rounds > 0 ? options.rounds : std::max(kMinRounds, kContributions / workers);
  const auto begin = Clock::now();
  LightTrainers trainers(server.data, workers, options.parameters);
  cost.join_seconds = seconds_since(begin);
  trainers.run(kWarmUpRounds);

  const std::uint64_t version = version_of(server, workers);
  const double all_before = server.child.rested_cpu_seconds();
  const CpuTimes before = server.child.cpu_times();
  const auto first = Clock::now();
  trainers.run(cost.rounds);
  cost.round_ms = 1e3 * seconds_since(first) / static_cast<double>(cost.rounds);
  const double all = server.child.rested_cpu_seconds() - all_before;
  const CpuTimes after = server.child.cpu_times();
  if (const auto committed = version_of(server, workers) - version; committed != cost.rounds)
    fail(std::to_string(committed) + " rounds were committed and not " +
         std::to_string(cost.rounds));

  // The sum is exact; the system counts its parts in steps of 10 ms.
  const double user = after.user - before.user, system = after.system - before.system;
  const double share = user + system > 0 ? user / (user + system) : 0;
  const double us = 1e6 * all / static_cast<double>(workers * cost.rounds);
  cost.user = us * share;
  cost.system = us * (1 - share);
  return cost;
}

int run(const Options& options) {
  const std::vector<std::uint64_t> counts = numbers_of(options.workers);
  // Server and workers have one file for each worker.
  raise_file_limit(*std::max_element(counts.begin(), counts.end()) + kOtherFiles);
  if (options.instructions) return count_instructions(options, counts);
  std::printf(
      "a model of %llu bytes, star, bsp; the server's processor time for each worker and "
      "round, us\n",
      static_cast<unsigned long long>(options.parameters * sizeof(float)));
  std::printf("%-10s %8s %8s %8s %8s %14s %10s\n", "workers", "rounds", "user", "system", "all",
              "a round, ms", "join, s");
  std::vector<Cost> costs;
  for (const std::uint64_t workers : counts) {
    const Cost cost = measure(options, workers);
    std::printf("%-10llu %8llu %8.1f %8.1f %8.1f %14.1f %10.1f\n",
                static_cast<unsigned long long>(workers),
                static_cast<unsigned long long>(cost.rounds), cost.user, cost.system, cost.all(),
                cost.round_ms, cost.join_seconds);
    std::fflush(stdout);
    costs.push_back(cost);
  }
  const auto by_workers = [](const Cost& a, const Cost& b) { return a.workers < b.workers; };
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end(), by_workers);
  const double user = most->user / least->user, all = most->all() / least->all();
  std::printf("%llu workers to %llu: user %.2f times, all %.2f times\n",
              static_cast<unsigned long long>(most->workers),
              static_cast<unsigned long long>(least->workers), user, all);
  return std::min(
      1, verdict("user time", user, Bar::kAtMost, options.bar, "times") +
             verdict("all time", all, Bar::kAtMost, options.bar_all, "times") +
             verdict("all time of the fewest", least->all(), Bar::kAtMost, options.bar_us, "us"));
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("workers", &options.workers, {.text = "numbers of workers, separated by commas"});
  schema.field("rounds", &options.rounds,
               {.text = "rounds to measure; 0: 50,000 contributions, and at least 10 rounds",
                .unit = "rounds"});
  schema.field("parameters", &options.parameters,
               {.text = "float32 parameters of the model", .min = 1, .max = 4096});
  schema.field("instructions", &options.instructions,
               {.text = "count the server's instructions with callgrind; the bar is for these"});
  schema.field("bar", &options.bar,
               {.text = "status 1 when the user time of the most workers is more times that of the "
                        "fewest; 0: no bar",
                .min = 0});
  schema.field("bar_all", &options.bar_all,
               {.text = "the same for user and system time", .min = 0});
  schema.field("bar_us", &options.bar_us,
               {.text = "status 1 when one of the fewest workers costs more in a round; 0: no bar",
                .unit = "us",
                .min = 0});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(argc, argv, "centroid-bench-scale",
                             "What a worker costs its server when there are many.", add_fields,
                             run);
}
