#include <chrono>
#include <cstdio>
#include <functional>
#include <future>

#include <nlohmann/json.hpp>

#include "client/rows_client.h"
#include "common/base/random.h"
#include "tests/bench/bench_run.h"
#include "tests/bench/verdict.h"

/// Sparse rows: one centroid-server, clients in this process, TCP on loopback.
namespace centroid::bench {
namespace {

using client::RowsClient;
using std::chrono::steady_clock;

struct Options {
  std::uint64_t rows = 1'000'000, batch = 4096, clients = 2, batches = 1000, dim = 16;
  std::string optimizer = "adagrad";
  bool json = false, check = false;
};

constexpr double kUpdatesBar = 1e6;  // a second of the server's processor time
constexpr double kMemoryBar = 1.5;   // bytes of the server for a byte of values

void check(const Status& status) {
  if (!status.ok()) fail(status.error().to_string());
}

struct Rate {
  double wall = 0, cpu = 0;  ///< rows a second; rows a second of the server's processor time
};

/// All clients at once, `batches` calls altogether.
Rate measure(const Options& options, const Child& server,
             std::vector<std::unique_ptr<RowsClient>>& clients,
             const std::function<void(RowsClient&, std::uint64_t batch)>& call,
             std::uint64_t batches) {
  const double cpu = server.cpu_seconds();
  const auto begin = steady_clock::now();
  std::vector<std::future<void>> running;
  for (std::size_t c = 0; c < clients.size(); ++c)
    running.push_back(std::async(std::launch::async, [&, c] {
      for (std::uint64_t batch = c; batch < batches; batch += clients.size())
        call(*clients[c], batch);
    }));
  for (auto& one : running) one.get();
  const double wall = std::chrono::duration<double>(steady_clock::now() - begin).count();
  const auto rows = static_cast<double>(batches * options.batch);
  return {rows / wall, rows / (server.cpu_seconds() - cpu)};
}

/// A server and its clients.
struct Setup {
  Folder folder;
  ServerProcess started;
  std::vector<std::unique_ptr<RowsClient>> clients;

