// What the journal and running checkpoints cost a round: the same cluster with and without, taking
// turns.

#include <cstdio>

#include "tests/bench/bench_run.h"
#include "tests/bench/star_cluster.h"
#include "tests/bench/verdict.h"

namespace centroid::bench {
namespace {

struct Options {
  std::uint64_t workers = 2, parameters = 25'000'000, rounds = 96, block = 24;
  std::string optimizer = "momentum";
  bool check = false;
};

constexpr double kCheckpointBar = 1.10;  // a round beside a checkpoint that is being written

int run(const Options& options) {
  if (options.rounds <= options.block)
    fail("--rounds must be more than --block: the first block is dropped");
  const Folder folder;
  struct Way {
    const char* name;
    std::vector<std::string> flags;
    std::vector<double> rounds, cpu;
  };
  std::vector<Way> ways{
      {"neither", {}, {}, {}},
      {"journal, fdatasync every second", {"--journal.mode", "on"}, {}, {}},
      {"journal, fdatasync every round", {"--journal.mode", "on", "--journal.sync", "0"}, {}, {}},
      {"a checkpoint after each",
       {"--checkpoint.every-rounds", "1", "--checkpoint.keep", "1"},
       {},
       {}},
  };
  std::vector<Contender> contenders;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ClusterSettings settings;
    settings.workers = options.workers;
    settings.parameters = options.parameters;
    settings.optimizer = options.optimizer;
    settings.run_dir = (folder.path() / std::to_string(i)).string();
    settings.server_flags = ways[i].flags;
    contenders.push_back(make_star_cluster(settings));
  }
  for (std::uint64_t done = 0; done < options.rounds; done += options.block)
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const BlockTimes times = contenders[i].run(static_cast<std::uint32_t>(options.block));
      if (done == 0) continue;
      ways[i].rounds.insert(ways[i].rounds.end(), times.rounds.begin(), times.rounds.end());
      ways[i].cpu.push_back(times.server_cpu / static_cast<double>(options.block));
    }
  std::printf("%llu workers, %llu parameters, %s applied by the server; folder %s\n",
              static_cast<unsigned long long>(options.workers),
              static_cast<unsigned long long>(options.parameters), options.optimizer.c_str(),
              folder.path().c_str());
  std::printf("%-34s %21s  %8s  %s\n", "", "wall per round, ms", "cpu, ms", "times the first");
  std::printf("%-34s %6s %6s %7s  %8s\n", "", "median", "min", "p90", "server");
  for (const Way& way : ways)
    std::printf("%-34s %6.0f %6.0f %7.0f  %8.0f  %.2f\n", way.name, 1e3 * quantile(way.rounds, 0.5),
                1e3 * quantile(way.rounds, 0), 1e3 * quantile(way.rounds, 0.9),
                1e3 * quantile(way.cpu, 0.5),
                quantile(way.rounds, 0.5) / quantile(ways.front().rounds, 0.5));
  const int missed = verdict("a round while a checkpoint is written",
                             quantile(ways.back().rounds, 0.5) / quantile(ways.front().rounds, 0.5),
                             Bar::kAtMost, kCheckpointBar, "times that without");
  return options.check && missed > 0 ? 1 : 0;
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("workers", &options.workers,
               {.text = "worker processes", .unit = "workers", .min = 1, .max = kMaxMembers});
  schema.field("parameters", &options.parameters,
               {.text = "float32 parameters of the model", .min = 10});
  schema.field("rounds", &options.rounds,
               {.text = "rounds of each, in blocks; the first block is dropped",
                .unit = "rounds",
                .min = 4});
  schema.field("block", &options.block,
               {.text = "rounds before another one has its turn; one of fewer than a checkpoint "
                        "takes pays for all its copies",
                .unit = "rounds",
                .min = 1,
                .max = 1000});
  schema.field("optimizer", &options.optimizer, {.text = "update rule"});
  schema.field("check", &options.check, {.text = "exit status 1 when the bar is missed"});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(argc, argv, "centroid-bench-durability",
                             "What the journal and running checkpoints cost a round.", add_fields,
                             run);
}
