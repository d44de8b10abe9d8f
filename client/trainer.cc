#include "client/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "common/async/io_thread.h"
#include "common/base/metrics.h"
#include "common/tensor/buffer.h"
#include "transport/server_list.h"
#include "worker/exchange/cluster_exchange.h"
#include "worker/loop/epoch_order.h"
#include "worker/loop/local_planes.h"

namespace centroid::client {

using worker::Finished;
using worker::RoundReport;
using worker::Share;
using worker::StepStats;

namespace {

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

void add(StepStats& sum, const StepStats& more) {
  sum.samples += more.samples;
  sum.correct += more.correct;
  sum.loss_sum += more.loss_sum;
  sum.compute_seconds += more.compute_seconds;
}

}  // namespace

struct Trainer::Impl {
  TrainerOptions options;
  Manifest manifest;
  std::vector<std::uint64_t> positions;  // of each tensor, and the end
  Buffer params_memory, gradients_memory, initial;
  std::span<float> params;  // the cluster's
  std::span<float> gradients;
  worker::LocalPlanes local;
  bool is_local = false;
  metrics::Registry registry;
  IoThread io{"io"};
  std::unique_ptr<worker::Exchange> exchange;
  std::mutex leaving;  // exchange comes and goes, for request_stop
  std::atomic<bool> is_stopping = false;

  std::optional<Share> share;  // of the round that is open
  bool is_contributed = false;
  bool begins_anew = true;     // own parameters are to be the cluster's
  std::optional<Round> after;  // parameters are those behind this round
  std::optional<Share> late;   // the round before, which closed without us
  std::optional<Error> failed;
  std::optional<Finished> ended;
  std::vector<bool> is_ready;
  StepStats untold;                              // of steps since the last contribution
  Scalars recorded;                              // since the last contribution
  double divergence = -1, exchange_seconds = 0;  // of the last round
  std::chrono::steady_clock::time_point began;
  double computed = 0;  // in this round
  worker::EpochOrder order;

  std::span<float> part(std::span<float> plane, TensorId tensor) const {
    return plane.subspan(positions[tensor.value],
                         positions[tensor.value + 1] - positions[tensor.value]);
  }

  Status open(std::span<const float> start);
  Status lay_out(std::span<const float> start);
  Result<worker::ClusterOptions> cluster_options() const;
  worker::ExchangeMemory exchange_memory();
  Result<std::span<const float>> begin_local(const worker::LocalTerms& terms,
                                             const ChunkPlan& plan);
  Status contribute(const StepStats& stats);
  void leave(const std::string& why);
};

/// Memory for the tensors, with the values that training starts at.
Status Trainer::Impl::lay_out(std::span<const float> start) {
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : manifest) {
    positions.push_back(total);
    total += tensor.elements();
  }
  positions.push_back(total);
  if (start.size() != total)
    return bad("initial values: " + std::to_string(start.size()) + " numbers, the tensors have " +
               std::to_string(total));
  const std::size_t bytes = start.size_bytes();
  try {
    params_memory = Buffer(bytes);
    gradients_memory = Buffer(bytes);
    initial = Buffer(bytes);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for parameters, gradients and initial values of " +
                     std::to_string(bytes) + " bytes each");
  }
  params = params_memory.as<float>();
  gradients = gradients_memory.as<float>();
  std::ranges::copy(start, initial.as<float>().begin());
  std::ranges::copy(start, params.begin());
  is_ready.resize(manifest.size());
  return {};
}

Result<worker::ClusterOptions> Trainer::Impl::cluster_options() const {
  worker::ClusterOptions cluster;
  CENTROID_ASSIGN(cluster.servers, transport::ServerList::parse(options.servers));
  cluster.token = options.token;
  cluster.join_timeout = options.join_timeout;
  cluster.stall_timeout = options.stall_timeout;
  cluster.state_dir = options.state_dir;
  cluster.join.name = options.name;
  cluster.join.exchange = "star";
  cluster.join.node = transport::this_node();
  cluster.join.codec = options.codec;
  cluster.join.batch = options.batch;
  cluster.join.train_samples = options.samples;
  cluster.join.data_fingerprint = options.data_fingerprint;
  cluster.join.sample_tokens = options.sample_tokens;
  cluster.join.model = options.model;
  cluster.join.manifest = manifest;
  return cluster;
}