  Setup(const Options& options, const std::vector<std::string>& journal) {
    std::vector<std::string> flags = {"--log-level", "warn", "--tables",
                                      "bench:dim=" + std::to_string(options.dim) +
                                          ",optimizer=" + options.optimizer + ",init=uniform:0.05"};
    flags.insert(flags.end(), journal.begin(), journal.end());
    started = start_server(folder.path(), flags);
    client::RowsClientOptions to;
    to.servers = started.data.to_string();
    for (std::uint64_t c = 0; c < options.clients; ++c) {
      auto client = RowsClient::open(to, "bench");
      if (!client.ok()) fail(client.error().to_string());
      clients.push_back(std::move(*client));
    }
  }
};

int run(const Options& options) {
  auto plain = std::make_unique<Setup>(options, std::vector<std::string>());
  const Child& server = plain->started.child;
  std::vector<std::unique_ptr<RowsClient>>& clients = plain->clients;
  const std::size_t floats = options.batch * options.dim;
  std::vector<float> gradients(floats);
  CounterRng rng(1);
  for (float& g : gradients) g = static_cast<float>(rng.normal());
  const auto random_keys = [&](std::uint64_t stream) {
    CounterRng draw(7, stream);
    std::vector<std::uint64_t> keys(options.batch);
    for (auto& key : keys) key = mix64(draw.below(options.rows));
    return keys;
  };

  const std::uint64_t before = server.status_bytes("VmRSS");
  const auto first_use = [&](RowsClient& client, std::uint64_t batch) {
    std::vector<std::uint64_t> keys(options.batch);
    for (std::uint64_t i = 0; i < options.batch; ++i)
      keys[i] = mix64((batch * options.batch + i) % options.rows);
    check(client.push(keys, gradients));
  };
  const std::uint64_t filling = (options.rows + options.batch - 1) / options.batch;
  const Rate created = measure(options, server, clients, first_use, filling);
  const std::uint64_t memory = server.status_bytes("VmRSS") - before;
  const auto update = [&](RowsClient& client, std::uint64_t batch) {
    check(client.push(random_keys(batch), gradients));
  };
  const Rate pushed = measure(options, server, clients, update, options.batches);
  const auto read = [&](RowsClient& client, std::uint64_t batch) {
    std::vector<float> out(floats);
    check(client.pull(random_keys(batch), out));
  };
  const Rate pulled = measure(options, server, clients, read, options.batches);
  plain.reset();

  const auto with_journal = [&](const std::string& sync) {
    Setup setup(options, {"--journal", "on", "--journal-sync", sync});
    measure(options, setup.started.child, setup.clients, first_use, filling);
    return measure(options, setup.started.child, setup.clients, update, options.batches);
  };
  const Rate grouped = with_journal("1s");
  const Rate synced = with_journal("0");

  const double values = static_cast<double>(options.rows * options.dim * sizeof(float));
  const double ratio = static_cast<double>(memory) / values;
  const auto judge = [&](std::FILE* out) {
    int missed = 0;
    for (const auto& [what, rate] :
         {std::pair{"rows updated", pushed}, std::pair{"rows updated, --journal-sync 1s", grouped},
          std::pair{"rows updated, --journal-sync 0", synced}})
      missed += verdict(what, rate.cpu / 1e6, Bar::kAtLeast, kUpdatesBar / 1e6,
                        "M a second of the server's processor time", out);
    missed += verdict("server's memory", ratio, Bar::kAtMost, kMemoryBar, "times the values", out);
    return options.check && missed > 0 ? 1 : 0;
  };
  if (options.json) {
    const auto entry = [](const Rate& rate) {
      return nlohmann::json{{"per_wall_second", rate.wall}, {"per_server_cpu_second", rate.cpu}};
    };
    const nlohmann::json result = {{"rows", options.rows},           {"dim", options.dim},
                                   {"batch", options.batch},         {"clients", options.clients},
                                   {"optimizer", options.optimizer}, {"created", entry(created)},
                                   {"updated", entry(pushed)},       {"pulled", entry(pulled)},
                                   {"journal_1s", entry(grouped)},   {"journal_0", entry(synced)},
                                   {"memory_per_payload", ratio}};
    std::printf("%s\n", result.dump(2).c_str());
    return judge(stderr);
  }
  std::printf(
      "%llu rows of dim %llu, %s, batches of %llu random keys, %llu clients, TCP loopback\n",
      static_cast<unsigned long long>(options.rows), static_cast<unsigned long long>(options.dim),
      options.optimizer.c_str(), static_cast<unsigned long long>(options.batch),
      static_cast<unsigned long long>(options.clients));
  std::printf("%-28s %12s %22s\n", "M rows/s", "wall", "a server CPU second");
  std::printf("%-28s %12.2f %22.2f\n", "pushed, rows made", created.wall / 1e6, created.cpu / 1e6);
  for (const auto& [what, rate] :
       {std::pair{"pushed, rows updated", pushed}, std::pair{"pulled", pulled},
        std::pair{"updated, --journal-sync 1s", grouped},
        std::pair{"updated, --journal-sync 0", synced}})
    std::printf("%-28s %12.2f %22.2f\n", what, rate.wall / 1e6, rate.cpu / 1e6);
  std::printf("%-28s %12.3f\n", "server's memory / values", ratio);
  return judge(stdout);
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("rows", &options.rows, {.text = "rows of the table", .min = 1});
  schema.field("batch", &options.batch,
               {.text = "keys of a call", .unit = "keys", .min = 1, .max = 65536});
  schema.field("batches", &options.batches, {.text = "calls of each kind", .min = 1});
  schema.field("clients", &options.clients, {.text = "at once", .min = 1, .max = 64});
  schema.field("dim", &options.dim, {.text = "floats of a row", .min = 1, .max = 4096});
  schema.field("optimizer", &options.optimizer,
               {.text = "of the table", .choices = {"sgd", "adagrad", "ftrl"}});
  schema.field("json", &options.json, {.text = "print JSON; the bars on stderr"});
  schema.field("check", &options.check, {.text = "exit status 1 when a bar is missed"});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(argc, argv, "centroid-bench-rows",
                             "Sparse rows of one server over TCP loopback: pushes, pulls, memory.",
                             add_fields, run);
}
