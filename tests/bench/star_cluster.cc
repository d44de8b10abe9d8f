#include "tests/bench/star_cluster.h"

#include <filesystem>
#include <iterator>
#include <memory>

#include "common/async/io_thread.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "common/base/random.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"
#include "common/tensor/fingerprint.h"
#include "tests/bench/bench_run.h"
#include "transport/transport.h"
#include "worker/exchange/cluster_exchange.h"
#include "worker/exchange/peer_reducer.h"

namespace centroid::bench {

namespace {

constexpr std::uint64_t kBatch = 8;
constexpr const char* kToken = "bench";

Manifest make_manifest(std::uint64_t parameters, std::uint64_t tensors) {
  Manifest manifest;
  for (std::uint64_t t = 0; t < tensors; ++t) {
    TensorInfo tensor;
    tensor.name = "layer" + std::to_string(t);
    tensor.shape = {part_of(parameters, tensors, t).size()};
    manifest.push_back(std::move(tensor));
  }
  return manifest;
}

/// The side of a worker that meets the other workers, as centroid-worker opens it.
void open_peers(const ClusterSettings& settings, std::size_t node,
                worker::ClusterOptions& options) {
  transport::Endpoint listen;
  listen.host = settings.hosts.empty() ? "127.0.0.1" : settings.hosts[node];
  transport::TransportOptions transport_options;
  transport_options.congestion_control = "auto";
  collective::MeshOptions mesh;
  mesh.token = kToken;
  mesh.manifest_hash = manifest_hash(options.join.manifest);
  mesh.thread_name = "peers";
  auto peers = worker::PeerReducer::open(collective::tcp_factory(transport_options), listen, mesh);
  if (!peers.ok()) fail(peers.error().to_string());
  options.peers = std::move(*peers);
  options.join.peer_endpoint = options.peers->endpoint().to_string();
}

/// Normal numbers, roughly: the sum of four bytes.
void fill(std::span<float> values, std::uint64_t seed) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = mix64(seed, i);
    int sum = -510;
    for (int byte = 0; byte < 4; ++byte) sum += static_cast<int>(bits >> (8 * byte) & 0xFF);
    const auto fine = static_cast<float>(bits >> 40) * 0x1p-24f;  // so that few are equal
    values[i] = 1e-4f * (static_cast<float>(sum) + fine);
  }
}

void run_member(const ClusterSettings& settings, std::size_t member, transport::Endpoint server,
                Board& board) {
  const std::size_t node = 1 + member / settings.workers_per_node;  // 0 is the server's
  if (!settings.namespaces.empty()) enter_namespace(settings.namespaces[node]);
  (void)log::configure(log::Level::kWarn, log::Format::kText);
  const std::size_t bytes = settings.parameters * sizeof(float);
  const Buffer params(bytes), gradients(bytes);
  fill(gradients.as<float>(), 7 * member + 1);
  worker::ClusterOptions options;
  options.servers = {std::move(server)};
  options.join.name = "worker-" + std::to_string(member);
  options.join.exchange = settings.exchange;
  options.join.node =
      settings.namespaces.empty() ? transport::this_node() : settings.namespaces[node];
  options.join.codec = settings.codec;
  options.token = kToken;
  options.join.batch = kBatch;
  options.join.train_samples = std::uint64_t{1} << 40;
  options.join.model = "none";
  options.join.manifest = make_manifest(settings.parameters, settings.tensors);
  const bool is_star = settings.exchange == "star";
  if (!is_star) open_peers(settings, node, options);
  worker::ExchangeMemory memory;
  memory.params = params.as<float>();
  memory.gradients = gradients.as<float>();
  std::span<float> current = params.as<float>();
  memory.use_params = [&](std::span<float> now) { current = now; };
  memory.initialize = [&](std::uint64_t seed) { fill(current, seed); };

  metrics::PrometheusRegistry registry;
  IoThread io("io");
  transport::TransportOptions transport_options;
  transport_options.limits.max_head_bytes = transport::kMaxHeadBytes;
  transport_options.limits.max_payload_bytes = 256u << 20;
  transport_options.congestion_control = "auto";
  const auto exchange = worker::make_cluster_exchange(
      io.executor(), transport::make_tcp(io.executor(), transport_options), options, memory,
      registry);
  const auto round = [&] {
    const auto next = exchange->next();
    if (!next.ok() || !std::holds_alternative<worker::Share>(*next)) fail("a worker got no round");
    exchange->begin(std::get<worker::Share>(*next));
    for (auto t = static_cast<std::uint32_t>(settings.tensors); t-- > 0;)
      exchange->ready(TensorId(t));
    worker::StepStats stats;
    stats.samples = kBatch;
    const auto report = exchange->finish(stats);
    if (!report.ok() || report->outcome != worker::RoundReport::Outcome::kCommitted)
      fail("a round was not committed");
    board.sent_bytes[member] =
        is_star ? exchange->traffic().codecs.encoded_out : options.peers->traffic().bytes_out;
  };
  board.take_part(member, round, [&] { return fingerprint(current); });
}

}  // namespace

Contender make_star_cluster(const ClusterSettings& settings) {
  const Folder folder;  // needed until the server has said where it listens
  Board* const board = Board::make();
  const bool is_star = settings.exchange == "star";
  std::vector<std::string> flags = {"--exchange",     settings.exchange,
                                    "--token",        kToken,
                                    "--codec-down",   settings.codec_down,
                                    "--log.level",    "error",
                                    "--apply",        is_star ? settings.apply : "worker",
                                    "--optimizer",    settings.optimizer,
                                    "--lr",           "0.0001",
                                    "--min-workers",  std::to_string(settings.workers),
                                    "--credit-bytes", std::to_string(settings.credit_bytes)};
  flags.insert(flags.end(), settings.server_flags.begin(), settings.server_flags.end());
  if (!settings.run_dir.empty()) std::filesystem::create_directories(settings.run_dir);
  ServerProcess server =
      start_server(settings.run_dir.empty() ? folder.path().string() : settings.run_dir, flags,
                   settings.host, settings.namespaces.empty() ? "" : settings.namespaces[0]);
  std::vector<Child> members;
  for (std::size_t m = 0; m < settings.workers; ++m)
    members.push_back(Child::forked([&] { run_member(settings, m, server.data, *board); }));
  if (!is_star)
    return {settings.exchange + ", " + settings.codec, board, std::move(server.child),
            std::move(members)};
  const bool is_plain = settings.codec == "f32" && settings.codec_down == "f32";
  const std::string name = is_plain
                               ? "star, " + settings.optimizer + " applied by the " + settings.apply
                               : "star, " + settings.codec + " / " + settings.codec_down;
  return {name, board, std::move(server.child), std::move(members)};
}

}  // namespace centroid::bench
