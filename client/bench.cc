#include <cstdio>

#include "client/online.h"

/// bench: latency and bandwidth of a network path, measured with the transport of the training.
namespace centroid::client {

namespace {

struct Options {
  std::string there, listen;
  std::shared_ptr<WorkerOptions> worker;
  double seconds = 3;
  std::uint32_t bytes = transport::kMaxEchoBytes;
};

int bench(const Session& session, const Options& options) {
  const bool is_listening = !options.listen.empty();
  const auto access = open_access(*options.worker, is_listening);
  if (!access.ok()) return complain(access.error());
  bool is_tls_missing = false;
  std::string where = is_listening ? options.listen : options.there;
  if (where.empty()) {
    const auto cluster = get_json(session, "/v1/cluster");
    if (!cluster.ok()) return complain(cluster.error());
    auto found = data_endpoint(session, *cluster);
    if (!found.ok()) return complain(found.error());
    where = std::move(found).value();
    is_tls_missing = !access->tls && has_tls(session);
  }
  if (is_listening) {
    const Status served = serve_echo(where, *access);
    return served.ok() ? kExitDone : complain(served.error());
  }
  const std::chrono::milliseconds time(static_cast<std::int64_t>(1000 * options.seconds));
  if (is_tls_missing) {
    std::fprintf(stderr, "centroidctl: data connections of %s are TLS: give --tls.authority\n",
                 where.c_str());
    return kExitUsage;
  }
  const auto report = measure(where, *access, time, options.bytes);
  if (!report.ok()) return complain(report.error());
  if (session.style.is_json) {
    Json out;
    out["endpoint"] = where;
    out["round_trips"] = report->round_trips;
    out["median_seconds"] = report->median_seconds;
    out["p99_seconds"] = report->p99_seconds;
    out["bytes_per_second_out"] = report->bytes_per_second_out;
    out["bytes_per_second_in"] = report->bytes_per_second_in;
    std::printf("%s", line_of(out).c_str());
  } else {
    std::printf("to         %s\nround trip %s median, %s 99 %%, of %llu\n", where.c_str(),
                duration_text(report->median_seconds).c_str(),
                duration_text(report->p99_seconds).c_str(),
                static_cast<unsigned long long>(report->round_trips));
    std::printf("out        %s/s\nin         %s/s\n",
                size_text(report->bytes_per_second_out).c_str(),
                size_text(report->bytes_per_second_in).c_str());
  }
  return kExitDone;
}

}  // namespace

void add_bench(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const bench_app = app.add_subcommand(
      "bench",
      "Latency and bandwidth from this machine to the server, or to another machine where `bench "
      "--listen` runs.");
  const auto options = std::make_shared<Options>();
  bench_app->add_option("HOST:PORT", options->there,
                        "target; default: the server's port of workers");
  bench_app->add_option("--listen", options->listen,
                        "answer others at HOST:PORT until Ctrl-C; 0: a free port");
  options->worker = add_worker_options(*bench_app);
  bench_app->add_option("--seconds", options->seconds, "how long to measure")
      ->check(CLI::Range(0.3, 8.0))
      ->capture_default_str();
  bench_app->add_option("--bytes", options->bytes, "payload of one message")
      ->check(CLI::Range(1u, transport::kMaxEchoBytes))
      ->capture_default_str();
  bench_app->callback([=, &status] { status = bench(*session, *options); });
}

}  // namespace centroid::client
