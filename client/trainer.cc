#include "client/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "common/async/io_thread.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/tensor/buffer.h"
#include "transport/server_list.h"
#include "worker/exchange/cluster_exchange.h"
#include "worker/exchange/local_exchange.h"
#include "worker/exchange/open_peers.h"
#include "worker/loop/rounds.h"

namespace centroid::client {

using worker::Finished;
using worker::RoundReport;
using worker::Share;
using worker::StepStats;

namespace {

constexpr std::string_view kAlone = "local:";  // as the server
constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 62;

std::string default_name() {
  static std::atomic<unsigned> count = 0;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string name = std::string(host.data()).append("-").append(std::to_string(::getpid()));
  if (const unsigned number = ++count; number > 1) name.append("-").append(std::to_string(number));
  return name;
}

Error state_error(const std::string& message) {
  return Error(ErrorCode::kFailedPrecondition, message);
}

Error bad(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

}  // namespace

/// The program's memory, and what connects it with the rounds.
struct Trainer::Impl {
  /// Throws std::bad_alloc.
  Impl(TrainerOptions given, Manifest tensors, std::span<const float> start)
      : options(std::move(given)),
        manifest(std::move(tensors)),
        params(start.size_bytes()),
        gradients(start.size_bytes()),
        initial(start.size_bytes()),
        rounds(manifest, options.samples, params.as<float>()) {
    for (const TensorInfo& tensor : manifest)
      positions.push_back(positions.back() + tensor.elements());
    std::ranges::copy(start, initial.as<float>().begin());
    std::ranges::copy(start, params.as<float>().begin());
  }
  ~Impl() { rounds.leave("the trainer is going"); }

  std::span<float> part(std::span<float> plane, TensorId tensor) const {
    return plane.subspan(positions[tensor.value],
                         positions[tensor.value + 1] - positions[tensor.value]);
  }
  Status connect();
  Status train_alone();
  Result<worker::ClusterOptions> cluster_options() const;
  Status accept_peers(worker::ClusterOptions& cluster) const;
  worker::ExchangeMemory exchange_memory();
  Status contribute(StepStats stats);

