// Rounds of the exchanges star, ring and hierarchical from end to end, compressed and not, with the
// real server and a model that costs nothing to compute: its gradients are there at once.

#include <algorithm>
#include <cstdio>

#include "tests/bench/bench_run.h"
#include "tests/bench/star_cluster.h"

namespace centroid::bench {
namespace {

struct Options {
  std::uint64_t workers = 4, parameters = 25'000'000, rounds = 4, workers_per_node = 1;
  std::string contenders =
      "star:f32;ring:f32;star:int8/int8;ring:int8;star:topk:0.01/topk:0.01;ring:topk:0.01;"
      "ring:topk:0.01,values=int8";
  std::string host = "127.0.0.1", namespaces, hosts;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// "star:topk:0.01/int8": exchange, codec of contributions, and of results.
ClusterSettings settings_of(const Options& options, const std::string& contender) {
  ClusterSettings settings;
  settings.workers = options.workers;
  settings.parameters = options.parameters;
  settings.host = options.host;
  settings.namespaces = split(options.namespaces, ',');
  settings.hosts = split(options.hosts, ',');
  settings.workers_per_node = options.workers_per_node;
  const std::size_t colon = contender.find(':');
  if (colon == std::string::npos) fail("contender " + contender + " is not EXCHANGE:CODEC");
  settings.exchange = contender.substr(0, colon);
  const auto codecs = split(contender.substr(colon + 1), '/');
  if (codecs.empty()) fail("contender " + contender + " has no codec");
  settings.codec = codecs.front();
  settings.codec_down = codecs.size() > 1 ? codecs[1] : "f32";
  if (settings.codec_down != "f32") settings.apply = "worker";
  const std::size_t nodes =
      1 + (options.workers + options.workers_per_node - 1) / options.workers_per_node;
  if (!settings.namespaces.empty() &&
      (settings.namespaces.size() < nodes || settings.hosts.size() < nodes))
    fail("fewer namespaces or hosts than the server and the nodes of its workers");
  return settings;
}

/// One after the other: each holds several times the model in memory.
int run(const Options& options) {
  std::printf("%llu workers, %llu parameters\n", static_cast<unsigned long long>(options.workers),
              static_cast<unsigned long long>(options.parameters));
  std::printf("%-44s %9s %9s %8s %9s %9s\n", "", "median ms", "min ms", "faster", "MB sent",
              "cpu ms");
  double first = 0;
  for (const std::string& name : split(options.contenders, ';')) {
    Contender contender = make_star_cluster(settings_of(options, name));
    (void)contender.run(2);  // warms up
    const BlockTimes times = contender.run(static_cast<std::uint32_t>(options.rounds));
    if (!contender.members_are_equal()) fail(name + ": the workers' parameters differ");
    const double median = quantile(times.rounds, 0.5);
    if (first == 0) first = median;
    const auto per_round = static_cast<double>(options.rounds);
    std::printf("%-44s %9.1f %9.1f %8.2f %9.2f %9.1f\n", name.c_str(), 1e3 * median,
                1e3 * quantile(times.rounds, 0), first / median,
                1e-6 * static_cast<double>(times.most_sent_bytes) / per_round,
                1e3 * times.members_cpu / per_round / static_cast<double>(options.workers));
    std::fflush(stdout);
  }
  std::printf(
      "faster: than the first row; MB sent: by the busiest worker, per round; cpu: of a worker, "
      "per round\n");
  return 0;
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("workers", &options.workers,
               {.text = "worker processes", .unit = "workers", .min = 1, .max = kMaxMembers});
  schema.field("parameters", &options.parameters,
               {.text = "float32 parameters of the model", .min = 10});
  schema.field("rounds", &options.rounds,
               {.text = "measured rounds of each contender, after two that warm up",
                .unit = "rounds",
                .min = 1,
                .max = kMaxBlockRounds});
  schema.field("contenders", &options.contenders,
               {.text = "what to measure: EXCHANGE:CODEC or, with star, EXCHANGE:CODEC/CODEC_DOWN; "
                        "separated by semicolons"});
  schema.field("host", &options.host, {.text = "address at which the server listens"});
  schema.field("namespaces", &options.namespaces,
               {.text = "network namespaces, separated by commas: the server's, then one a node"});
  schema.field("hosts", &options.hosts,
               {.text = "with namespaces: the address of each, separated by commas"});
  schema.field("workers_per_node", &options.workers_per_node,
               {.text = "with namespaces: workers that share one", .min = 1});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(argc, argv, "centroid-bench-exchange",
                             "Rounds of the exchanges from end to end, compressed and not.",
                             add_fields, run);
}
