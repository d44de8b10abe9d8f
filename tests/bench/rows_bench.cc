#include "tests/bench/rows_bench.h"

#include <cstdio>
#include <functional>
#include <future>

#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "tests/bench/verdict.h"

/// Sparse rows: one centroid-server, clients in this process, TCP on loopback.
namespace centroid::bench {

using client::RowsClient;
using std::chrono::steady_clock;

namespace {

constexpr double kUpdatesBar = 1e6;  // a second of the server's processor time
constexpr double kMemoryBar = 1.5;   // bytes of the server for a byte of values
constexpr double kBesideBar = 1.10;  // slower while checkpoints are written

void check(const Status& status) {
  if (!status.ok()) fail(status.error().to_string());
}

}  // namespace

RowsSetup::RowsSetup(const RowsOptions& options, const std::vector<std::string>& more,
                     const std::string& log_name) {
  std::vector<std::string> flags = {"--tables", "bench:dim=" + std::to_string(options.dim) +
                                                    ",optimizer=" + options.optimizer +
                                                    ",init=uniform:0.05"};
  flags.insert(flags.end(), more.begin(), more.end());
  started = start_server(folder.path(), flags, "127.0.0.1", "",
                         log_name.empty() ? "" : folder.path() / log_name);
  client::RowsClientOptions to;
  to.servers = started.data.to_string();
  for (std::uint64_t c = 0; c < options.clients; ++c) {
    auto client = RowsClient::open(to, "bench");
    if (!client.ok()) fail(client.error().to_string());
    clients.push_back(std::move(*client));
  }
}

RowsCalls::RowsCalls(const RowsOptions& options)
    : options_(options), gradients_(options.batch * options.dim) {
  CounterRng rng(1);
  for (float& g : gradients_) g = static_cast<float>(rng.normal());
}

std::vector<std::uint64_t> RowsCalls::random_keys(std::uint64_t call) const {
  CounterRng draw(7, call);
  std::vector<std::uint64_t> keys(options_.batch);
  for (auto& key : keys) key = mix64(draw.below(options_.rows));
  return keys;
}

void RowsCalls::first_use(RowsClient& client, std::uint64_t call) const {
  std::vector<std::uint64_t> keys(options_.batch);
  for (std::uint64_t i = 0; i < options_.batch; ++i)
    keys[i] = mix64((call * options_.batch + i) % options_.rows);
  check(client.push(keys, gradients_));
}

void RowsCalls::update(RowsClient& client, std::uint64_t call) const {
  check(client.push(random_keys(call), gradients_));
}

void RowsCalls::read(RowsClient& client, std::uint64_t call) const {
  std::vector<float> out(options_.batch * options_.dim);
  check(client.pull(random_keys(call), out));
}

namespace {

using Call = void (RowsCalls::*)(RowsClient&, std::uint64_t) const;

struct Rate {
  double wall = 0, cpu = 0;  ///< rows a second; rows a second of the server's processor time
};

/// All clients at once, `count` calls altogether.
Rate measure(const RowsOptions& options, RowsSetup& setup, const RowsCalls& calls, Call call,
             std::uint64_t count) {
  const Child& server = setup.started.child;
  const double cpu = server.cpu_seconds();
  const auto begin = steady_clock::now();
  std::vector<std::future<void>> running;
  for (std::size_t c = 0; c < setup.clients.size(); ++c)
    running.push_back(std::async(std::launch::async, [&, c] {
      for (std::uint64_t i = c; i < count; i += setup.clients.size())
        (calls.*call)(*setup.clients[c], i);
    }));
  for (auto& one : running) one.get();
  const double wall = std::chrono::duration<double>(steady_clock::now() - begin).count();
  const auto rows = static_cast<double>(count * options.batch);
  return {rows / wall, rows / (server.cpu_seconds() - cpu)};
}

struct Rates {
  Rate created, pushed, pulled, grouped, synced;
  double memory = 0;  ///< of the server, times the values
};

Rates measure_rates(const RowsOptions& options) {
  const RowsCalls calls(options);
  const std::vector<std::string> quiet{"--log.level", "warn"};
  const std::uint64_t filling = (options.rows + options.batch - 1) / options.batch;
  Rates out;
  {
    RowsSetup plain(options, quiet);
    const Child& server = plain.started.child;
    const std::uint64_t before = server.status_bytes("VmRSS");
    out.created = measure(options, plain, calls, &RowsCalls::first_use, filling);
    out.memory = static_cast<double>(server.status_bytes("VmRSS") - before) /
                 static_cast<double>(options.rows * options.dim * sizeof(float));
    out.pushed = measure(options, plain, calls, &RowsCalls::update, options.batches);
    out.pulled = measure(options, plain, calls, &RowsCalls::read, options.batches);
  }
  const auto with_journal = [&](const std::string& sync) {
    std::vector<std::string> flags = quiet;
    flags.insert(flags.end(), {"--journal.mode", "on", "--journal.sync", sync});
    RowsSetup setup(options, flags);
    measure(options, setup, calls, &RowsCalls::first_use, filling);
    return measure(options, setup, calls, &RowsCalls::update, options.batches);
  };
  out.grouped = with_journal("1s");
  out.synced = with_journal("0");
  return out;
}

int judge(const Rates& rates, std::FILE* out) {
  int missed = 0;
  for (const auto& [what, rate] : {std::pair{"rows updated", rates.pushed},
                                   std::pair{"rows updated, --journal.sync 1s", rates.grouped},
                                   std::pair{"rows updated, --journal.sync 0", rates.synced}})
    missed += verdict(what, rate.cpu / 1e6, Bar::kAtLeast, kUpdatesBar / 1e6,
                      "M a second of the server's processor time", out);
  missed +=
      verdict("server's memory", rates.memory, Bar::kAtMost, kMemoryBar, "times the values", out);
  return missed;
}

int judge(const BesideCheckpoints& pushes, std::FILE* out) {
  return verdict("pushes beside checkpoints", pushes.slower, Bar::kAtMost, kBesideBar,
                 "times slower than alone", out);
}

nlohmann::json to_json(const Rates& rates) {
  const auto entry = [](const Rate& rate) {
    return nlohmann::json{{"per_wall_second", rate.wall}, {"per_server_cpu_second", rate.cpu}};
  };
  return {{"created", entry(rates.created)},  {"updated", entry(rates.pushed)},
          {"pulled", entry(rates.pulled)},    {"journal_1s", entry(rates.grouped)},
          {"journal_0", entry(rates.synced)}, {"memory_per_payload", rates.memory}};
}

nlohmann::json to_json(const BesideCheckpoints& pushes) {
  const auto side = [](double rate, double cpu, double longest, double memory) {
    return nlohmann::json{{"pushes_per_second", rate},
                          {"server_cpu_ms", cpu},
                          {"longest_call_ms", longest},
                          {"memory_per_payload", memory}};
  };
  return {
      {"alone", side(pushes.alone, pushes.alone_cpu, pushes.alone_longest, pushes.alone_memory)},
      {"beside",
       side(pushes.beside, pushes.beside_cpu, pushes.beside_longest, pushes.beside_memory)},
      {"slower", pushes.slower},
      {"slower_least", pushes.slower_least},
      {"slower_most", pushes.slower_most},
      {"checkpoints", pushes.checkpoints},
      {"checkpoint_seconds", pushes.checkpoint_seconds},
      {"written_share", pushes.written_share}};
}

void print(const Rates& rates) {
  std::printf("%-28s %12s %22s\n", "M rows/s", "wall", "a server CPU second");
  for (const auto& [what, rate] :
       {std::pair{"pushed, rows made", rates.created},
        std::pair{"pushed, rows updated", rates.pushed}, std::pair{"pulled", rates.pulled},
        std::pair{"updated, --journal.sync 1s", rates.grouped},
        std::pair{"updated, --journal.sync 0", rates.synced}})
    std::printf("%-28s %12.2f %22.2f\n", what, rate.wall / 1e6, rate.cpu / 1e6);
  std::printf("%-28s %12.3f\n", "server's memory / values", rates.memory);
}

void print(const BesideCheckpoints& pushes) {
  std::printf("%-28s %12s %22s %16s %22s\n", "pushes, medians of turns", "a second",
              "server CPU ms a push", "longest call, ms", "most memory / values");
  std::printf("%-28s %12.0f %22.3f %16.1f %22.2f\n", "alone", pushes.alone, pushes.alone_cpu,
              pushes.alone_longest, pushes.alone_memory);
  std::printf("%-28s %12.0f %22.3f %16.1f %22.2f\n", "beside checkpoints", pushes.beside,
              pushes.beside_cpu, pushes.beside_longest, pushes.beside_memory);
  std::printf("%-28s %12.2f   %.2f to %.2f\n", "alone / beside, by turn", pushes.slower,
              pushes.slower_least, pushes.slower_most);
  std::printf("%zu checkpoints of %.2f s (median), %.0f %% of the time one was being written\n",
              pushes.checkpoints, pushes.checkpoint_seconds, 100 * pushes.written_share);
}

int run(const RowsOptions& options) {
  std::FILE* const verdicts = options.json ? stderr : stdout;
  if (!options.json)
    std::printf(
        "%llu rows of dim %llu, %s, batches of %llu random keys, %llu clients, TCP loopback\n",
        static_cast<unsigned long long>(options.rows), static_cast<unsigned long long>(options.dim),
        options.optimizer.c_str(), static_cast<unsigned long long>(options.batch),
        static_cast<unsigned long long>(options.clients));
  nlohmann::json result = {{"rows", options.rows},
                           {"dim", options.dim},
                           {"batch", options.batch},
                           {"clients", options.clients},
                           {"optimizer", options.optimizer}};
  int missed = 0;
  const auto tell = [&](const auto& measured, const auto& into) {
    if (options.json)
      into(to_json(measured));
    else
      print(measured);
    missed += judge(measured, verdicts);
  };
  if (options.only != "checkpoints")
    tell(measure_rates(options), [&](const nlohmann::json& all) { result.update(all); });
  if (options.only != "rates")
    tell(measure_beside_checkpoints(options),
         [&](const nlohmann::json& all) { result["checkpoints"] = all; });
  if (options.json) std::printf("%s\n", result.dump(2).c_str());
  return options.check && missed > 0 ? 1 : 0;
}

void add_fields(config::Schema& schema, RowsOptions& options) {
  schema.field("rows", &options.rows, {.text = "rows of the table", .min = 1});
  schema.field("batch", &options.batch,
               {.text = "keys of a call", .unit = "keys", .min = 1, .max = 65536});
  schema.field("batches", &options.batches, {.text = "calls of each kind", .min = 1});
  schema.field("clients", &options.clients, {.text = "at once", .min = 1, .max = 64});
  schema.field("dim", &options.dim, {.text = "floats of a row", .min = 1, .max = 4096});
  schema.field("optimizer", &options.optimizer,
               {.text = "of the table", .choices = {"sgd", "adagrad", "ftrl"}});
  schema.field("only", &options.only,
               {.text = "part to measure; empty: all", .choices = {"", "rates", "checkpoints"}});
  schema.field("turns", &options.turns,
               {.text = "of pushes alone and beside checkpoints", .min = 1, .max = 1000});
  schema.field("turn", &options.turn,
               {.text = "length of one; several checkpoints should fit", .unit = "ms", .min = 1});
  schema.field("json", &options.json, {.text = "print JSON; the bars on stderr"});
  schema.field("check", &options.check, {.text = "exit status 1 when a bar is missed"});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<RowsOptions>(
      argc, argv, "centroid-bench-rows",
      "Sparse rows of one server over TCP loopback: pushes, pulls, memory.", add_fields, run);
}