/// The server wants local steps: own parameters take the place of the gradients.
Result<std::span<const float>> Trainer::Impl::begin_local(const worker::LocalTerms& terms,
                                                          const ChunkPlan& plan) {
  try {
    CENTROID_TRY(local.open(plan, terms.fragments, params, Buffer(params.size_bytes())));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for local steps: own parameters and contribution of " +
                     std::to_string(params.size_bytes()) + " bytes each");
  }
  is_local = true;
  gradients = {};
  gradients_memory = Buffer();
  return local.contribution();
}

/// What the exchange reads and writes.
worker::ExchangeMemory Trainer::Impl::exchange_memory() {
  worker::ExchangeMemory memory;
  memory.params = params;
  memory.gradients = gradients;
  memory.initialize = [this](std::uint64_t) {
    std::ranges::copy(initial.as<float>(), params.begin());
  };
  memory.begin_local = [this](const worker::LocalTerms& terms, const ChunkPlan& plan) {
    return begin_local(terms, plan);
  };
  if (options.on_keep)
    memory.keep_local = [this](Round round) -> Status {
      if (after != round)
        return state_error("the program's parameters are not those after round " +
                           to_string(round));
      options.on_keep(round);
      return {};
    };
  return memory;
}

Status Trainer::Impl::open(std::span<const float> start) {
  CENTROID_TRY(lay_out(start));
  CENTROID_ASSIGN(auto cluster, cluster_options());
  transport::TransportOptions wire;
  wire.limits.max_head_bytes = transport::kMaxHeadBytes;
  wire.limits.max_payload_bytes = 256u << 20;
  if (options.tls) {
    CENTROID_ASSIGN(wire.layer, transport::make_tls(*options.tls));
  }
  exchange =
      worker::make_cluster_exchange(io.executor(), options.make_transport(io.executor(), wire),
                                    std::move(cluster), exchange_memory(), registry);
  return {};
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() { leave("the trainer is going"); }

Result<std::unique_ptr<Trainer>> Trainer::open(TrainerOptions options, Manifest manifest,
                                               std::span<const float> initial) {
  CENTROID_TRY(validate(manifest));
  for (const TensorInfo& tensor : manifest)
    if (tensor.dtype != DType::kF32)
      return bad("tensor " + tensor.name + ": only float32 can be trained");
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
  if (options.name.empty()) options.name = default_name();
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->manifest = std::move(manifest);
  CENTROID_TRY(impl->open(initial));
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

const Manifest& Trainer::manifest() const { return impl_->manifest; }

std::span<float> Trainer::parameters(TensorId tensor) {
  return impl_->part(impl_->is_local ? impl_->local.own() : impl_->params, tensor);
}

std::span<const float> Trainer::committed(TensorId tensor) {
  return impl_->part(impl_->params, tensor);
}

std::span<float> Trainer::gradient(TensorId tensor) {
  if (impl_->is_local) return {};
  return impl_->part(impl_->gradients, tensor);
}

Result<std::vector<std::uint64_t>> Trainer::indices() {
  if (!impl_->share) return state_error("no round is open: next comes before indices");
  try {
    const auto found = impl_->order.part(impl_->options.samples, *impl_->share);
    return std::vector<std::uint64_t>(found.begin(), found.end());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "no memory for the order of " +
                                                    std::to_string(impl_->options.samples) +
                                                    " samples: 8 bytes each");
  }
}

Result<std::variant<Share, Finished>> Trainer::next() {
  Impl& my = *impl_;
  if (my.failed) return *my.failed;
  if (my.ended) return std::variant<Share, Finished>(*my.ended);
  if (!my.exchange) return state_error("this trainer has left the cluster");
  if (my.share)
    return state_error("round " + std::to_string(my.share->round.value) +
                       " is not finished: finish comes before the next one");
  auto next = my.exchange->next();
  if (!next.ok()) {
    my.failed = next.error();
    my.leave(my.failed->message());
    return *my.failed;
  }
  auto what = std::move(next).value();
  if (auto* finished = std::get_if<Finished>(&what)) {
    my.ended = *finished;
    if (finished->reason == Finished::Reason::kStopped && my.is_stopping)
      my.leave(finished->text);  // the state may be arriving: from here on nobody writes it
    else if (my.is_local)
      my.local.restart();
    return what;
  }
  const Share& share = std::get<Share>(what);
  if (share.end < share.begin || share.samples() > my.options.samples)
    return Error(ErrorCode::kInternal, "the share ends at " + std::to_string(share.end) + " of " +
                                           std::to_string(my.options.samples) + " samples");
  if (share.is_local) {
    if (share.overlap > 0) CENTROID_TRY(my.local.keep_sent());
    if (const auto late = std::exchange(my.late, std::nullopt))
      my.divergence =
          my.local.divergence(*late).ratio;  // what came late is in the parameters only now
    if (std::exchange(my.begins_anew, false)) my.local.restart();
  }
  my.share = share;
  my.after.reset();
  my.is_contributed = false;
  my.computed = 0;
  my.began = centroid::now();
  my.is_ready.assign(my.manifest.size(), false);
  my.exchange->begin(share);
  return what;
}

Status Trainer::ready(TensorId tensor) {
  Impl& my = *impl_;
  if (!my.share) return state_error("no round is open: next comes before ready");
  if (tensor.value >= my.manifest.size())
    return bad("tensor " + std::to_string(tensor.value) + " of " +
               std::to_string(my.manifest.size()));
  if (my.is_local)
    return state_error("the server wants local steps: train the parameters in place, then finish");
  if (my.is_contributed || my.is_ready[tensor.value])
    return state_error("tensor " + my.manifest[tensor.value].name + " was given already");
  my.is_ready[tensor.value] = true;
  my.exchange->ready(tensor);
  return {};
}

Status Trainer::Impl::contribute(const StepStats& stats) {
  if (!share) return state_error("no round is open: next comes before contribute");
  if (is_contributed) return state_error("this round has had its contribution");
  const bool is_empty = share->samples() == 0;
  if (is_local) {
    local.contribute(*share);
    const auto tensors = local.tensors(*share);
    if (!is_empty)
      for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor)
        exchange->ready(*tensor);
  } else {
    if (is_empty) std::ranges::fill(gradients, 0.0f);
    for (std::size_t i = 0; i < manifest.size(); ++i) {
      if (is_ready[i]) continue;
      if (!is_empty) return bad("tensor " + manifest[i].name + " has no gradient in this round");
      exchange->ready(TensorId(static_cast<std::uint32_t>(i)));
    }
  }
  add(untold, stats);
  StepStats told = std::exchange(untold, {});
  told.tokens = stats.samples;
  told.scalars = std::exchange(recorded, {});
  told.exchange_seconds = exchange_seconds;
  if (is_local) told.divergence = divergence;
  exchange->complete(told);
  is_contributed = true;
  computed += stats.compute_seconds;
  return {};
}