  const TrainerOptions options;
  const Manifest manifest;
  std::vector<std::uint64_t> positions{0};  // of each tensor, and the end
  Buffer params, gradients, initial;        // gradients: without local steps
  worker::Rounds rounds;
  metrics::Registry registry;
  IoThread io{"io"};
  std::unique_ptr<worker::Exchange> exchange;
  std::atomic<bool> is_stopping = false;
  Scalars recorded;  // since the last contribution
};

Result<worker::ClusterOptions> Trainer::Impl::cluster_options() const {
  worker::ClusterOptions cluster;
  CENTROID_ASSIGN(cluster.servers, transport::ServerList::parse(options.servers));
  cluster.token = options.token;
  cluster.join_timeout = options.join_timeout;
  cluster.stall_timeout = options.stall_timeout;
  cluster.state_dir = options.state_dir;
  cluster.join.name = options.name;
  cluster.join.exchange = options.exchange;
  if (options.shared_memory) cluster.join.node = transport::this_node();
  cluster.join.codec = options.codec;
  cluster.join.batch = options.batch;
  cluster.join.train_samples = options.samples;
  cluster.join.data_fingerprint = options.data_fingerprint;
  cluster.join.sample_tokens = options.sample_tokens;
  cluster.join.model = options.model;
  cluster.join.manifest = manifest;
  return cluster;
}

worker::ExchangeMemory Trainer::Impl::exchange_memory() {
  worker::ExchangeMemory memory;
  memory.params = params.as<float>();
  memory.gradients = gradients.as<float>();
  memory.initialize = [this](std::uint64_t) {
    std::ranges::copy(initial.as<float>(), params.as<float>().begin());
  };
  memory.begin_local = [this](const worker::LocalTerms& terms, const ChunkPlan& plan) {
    auto contribution = rounds.begin_local(terms, plan, [](std::size_t n) { return Buffer(n); });
    if (contribution.ok()) gradients = Buffer();
    return contribution;
  };
  if (options.on_keep)
    memory.save_local = [this](Round round) -> Status {
      if (rounds.after() != round)
        return state_error("the program's parameters are not those after round " +
                           to_string(round));
      options.on_keep(round);
      return {};
    };
  return memory;
}

Status Trainer::Impl::accept_peers(worker::ClusterOptions& cluster) const {
  worker::PeerSettings peers;
  peers.listen = options.peer_listen;
  peers.shared_memory = options.shared_memory;
  peers.make_transport = options.make_transport;
  if (options.tls && options.tls->certificate.empty()) {
    log::info("peers.none", {{"why", "TLS among workers needs a certificate and a key"}});
    return {};
  }
  if (options.tls) {
    transport::TlsOptions among_workers = *options.tls;
    among_workers.is_server = among_workers.any_name = true;
    CENTROID_ASSIGN(peers.layer, transport::make_tls(std::move(among_workers)));
  }
  return worker::open_peers(peers, cluster);
}

Status Trainer::Impl::train_alone() {
  CENTROID_ASSIGN(auto alone, worker::parse_local_options(options.servers.substr(kAlone.size())));
  alone.batch = options.batch;
  alone.train_samples = options.samples;
  alone.manifest = manifest;
  alone.model = options.model;
  CENTROID_ASSIGN(exchange, worker::make_local_exchange(std::move(alone), exchange_memory()));
  rounds.connect(*exchange);
  return {};
}

Status Trainer::Impl::connect() {
  if (options.servers.starts_with(kAlone)) return train_alone();
  CENTROID_ASSIGN(auto cluster, cluster_options());
  transport::TransportOptions wire;
  wire.limits.max_head_bytes = transport::kMaxHeadBytes;
  wire.limits.max_payload_bytes = 256u << 20;
  if (options.tls) {
    CENTROID_ASSIGN(wire.layer, transport::make_tls(*options.tls));
  }
  if (options.exchange != "star") CENTROID_TRY(accept_peers(cluster));
  exchange =
      worker::make_cluster_exchange(io.executor(), options.make_transport(io.executor(), wire),
                                    std::move(cluster), exchange_memory(), registry);
  rounds.connect(*exchange);
  return {};
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

Result<std::unique_ptr<Trainer>> Trainer::open(TrainerOptions options, Manifest manifest,
                                               std::span<const float> initial) {
  CENTROID_TRY(validate(manifest));
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : manifest) {
    if (tensor.dtype != DType::kF32)
      return bad("tensor " + tensor.name + ": only float32 can be trained");
    total += tensor.elements();
  }
  if (options.samples == 0) return bad("samples is 0: say how many the training data has");
  if (options.samples > kMostSamples)
    return bad("samples " + std::to_string(options.samples) + " is above 2^62");
  if (options.name.empty() && !options.state_dir.empty())
    return bad("state_dir is found again by the name of the worker: give one");
  if (options.tls && options.tls->authority.empty())
    return bad("tls has no authority: whose certificates count?");
  if (options.batch == 0 || options.batch > options.samples)
    return bad("batch " + std::to_string(options.batch) + " is not from 1 to the " +
               std::to_string(options.samples) + " samples of the training data");
  if (initial.size() != total)
    return bad("initial values: " + std::to_string(initial.size()) + " numbers, the tensors have " +
               std::to_string(total));
  if (options.name.empty()) options.name = default_name();
  std::unique_ptr<Impl> impl;
  try {
    impl = std::make_unique<Impl>(std::move(options), std::move(manifest), initial);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for parameters, gradients and initial values of " +
                     std::to_string(initial.size_bytes()) + " bytes each");
  }
  CENTROID_TRY(impl->connect());
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

const Manifest& Trainer::manifest() const { return impl_->manifest; }

std::span<float> Trainer::parameters(TensorId tensor) {
  const worker::Rounds& rounds = impl_->rounds;
  return impl_->part(rounds.is_local() ? rounds.own() : rounds.params(), tensor);
}

std::span<const float> Trainer::committed(TensorId tensor) {
  return impl_->part(impl_->rounds.params(), tensor);
}

std::span<float> Trainer::gradient(TensorId tensor) {
  if (impl_->rounds.is_local()) return {};
  return impl_->part(impl_->gradients.as<float>(), tensor);
}

Result<std::vector<std::uint64_t>> Trainer::indices() {
  if (!impl_->rounds.share()) return state_error("no round is open: next comes before indices");
  try {
    const auto found = impl_->rounds.samples();
    return std::vector<std::uint64_t>(found.begin(), found.end());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "no memory for the order of " +
                                                    std::to_string(impl_->options.samples) +
                                                    " samples: 8 bytes each");
  }
}

Result<std::vector<std::uint64_t>> Trainer::indices_ahead(std::uint64_t shares) {
  const auto open = indices();  // a program may not have asked for them, and the guess needs them
  if (!open.ok()) return open.error();
  std::vector<std::uint64_t> numbers;
  for (const auto part : impl_->rounds.samples_ahead(shares))
    numbers.insert(numbers.end(), part.begin(), part.end());
  return numbers;
}

Result<std::variant<Share, Finished>> Trainer::next() {
  worker::Rounds& rounds = impl_->rounds;
  CENTROID_ASSIGN(auto what, rounds.next());
  if (const auto* finished = std::get_if<Finished>(&what)) {
    if (finished->reason == Finished::Reason::kStopped && impl_->is_stopping)
      rounds.leave(finished->text);  // the state may be arriving: from here on nobody writes it
    else if (rounds.is_local())
      rounds.restart();
  } else {
    CENTROID_TRY(rounds.begin());
  }
  return what;
}

Status Trainer::ready(TensorId tensor) { return impl_->rounds.ready(tensor); }

Status Trainer::Impl::contribute(StepStats stats) {
  const auto& share = rounds.share();
  if (share && share->samples() == 0 && !rounds.is_contributed())
    std::ranges::fill(gradients.as<float>(), 0.0f);
  stats.tokens = stats.samples;
  stats.scalars = recorded;
  CENTROID_TRY(rounds.contribute(stats));
  recorded = {};
  return {};
}

Status Trainer::contribute(const StepStats& stats) {
  if (impl_->rounds.is_local()) CENTROID_TRY(impl_->rounds.keep_sent());
  return impl_->contribute(stats);
}

Result<RoundReport> Trainer::finish(const StepStats& stats) {
  worker::Rounds& rounds = impl_->rounds;
  if (!rounds.share() || rounds.is_contributed()) return rounds.finish(stats);
  CENTROID_TRY(impl_->contribute(stats));
  return rounds.finish({});
}

Status Trainer::record(std::string_view name, double value) {
  return impl_->recorded.record(name, value);
}

void Trainer::report(const worker::Evaluation& evaluation) { impl_->rounds.report(evaluation); }

void Trainer::leave(const std::string& why) { impl_->rounds.leave(why); }

void Trainer::request_stop(const std::string& why) {
  impl_->is_stopping = true;
  impl_->exchange->abandon(why);
}

}  // namespace centroid::client
