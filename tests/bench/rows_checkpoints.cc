#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include <nlohmann/json.hpp>

#include "tests/bench/rows_bench.h"

namespace centroid::bench {
namespace {

using std::chrono::steady_clock;

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

/// One of the two servers, and what was seen of it, turn by turn.
struct Side {
  Side(const RowsOptions& options, const std::vector<std::string>& flags)
      : setup(options, flags, "log") {}

  RowsSetup setup;
  std::uint64_t calls = 0;
  std::vector<double> rates, cpu, longest;

  const Child& server() const { return setup.started.child; }
  /// Seconds of the checkpoints that were written so far.
  std::vector<double> checkpoints() const {
    std::vector<double> seconds;
    std::ifstream log(setup.folder.path() / "log");
    for (std::string line; std::getline(log, line);) {
      const auto event = nlohmann::json::parse(line, nullptr, false);
      if (event.is_object() && event.value("event", "") == "checkpoint.written")
        seconds.push_back(event.value("seconds", 0.0));
    }
    return seconds;
  }
  void fill(const RowsOptions& options, const RowsCalls& all) {
    for (std::uint64_t i = 0; i * options.batch < options.rows; ++i)
      all.first_use(*setup.clients.front(), i);
  }
  /// All clients push for this long.
  void take_turn(const RowsCalls& all, std::chrono::milliseconds turn) {
    const double cpu_before = server().cpu_seconds();
    const auto begin = steady_clock::now();
    std::atomic<std::uint64_t> next = calls;
    std::vector<std::future<double>> running;
    for (const auto& client : setup.clients)
      running.push_back(std::async(std::launch::async, [&, to = client.get()] {
        double most = 0;
        while (steady_clock::now() - begin < turn) {
          const auto called = steady_clock::now();
          all.update(*to, next++);
          most = std::max(most, seconds_since(called));
        }
        return most;
      }));
    double most = 0;
    for (auto& one : running) most = std::max(most, one.get());
    const auto done = static_cast<double>(next - calls);
    calls = next;
    rates.push_back(done / seconds_since(begin));
    cpu.push_back(1e3 * (server().cpu_seconds() - cpu_before) / done);
    longest.push_back(1e3 * most);
  }
  /// Until what it still writes is written, so that the other one has the machine for itself.
  void rest() const {
    constexpr std::chrono::milliseconds kLook{50};
    for (double before = server().cpu_seconds();;) {
      std::this_thread::sleep_for(4 * kLook);  // lint-ok: no test
      const double now = server().cpu_seconds();
      if (now - before < 0.011) return;  // a clock tick
      before = now;
    }
  }
};

}  // namespace

BesideCheckpoints measure_beside_checkpoints(const RowsOptions& options) {
  const RowsCalls all(options);
  const std::vector<std::string> flags{"--log.level", "info", "--log.format", "json"};
  std::vector<std::string> writing = flags;
  writing.insert(writing.end(), {"--checkpoint.interval", "1ms", "--checkpoint.keep", "1"});
  Side alone(options, flags), beside(options, writing);
  for (Side* const side : {&alone, &beside}) {
    side->fill(options, all);
    side->take_turn(all, options.turn / 2);
    side->rest();
    side->rates.clear(), side->cpu.clear(), side->longest.clear();
  }
  const std::size_t before = beside.checkpoints().size();
  std::vector<double> slower;
  double turns_seconds = 0;
  for (std::uint64_t turn = 0; turn < options.turns; ++turn) {
    alone.take_turn(all, options.turn);
    const auto begin = steady_clock::now();
    beside.take_turn(all, options.turn);
    beside.rest();
    turns_seconds += seconds_since(begin);
    slower.push_back(alone.rates.back() / beside.rates.back());
  }
  std::vector<double> written = beside.checkpoints();
  written.erase(written.begin(), written.begin() + static_cast<std::ptrdiff_t>(before));
  if (written.empty()) fail("no checkpoint was written in the turns: make --turn longer");
  BesideCheckpoints out;
  out.alone = quantile(alone.rates, 0.5), out.beside = quantile(beside.rates, 0.5);
  out.slower = quantile(slower, 0.5);
  out.slower_least = quantile(slower, 0), out.slower_most = quantile(slower, 1);
  out.alone_cpu = quantile(alone.cpu, 0.5), out.beside_cpu = quantile(beside.cpu, 0.5);
  out.alone_longest = quantile(alone.longest, 0.5);
  out.beside_longest = quantile(beside.longest, 0.5);
  for (const double seconds : written) out.written_share += seconds / turns_seconds;
  out.checkpoint_seconds = quantile(written, 0.5);
  out.checkpoints = written.size();
  const double values = static_cast<double>(options.rows * options.dim * sizeof(float));
  const auto memory = [&](const Side& side) {
    return static_cast<double>(side.server().status_bytes("VmHWM")) / values;
  };
  out.alone_memory = memory(alone), out.beside_memory = memory(beside);
  return out;
}

}  // namespace centroid::bench
