#include <cstdio>

#include "client/network.h"
#include "client/online.h"

/// bench: latency and bandwidth of a way through the network, by the transport that training uses.
namespace centroid::client {

namespace {

struct Options {
  std::string there, listen, token_file;
  double seconds = 3;
  std::uint32_t bytes = transport::kMaxEchoBytes;
};

int bench(const Session& session, const Options& options) {
  const auto token = read_worker_token(options.token_file);
  if (!token.ok()) return complain(token.error());
  const bool is_listening = !options.listen.empty();
  std::string where = is_listening ? options.listen : options.there;
  if (where.empty()) {
    const auto cluster = get_json(session, "/v1/cluster");
    if (!cluster.ok()) return complain(cluster.error());
    auto found = data_endpoint(session, *cluster);
    if (!found.ok()) return complain(found.error());
    where = std::move(found).value();
  }
  if (is_listening) {
    const Status served = serve_echo(where, *token);
    return served.ok() ? kExitDone : complain(served.error());
  }
  const std::chrono::milliseconds time(static_cast<std::int64_t>(1000 * options.seconds));
  const auto report = measure(where, *token, time, options.bytes);
  if (!report.ok()) return complain(report.error());
  if (session.style.is_json) {
    Json out;
    out["endpoint"] = where;
    out["round_trips"] = report->round_trips;
    out["median_seconds"] = report->median_seconds;
    out["p99_seconds"] = report->p99_seconds;
    out["bytes_per_second_out"] = report->bytes_per_second_out;
    out["bytes_per_second_in"] = report->bytes_per_second_in;
    std::printf("%s\n", out.dump().c_str());
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
                        "where to; the server's port of workers when not given");
  bench_app->add_option("--listen", options->listen,
                        "answer others at HOST:PORT until Ctrl-C; 0: a free port");
  bench_app
      ->add_option("--worker-token-file", options->token_file,
                   "file with the token of workers, where the server has one")
      ->envname("CENTROIDCTL_WORKER_TOKEN_FILE");
  bench_app->add_option("--seconds", options->seconds, "how long to measure")
      ->check(CLI::Range(0.3, 8.0))
      ->capture_default_str();
  bench_app->add_option("--bytes", options->bytes, "payload of one message")
      ->check(CLI::Range(1u, transport::kMaxEchoBytes))
      ->capture_default_str();
  bench_app->callback([=, &status] { status = bench(*session, *options); });
}

}  // namespace centroid::client
