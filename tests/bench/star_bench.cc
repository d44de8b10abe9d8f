// Rounds of the star exchange with a model that costs nothing to compute, against plain sockets
// that move the same bytes. All contenders take turns in one run. Then the server's memory.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <nlohmann/json.hpp>

#include "common/optim/optimizer.h"
#include "tests/bench/bench_run.h"
#include "tests/bench/raw_star.h"
#include "tests/bench/star_cluster.h"
#include "tests/bench/verdict.h"

namespace centroid::bench {
namespace {

constexpr std::uint32_t kRoundsPerBlock = 3;  // the first block of each contender warms up
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kSpareBytes = 256 * kMiB;

struct Options {
  std::uint64_t workers = 4, parameters = 25'000'000, rounds = 15, credit_bytes = 0;
  std::string apply, optimizer, codec = "f32", codec_down = "f32", host = "127.0.0.1", namespaces;
  double bar = 0;
  bool json = false, memory = true;
};

struct Figures {
  std::vector<double> rounds;           // wall seconds
  std::vector<double> server, members;  // processor seconds per round, a value per block
  double median() const { return quantile(rounds, 0.5); }
  double server_cpu() const { return quantile(server, 0.5); }
  double members_cpu() const { return quantile(members, 0.5); }
};

std::vector<ClusterSettings> clusters_of(const Options& options) {
  ClusterSettings base;
  base.workers = options.workers;
  base.parameters = options.parameters;
  base.codec = options.codec;
  base.codec_down = options.codec_down;
  base.host = options.host;
  base.credit_bytes = options.credit_bytes;
  for (std::size_t at = 0; at < options.namespaces.size();) {
    const std::size_t comma = std::min(options.namespaces.find(',', at), options.namespaces.size());
    base.namespaces.push_back(options.namespaces.substr(at, comma - at));
    at = comma + 1;
  }
  if (!base.namespaces.empty() && base.namespaces.size() <= options.workers)
    fail("fewer namespaces than the server and its workers");
  std::vector<ClusterSettings> clusters;
  const auto add = [&](const std::string& apply, const std::string& optimizer) {
    clusters.push_back(base);
    clusters.back().apply = options.apply.empty() ? apply : options.apply;
    clusters.back().optimizer = options.optimizer.empty() ? optimizer : options.optimizer;
  };
  if (options.codec_down != "f32" || !base.namespaces.empty()) {
    add(options.codec_down == "f32" ? "server" : "worker", "sgd");
    return clusters;
  }
  add("server", "sgd");
  if (!options.apply.empty() || !options.optimizer.empty()) return clusters;
  add("worker", "sgd");
  add("server", "adam");
  return clusters;
}

nlohmann::json compare(std::vector<Contender>& contenders, std::size_t raws,
                       const Options& options) {
  std::vector<Figures> figures(contenders.size());
  for (std::uint64_t done = 0; done < options.rounds; done += kRoundsPerBlock) {
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      const BlockTimes times = contenders[c].run(kRoundsPerBlock);
      if (done == 0) continue;
      figures[c].rounds.insert(figures[c].rounds.end(), times.rounds.begin(), times.rounds.end());
      figures[c].server.push_back(times.server_cpu / kRoundsPerBlock);
      figures[c].members.push_back(times.members_cpu / kRoundsPerBlock);
    }
  }
  nlohmann::json rows = nlohmann::json::array();
  if (!options.json) {
    std::printf("%-37s%25s  %15s  %s\n", "", "wall per round, ms", "cpu, ms",
                "times each raw, wall/server's cpu");
    std::printf("%-37s%8s %8s %8s %8s %8s\n", "", "median", "min", "p99", "server", "others");
  }
  for (std::size_t c = 0; c < contenders.size(); ++c) {
    const Figures& f = figures[c];
    nlohmann::json row = {
        {"name", contenders[c].name()},         {"median_seconds", f.median()},
        {"min_seconds", quantile(f.rounds, 0)}, {"p99_seconds", quantile(f.rounds, 0.99)},
        {"server_cpu_seconds", f.server_cpu()}, {"members_cpu_seconds", f.members_cpu()}};
    if (c >= raws && !contenders[c].members_are_equal())
      fail(contenders[c].name() + ": the workers' parameters differ");
    std::string ratios;
    for (std::size_t r = 0; r < raws; ++r) {
      const double wall = f.median() / figures[r].median(),
                   cpu = f.server_cpu() / figures[r].server_cpu();
      row["times_raw"].push_back({{"wall", wall}, {"server_cpu", cpu}});
      char text[32];
      std::snprintf(text, sizeof text, "  %5.2f/%.2f", wall, cpu);
      ratios += text;
    }
    if (!options.json)
      std::printf("%-37s%8.1f %8.1f %8.1f %8.1f %8.1f %s\n", contenders[c].name().c_str(),
                  1e3 * f.median(), 1e3 * quantile(f.rounds, 0), 1e3 * quantile(f.rounds, 0.99),
                  1e3 * f.server_cpu(), 1e3 * f.members_cpu(), ratios.c_str());
    std::fflush(stdout);
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The server's resident memory as rounds go by.
nlohmann::json watch_memory(Contender& cluster, const ClusterSettings& settings,
                            std::uint32_t rounds, std::uint64_t before, const Options& options) {
  OptimizerConfig config;
  config.name = settings.optimizer;
  const std::size_t slots = make_optimizer(config).value()->slots();
  const double bound =
      static_cast<double>(settings.parameters * sizeof(float) * (2 + slots)) + kSpareBytes;
  nlohmann::json row = {
      {"name", cluster.name()}, {"parameters", settings.parameters}, {"bound_bytes", bound}};
  if (!options.json) std::printf("%-34s", cluster.name().c_str());
  constexpr std::uint32_t kPoints = 5;
  for (std::uint32_t point = 0, done = 0; point <= kPoints; ++point) {
    const std::uint32_t goal = rounds * point / kPoints;
    if (goal > done) (void)cluster.run(goal - done);
    done = goal;
    const std::uint64_t rss = cluster.server().status_bytes("VmRSS");
    row["rss"].push_back({{"rounds", before + done}, {"bytes", rss}});
    if (!options.json)
      std::printf(" %5llu: %.1f", static_cast<unsigned long long>(before + done),
                  static_cast<double>(rss) / kMiB);
    std::fflush(stdout);
  }
  const std::uint64_t peak = cluster.server().status_bytes("VmHWM");
  row["peak_bytes"] = peak;
  if (!options.json)
    std::printf("; peak %.1f, bound %.1f: %s\n", static_cast<double>(peak) / kMiB, bound / kMiB,
                static_cast<double>(peak) <= bound ? "held" : "EXCEEDED");
  return row;
}

int run(const Options& options) {
  const std::uint64_t bytes = options.workers * options.parameters * sizeof(float);
  std::vector<Contender> contenders;
  const std::uint64_t each = options.parameters * sizeof(float);
  if (options.namespaces.empty()) {
    contenders.push_back(make_raw_star(options.workers, bytes, each, RawBuffers::kMemory));
    contenders.push_back(make_raw_star(1, bytes, each, RawBuffers::kMemory));
    contenders.push_back(make_raw_star(options.workers, bytes, each, RawBuffers::kCache));
  }
  const std::size_t raws = contenders.size();
  const auto settings = clusters_of(options);
  for (const ClusterSettings& s : settings) contenders.push_back(make_star_cluster(s));

  if (!options.json)
    std::printf("%llu workers, %llu parameters (%.1f MB each way per worker and round), codec %s\n",
                static_cast<unsigned long long>(options.workers),
                static_cast<unsigned long long>(options.parameters),
                static_cast<double>(options.parameters) * sizeof(float) / 1e6,
                options.codec.c_str());
  nlohmann::json result = {
      {"workers", options.workers}, {"parameters", options.parameters}, {"codec", options.codec}};
  result["rounds"] = compare(contenders, raws, options);
  if (options.memory) {
    constexpr std::uint32_t kLargeRounds = 45, kSmallRounds = 1000;
    if (!options.json) std::printf("\nserver's resident MiB after so many rounds\n");
    result["memory"] = nlohmann::json::array();
    for (std::size_t c = 0; c < settings.size(); ++c)
      result["memory"].push_back(
          watch_memory(contenders[raws + c], settings[c], kLargeRounds, options.rounds, options));
    ClusterSettings small = settings.front();
    small.parameters = 10'000;
    Contender cluster = make_star_cluster(small);
    if (!options.json)
      std::printf("with %llu parameters\n", static_cast<unsigned long long>(small.parameters));
    result["memory"].push_back(watch_memory(cluster, small, kSmallRounds, 0, options));
  }
  if (options.json) std::printf("%s\n", result.dump(2).c_str());
  double slowest = 0;
  for (std::size_t c = raws; c < contenders.size(); ++c)
    slowest = std::max(slowest, result["rounds"][c]["median_seconds"].get<double>());
  return verdict("median of the slowest cluster", 1e3 * slowest, Bar::kAtMost, options.bar, "ms",
                 options.json ? stderr : stdout);
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("workers", &options.workers,
               {.text = "worker processes", .unit = "workers", .min = 1, .max = kMaxMembers});
  schema.field("parameters", &options.parameters,
               {.text = "float32 parameters of the model", .min = 10});
  schema.field("rounds", &options.rounds,
               {.text = "rounds of each contender, in blocks of 3; the first block is dropped",
                .unit = "rounds",
                .min = 4});
  schema.field("apply", &options.apply,
               {.text = "measure only this one: who applies the optimizer",
                .choices = {"", "server", "worker"}});
  schema.field("optimizer", &options.optimizer,
               {.text = "measure only this one: update rule",
                .choices = {"", "sgd", "momentum", "nesterov", "adam", "adamw"}});
  schema.field("codec", &options.codec, {.text = "of the contributions, as a worker takes it"});
  schema.field("codec_down", &options.codec_down,
               {.text = "of the results, as the server takes it; then only the workers apply"});
  schema.field("host", &options.host, {.text = "address at which the server listens"});
  schema.field("namespaces", &options.namespaces,
               {.text = "network namespaces, separated by commas: the server's, then one a worker; "
                        "no plain sockets then"});
  schema.field("credit_bytes", &options.credit_bytes,
               {.text = "the server's setting of that name; 0: its default", .unit = "bytes"});
  schema.field("bar", &options.bar,
               {.text = "exit status 1 when the median of a cluster's rounds is above; 0: none",
                .unit = "ms",
                .min = 0.0});
  schema.field("memory", &options.memory,
               {.text = "then watch the server's memory over more rounds"});
  schema.field("json", &options.json, {.text = "print one JSON document instead of tables"});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(
      argc, argv, "centroid-bench-star",
      "Rounds of the star exchange against plain sockets that move the same bytes.", add_fields,
      run);
}
