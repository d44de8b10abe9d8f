#include "tests/simulation/programs.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <boost/asio/post.hpp>

#include "client/rows_client.h"
#include "client/trainer.h"
#include "common/async/io_thread.h"
#include "common/base/prometheus_registry.h"

namespace centroid::simulation {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

Manifest manifest() {
  return {{.name = "a", .dtype = DType::kF32, .shape = {200}},
          {.name = "b", .dtype = DType::kF32, .shape = {10, 12}}};
}

}  // namespace

// ---- shard servers

void ShardProgram::run(Process& process) {
  const SystemClock clock;
  metrics::PrometheusRegistry registry;
  IoThread service("service"), files("files");
  const auto transport = around_.network.make_transport(service.executor(), {});
  const auto listener = transport->listen({.host = name(), .port = 7070});
  CENTROID_CHECK(listener.ok());
  server::ShardOptions options;
  options.name = name();
  options.token = around_.plan.token();
  options.leaders = transport::ServerList::parse(around_.servers()).value();
  options.advertise = name() + ":7070";
  options.journal_dir = "/shard/journal";
  options.memory_limit = 1u << 30;
  options.join_timeout = std::chrono::hours(10);
  options.stall_timeout = seconds(5);
  options.drain_timeout = {};
  server::Shard shard(service.executor(), files.executor(), *transport, options, clock, registry);
  executor_ = service.executor();
  const auto mine = shard_ = std::make_shared<server::Shard*>(&shard);
  const Status ended = service.wait(shard.run(**listener));
  *mine = nullptr;
  if (process.is_killed) return;
  failed_ = !ended.ok();
  around_.world.note(name() + " ended: " + (ended.ok() ? "ok" : ended.error().to_string()));
}

void ShardProgram::ask_to_end() {
  const auto shard = std::exchange(shard_, nullptr);
  if (!shard || *shard == nullptr) return;  // it has ended by itself, and its executor is gone
  boost::asio::post(executor_, [shard] {
    if (*shard != nullptr) (*shard)->request_stop("killed");
  });
}

// ---- training programs

/// The trainer of one life.
class WorkerProgram::Trained {
 public:
  Trained(Surroundings& around, std::string name) : around_(around), name_(std::move(name)) {
    client::TrainerOptions options;
    options.servers = around_.servers();
    options.token = around_.plan.token();
    options.name = name_;
    if (around_.plan.has_peers()) options.exchange = "auto";
    options.peer_listen = name_ + ":0";
    options.shared_memory = false;
    options.samples = kSamples;
    options.batch = kBatch;
    options.codec = around_.plan.codec;
    options.join_timeout = std::chrono::hours(10);
    options.stall_timeout = seconds(5);
    options.make_transport = around_.transports();
    auto opened = client::Trainer::open(options, manifest(), Ledger::initial(kParameters));
    CENTROID_CHECK(opened.ok());
    trainer_ = std::move(opened).value();
  }
  client::Trainer& trainer() { return *trainer_; }