Status Trainer::contribute(const StepStats& stats) {
  if (impl_->share && impl_->is_local) CENTROID_TRY(impl_->local.keep_sent());
  return impl_->contribute(stats);
}

Result<RoundReport> Trainer::finish(const StepStats& stats) {
  Impl& my = *impl_;
  if (!my.share) return state_error("no round is open: next comes before finish");
  if (!my.is_contributed) {
    CENTROID_TRY(my.contribute(stats));
  } else {
    add(my.untold, stats);
    my.computed += stats.compute_seconds;
  }
  auto done = my.exchange->finish({});
  const Share share = *std::exchange(my.share, std::nullopt);
  if (!done.ok()) {
    my.failed = done.error();
    my.leave(my.failed->message());
    return *my.failed;
  }
  RoundReport report = std::move(done).value();
  const auto measure = [&my] {
    const std::chrono::duration<double> took = centroid::now() - my.began;
    // A program that does not say how long it computed has told nothing of the exchange.
    my.exchange_seconds = my.computed > 0 ? std::max(took.count() - my.computed, 0.0) : 0;
  };
  if (!my.is_local) {
    measure();
    return report;
  }
  my.divergence = -1;
  if (report.outcome == RoundReport::Outcome::kCommitted) {
    my.divergence = my.local.divergence(share).ratio;
    my.local.merge(share);
    my.after = share.round;
  } else {
    if (report.outcome == RoundReport::Outcome::kLate && !my.local.keeps_sent()) my.late = share;
    my.begins_anew = true;
    my.untold = {};
  }
  measure();
  return report;
}

Status Trainer::record(std::string_view name, double value) {
  return impl_->recorded.record(name, value);
}

void Trainer::report(const worker::Evaluation& evaluation) {
  if (impl_->exchange) impl_->exchange->report(evaluation);
}

void Trainer::Impl::leave(const std::string& why) {
  std::unique_ptr<worker::Exchange> leaver;
  {
    const std::lock_guard lock(leaving);
    leaver = std::move(exchange);
  }
  if (leaver) leaver->leave(why);
}

void Trainer::leave(const std::string& why) { impl_->leave(why); }

void Trainer::request_stop(const std::string& why) {
  const std::lock_guard lock(impl_->leaving);
  if (!impl_->exchange) return;
  impl_->is_stopping = true;
  impl_->exchange->abandon(why);
}

}  // namespace centroid::client