  std::vector<float> parameters() {
    std::vector<float> all;
    for (std::uint32_t i = 0; i < manifest().size(); ++i) {
      const auto part = trainer_->committed(TensorId(i));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  /// Local steps since all agreed, as one gradient.
  std::vector<float> way() {
    std::vector<float> gradient = parameters();
    float* at = gradient.data();
    for (std::uint32_t i = 0; i < manifest().size(); ++i)
      for (const float own : trainer_->parameters(TensorId(i))) {
        *at = (*at - own) / static_cast<float>(kRate);
        ++at;
      }
    return gradient;
  }
  void see(Version version) {
    version_ = version;
    around_.ledger.see(name_, version.value, parameters());
  }
  /// Whose parameters it has; who returns behind the end of the job has older ones than that.
  std::optional<Version> version() const { return version_; }
  /// Returns what is contributed; of local steps their sum, and of those before them that were made
  /// while the last contribution travelled.
  std::vector<float> learn(const worker::Share& share) {
    std::vector<float> gradient(kParameters);
    if (share.samples() > 0) Ledger::gradient(share.epoch, share.begin, share.end, gradient);
    if (around_.plan.local_steps > 1) {
      step(gradient);
      return way();
    }
    const float* from = gradient.data();
    for (std::uint32_t i = 0; share.samples() > 0 && i < manifest().size(); ++i) {
      for (float& x : trainer_->gradient(TensorId(i))) x = *from++;
      CENTROID_CHECK(trainer_->ready(TensorId(i)).ok());
    }
    return gradient;
  }
  /// Contribute, and step meanwhile.
  Status learn_ahead(const worker::Share& share, const worker::StepStats& stats) {
    std::vector<float> kept(kParameters);  // an empty share gives nothing
    if (share.samples() == 0) kept = way();
    CENTROID_TRY(trainer_->contribute(stats));
    ahead_.resize(kParameters);
    Ledger::gradient(share.epoch, share.end, share.begin, ahead_);  // another one than the share's
    step(ahead_);
    std::ranges::transform(ahead_, kept, ahead_.begin(), std::plus<>());
    return {};
  }
  /// Those steps are what it has beyond the new parameters. Of fragments only one is new.
  bool has_kept_steps() {
    if (around_.plan.fragments > 1) return true;
    const auto is_near = [](float a, float b) { return std::abs(a - b) < 1e-3; };
    return std::ranges::equal(way(), ahead_, is_near);
  }

 private:
  void step(const std::vector<float>& gradient) {
    const float* from = gradient.data();
    for (std::uint32_t i = 0; i < manifest().size(); ++i)
      for (float& x : trainer_->parameters(TensorId(i))) x -= static_cast<float>(kRate) * *from++;
  }

  Surroundings& around_;
  const std::string name_;
  std::unique_ptr<client::Trainer> trainer_;
  std::optional<Version> version_;
  std::vector<float> ahead_;
};

void WorkerProgram::run(Process& process) {
  Next next = Next::kAgain;
  while (next == Next::kAgain && !process.is_killed) {
    const auto mine = trained_ = std::make_shared<Trained>(around_, name());
    do next = train(process);
    while (next == Next::kRound && !process.is_killed);
    if (trained_ == mine) trained_.reset();
  }
  if (!process.is_killed) is_done_ = true;
}

void WorkerProgram::ask_to_end() {
  if (trained_) trained_->trainer().request_stop("killed");
}

/// One that the others could not reach, for there was a partition, is started again by its
/// supervisor.
WorkerProgram::Next WorkerProgram::ended(const Error& why) {
  const bool is_unreachable = why.message().find("could not exchange with it") != std::string::npos;
  if (!is_unreachable) around_.fault(name() + ": " + why.to_string());
  return is_unreachable ? Next::kAgain : Next::kDone;
}

/// One round. A process that is killed meanwhile has seen nothing.
WorkerProgram::Next WorkerProgram::train(Process& process) {
  const auto mine = trained_;
  World& world = around_.world;
  const auto next = mine->trainer().next();
  if (process.is_killed) return Next::kDone;
  if (!next.ok()) return ended(next.error());
  if (const auto* finished = std::get_if<worker::Finished>(&*next)) {
    world.note(name() + " finished: " + finished->text);
    if (finished->reason == worker::Finished::Reason::kDrained) return Next::kAgain;
    const bool is_end = finished->reason == worker::Finished::Reason::kFinished;
    if (is_end && mine->version() == finished->version) mine->see(finished->version);
    return Next::kDone;
  }
  const worker::Share& share = std::get<worker::Share>(*next);
  mine->see(share.version);
  world.let_pass(std::chrono::microseconds(500 + world.random_numbers().below(8000)));
  if (process.is_killed) return Next::kDone;
  const std::size_t contribution = around_.ledger.add(name(), share, mine->learn(share));
  worker::StepStats stats;
  stats.samples = share.samples();
  stats.loss_sum = 1;
  if (share.overlap > 0) {
    if (const Status ahead = mine->learn_ahead(share, stats); !ahead.ok())
      return ended(ahead.error());
    stats = {};
  }
  const auto report = mine->trainer().finish(stats);
  if (process.is_killed) return Next::kDone;
  if (!report.ok()) return ended(report.error());
  using Outcome = worker::RoundReport::Outcome;
  if (report->outcome == Outcome::kCommitted) {
    around_.ledger.decide(contribution, Ledger::Fate::kCounted, report->version.value);
    mine->see(report->version);
    if (share.overlap > 0 && !mine->has_kept_steps())
      around_.fault(name() + " lost steps that it made before version " +
                    std::to_string(report->version.value));
    world.note(name() + " has version " + std::to_string(report->version.value));
  } else if (report->outcome != Outcome::kLost) {
    around_.ledger.decide(contribution, Ledger::Fate::kIgnored);
  } else {
    world.note(name() + " lost a round: " + report->reason);
  }
  return Next::kRound;
}

// ---- clients of rows

void RowsProgram::run(Process& /*process*/) {
  constexpr std::uint64_t kKeys = 24, kDim = 4;
  World& world = around_.world;
  client::RowsClientOptions options;
  options.servers = around_.servers();
  options.token = around_.plan.token();
  options.name = name();
  options.make_transport = around_.transports();
  CounterRng random(around_.plan.seed, std::hash<std::string>()(name()));
  const std::uint64_t first = random.below(1'000'000) * kKeys;
  std::vector<std::vector<double>> rows(kKeys, std::vector<double>(kDim));
  std::unique_ptr<client::RowsClient> client;
  while (!client && !around_.is_over) {
    auto opened = client::RowsClient::open(options, "t");
    if (opened.ok()) client = std::move(opened).value();
  }
  while (!around_.is_over) {
    world.let_pass(milliseconds(random.below(60)));
    std::vector<std::uint64_t> keys;
    std::vector<float> gradients;
    for (std::uint64_t i = 0, n = 1 + random.below(6); i < n; ++i) {
      const std::uint64_t key = random.below(kKeys);
      if (std::ranges::find(keys, first + key) != keys.end()) continue;
      keys.push_back(first + key);
      for (std::uint64_t d = 0; d < kDim; ++d) {
        gradients.push_back(static_cast<float>(random.below(17)) / 8 - 1);
        rows[key][d] -= gradients.back() / 16;
      }
    }
    Status pushed = client->push(keys, gradients);
    while (!pushed.ok() && !around_.is_over) {
      world.note(name() + ": " + pushed.error().to_string());
      pushed = client->push_rest();
    }
    if (!pushed.ok()) return;
    std::vector<float> found(keys.size() * kDim);
    if (!client->pull(keys, found).ok()) continue;
    ++pulls_;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double expected = rows[keys[i / kDim] - first][i % kDim];
      if (found[i] == static_cast<float>(expected) || around_.may_lose_pushes) continue;
      return around_.fault(name() + ": key " + std::to_string(keys[i / kDim]) + " is " +
                           std::to_string(found[i]) + ", its pushes make it " +
                           std::to_string(expected));
    }
  }
}

}  // namespace centroid::simulation
