#include "tests/simulation/job.h"

#include <algorithm>

#include "client/trainer.h"
#include "common/async/io_thread.h"

namespace centroid::simulation {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr std::size_t kParameters = 320;
constexpr double kRate = 1.0 / 16;
constexpr std::uint64_t kSamples = 400, kBatch = 8;
// With everything healed a round takes some milliseconds; leases and reconnects take seconds.
constexpr seconds kMostWithoutProgress{90};
constexpr seconds kNamedWithin{2};      ///< a wait that is longer must have a name
constexpr std::size_t kMostLooks = 10;  ///< between two waits nobody waits for a moment

Manifest manifest() {
  return {{.name = "a", .dtype = DType::kF32, .shape = {200}},
          {.name = "b", .dtype = DType::kF32, .shape = {10, 12}}};
}

transport::Endpoint server_endpoint() { return {.host = "server", .port = 7070}; }

}  // namespace

Plan Plan::draw(std::uint64_t seed) {
  CounterRng random(seed, 1);
  Plan plan;
  plan.seed = seed;
  plan.workers = 1 + random.below(4);
  plan.shards = random.below(3);
  plan.faults = 5 + random.below(6);
  plan.min_workers = 1 + random.below(plan.workers);
  if (random.below(2) == 0) plan.checkpoint_every = 10 + random.below(50);
  return plan;
}

std::string Plan::to_string() const {
  return "seed " + std::to_string(seed) + ": " + std::to_string(workers) + " workers (at least " +
         std::to_string(min_workers) + "), " + std::to_string(shards) + " shard servers, " +
         std::to_string(rounds) + " rounds, " + std::to_string(faults) +
         " faults, checkpoint every " + std::to_string(checkpoint_every);
}

Job::Job(Plan plan, const fs::path& folder, bool prints)
    : plan_(std::move(plan)), folder_(folder), world_(plan_.seed), ledger_(kParameters, kRate) {
  world_.prints = prints;
}

Outcome Job::run() {
  world_.run([this] { drive(); });
  for (std::string& fault : ledger_.check()) outcome_.faults.push_back(std::move(fault));
  outcome_.checked = ledger_.checked();
  outcome_.log_hash = world_.log_hash();
  outcome_.switches = world_.switches();
  outcome_.seconds = world_.seconds();
  return outcome_;
}

void Job::fault(const std::string& what) {
  world_.note("FAULT " + what);
  outcome_.faults.push_back(what);
}

// ---- the server

void Job::start_server(bool resumes) {
  Server& life = lives_.emplace_back();
  const std::string name = "server-" + std::to_string(lives_.size());
  life.process = &world_.add_process(name);
  life.folder = folder_ / name;
  fs::create_directories(life.folder);
  if (resumes) fs::copy(lives_[lives_.size() - 2].folder, life.folder, fs::copy_options::recursive);
  server::ServerConfig config;
  config.run_dir = life.folder;
  config.resume = resumes;
  if (!resumes) config.run_id = "simulated";
  config.rounds = plan_.rounds;
  config.min_workers = plan_.min_workers;
  config.servers = 1 + plan_.shards;
  config.optimizer.learning_rate = kRate;
  config.chunk_bytes = 512;
  config.journal = "on";
  config.journal_sync = milliseconds(0);
  config.checkpoint_every_rounds = plan_.checkpoint_every;
  config.memory_limit = 1u << 30;
  config.lease = milliseconds(3000);
  config.stall_timeout = milliseconds(5000);
  life.thread =
      world_.start(*life.process, "main", [this, &life, config] { run_server(life, config); });
}

void Job::run_server(Server& life, server::ServerConfig config) {
  if (life.process->is_killed) return;
  const SystemClock clock;
  metrics::Registry registry;
  IoThread service("service"), blocking("blocking"), files("files"), looks("looks"),
      verifies("verifies");
  Status ended = server::finish(config);
  const auto transport = network_.make_transport(service.executor(), {});
  server::Cluster cluster(service.executor(), blocking.executor(), config, clock, registry);
  cluster.set_files(files.executor(), looks.executor(), verifies.executor());
  auto listener = transport->listen(server_endpoint());
  if (ended.ok() && !listener.ok()) ended = listener.error();
  if (ended.ok() && !life.process->is_killed) {
    life.executor = service.executor();
    life.cluster = &cluster;
    ended = service.wait(cluster.run(**listener));
    life.cluster = nullptr;
  }
  life.ended = ended;
  if (life.process->is_killed) return;
  world_.note("server ended: " + (ended.ok() ? "ok" : ended.error().to_string()));
}

void Job::kill_server() {
  Server& life = server();
  world_.note("kill " + life.process->name);
  life.process->is_killed = true;
  life.process->frozen_until = {};
  network_.remove(*life.process, false);
  server::Cluster* const cluster = life.cluster;
  if (cluster == nullptr) return;
  boost::asio::post(life.executor, [&life] {
    if (life.cluster != nullptr) life.cluster->request_stop("killed", true);
  });
}

std::optional<server::ClusterView> Job::view() {
  Server& life = server();
  if (life.cluster == nullptr || life.process->frozen_until > world_.time()) return std::nullopt;
  return wait_on(life.executor, life.cluster->cluster());
}

// ---- shard servers

void Job::start_shard(ShardServer& one) {
  const fs::path before = one.folder;
  const std::string life = one.name + "-" + std::to_string(++one.lives);
  one.process = &world_.add_process(life);
  one.folder = folder_ / life;
  fs::create_directories(one.folder);
  if (!before.empty()) fs::copy(before, one.folder, fs::copy_options::recursive);
  one.ended.reset();
  Process& process = *one.process;
  one.thread = world_.start(process, "main", [this, &one, &process, folder = one.folder] {
    run_shard(one, process, folder);
  });
}

void Job::run_shard(ShardServer& one, Process& process, fs::path folder) {
  if (process.is_killed) return;
  const SystemClock clock;
  metrics::Registry registry;
  IoThread service("service");
  const auto transport = network_.make_transport(service.executor(), {});
  const auto listener = transport->listen(one.endpoint);
  CENTROID_CHECK(listener.ok());
  server::ShardOptions options;
  options.name = one.name;
  options.leaders = {server_endpoint()};
  options.advertise = one.endpoint.to_string();
  options.journal_dir = folder;
  options.memory_limit = 1u << 30;
  options.join_timeout = std::chrono::hours(10);
  options.stall_timeout = seconds(5);
  options.drain_timeout = {};
  server::Shard shard(service.executor(), *transport, options, clock, registry);
  one.executor = service.executor();
  const auto mine = one.shard = std::make_shared<server::Shard*>(&shard);
  const Status ended = service.wait(shard.run(**listener));
  *mine = nullptr;
  if (process.is_killed) return;
  one.ended = ended;
  world_.note(one.name + " ended: " + (ended.ok() ? "ok" : ended.error().to_string()));
}

void Job::kill_shard(ShardServer& one) {
  world_.note("kill " + one.process->name);
  one.process->is_killed = true;
  one.process->frozen_until = {};
  network_.remove(*one.process, false);
  const auto shard = std::exchange(one.shard, nullptr);
  if (!shard) return;
  boost::asio::post(one.executor, [shard] {
    if (*shard != nullptr) (*shard)->request_stop("killed");
  });
}

// ---- workers

void Job::start_worker(Worker& worker) {
  worker.process = &world_.add_process(worker.name);
  Process& process = *worker.process;
  worker.thread =
      world_.start(process, "main", [this, &worker, &process] { run_worker(worker, process); });
}

void Job::run_worker(Worker& worker, Process& process) {
  client::TrainerOptions options;
  options.servers = server_endpoint().to_string();
  options.name = worker.name;
  options.samples = kSamples;
  options.batch = kBatch;
  options.join_timeout = std::chrono::hours(10);
  options.stall_timeout = seconds(5);
  options.make_transport = [this](Executor executor, transport::TransportOptions how) {
    return network_.make_transport(std::move(executor), std::move(how));
  };
  auto opened = client::Trainer::open(options, manifest(), Ledger::initial(kParameters));
  CENTROID_CHECK(opened.ok());
  client::Trainer& trainer = **opened;
  worker.stop = [&trainer] { trainer.request_stop("killed"); };
  const auto parameters = [&] {
    std::vector<float> all;
    for (std::uint32_t i = 0; i < manifest().size(); ++i) {
      const auto part = trainer.parameters(TensorId(i));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  CounterRng random(plan_.seed, 100 + worker.thread);
  std::optional<Version> last;  ///< whose parameters it has; who returns behind the end has older
  while (!process.is_killed) {
    const auto next = trainer.next();
    if (process.is_killed) break;
    if (!next.ok()) {
      fault(worker.name + ": " + next.error().to_string());
      break;
    }
    if (const auto* finished = std::get_if<worker::Finished>(&*next)) {
      world_.note(worker.name + " finished: " + finished->text);
      if (finished->reason == worker::Finished::Reason::kFinished && last == finished->version)
        ledger_.see(worker.name, finished->version.value, parameters());
      break;
    }
    const worker::Share& share = std::get<worker::Share>(*next);
    last = share.version;
    ledger_.see(worker.name, share.version.value, parameters());
    world_.let_pass(std::chrono::microseconds(500 + random.below(8000)));
    if (process.is_killed) break;
    std::vector<float> gradient(kParameters);
    Ledger::gradient(share.epoch, share.begin, share.end, gradient);
    std::size_t position = 0;
    for (std::uint32_t i = 0; share.samples() > 0 && i < manifest().size(); ++i) {
      const auto into = trainer.gradient(TensorId(i));
      std::copy_n(gradient.begin() + static_cast<std::ptrdiff_t>(position), into.size(),
                  into.begin());
      position += into.size();
      CENTROID_CHECK(trainer.ready(TensorId(i)).ok());
    }
    const std::size_t contribution = ledger_.add(worker.name, share);
    worker::StepStats stats;
    stats.samples = share.samples();
    stats.loss_sum = 1;
    const auto report = trainer.finish(stats);
    if (process.is_killed) break;
    if (!report.ok()) {
      fault(worker.name + ": " + report.error().to_string());
      break;
    }
    using Out = worker::RoundReport::Outcome;
    if (report->outcome == Out::kCommitted) {
      ledger_.decide(contribution, Ledger::Fate::kCounted, report->version.value);
      ledger_.see(worker.name, report->version.value, parameters());
      last = report->version;
      world_.note(worker.name + " has version " + std::to_string(report->version.value));
    } else if (report->outcome != Out::kLost) {
      ledger_.decide(contribution, Ledger::Fate::kIgnored);
    } else {
      world_.note(worker.name + " lost a round: " + report->reason);
    }
  }
  worker.stop = nullptr;
  if (!process.is_killed) worker.is_done = true;
}

void Job::kill_worker(Worker& worker) {
  world_.note("kill " + worker.name);
  worker.process->is_killed = true;
  worker.process->frozen_until = {};
  network_.remove(*worker.process, false);
  if (worker.stop) worker.stop();
}

// ---- faults and oracles

void Job::inject() {
  CounterRng& random = world_.random_numbers();
  Worker& worker = workers_[random.below(workers_.size())];
  ShardServer* const shard = shards_.empty() ? nullptr : &shards_[random.below(shards_.size())];
  Process& of_server = *server().process;
  const auto time = milliseconds(1 + random.below(8000));
  ++outcome_.injected;
  switch (random.below(shards_.empty() ? 7 : 10)) {
    case 0:
      world_.note("cut " + worker.name);
      return network_.cut(of_server, *worker.process);
    case 1:
      world_.note("partition " + worker.name);
      return network_.partition(of_server, *worker.process, time);
    case 2:
      world_.note("lose silently " + worker.name);
      return network_.lose_silently(of_server, *worker.process);
    case 3:
      world_.note("freeze " + worker.name);
      return world_.freeze(*worker.process, time);
    case 4:
      world_.note("freeze server");
      return world_.freeze(of_server, time);
    case 5:
      if (worker.is_done) return;
      kill_worker(worker);
      world_.let_pass(milliseconds(random.below(2000)));
      return start_worker(worker);
    case 7:
      world_.note("cut " + shard->name);
      return network_.cut(random.below(2) == 0 ? of_server : *worker.process, *shard->process);
    case 8:
      world_.note("freeze " + shard->name);
      return world_.freeze(*shard->process, time);
    case 9:
      if (shard->ended) return;
      kill_shard(*shard);
      world_.let_pass(milliseconds(random.below(2000)));
      return start_shard(*shard);
    default:
      if (server().ended) return;
      kill_server();
      world_.let_pass(milliseconds(random.below(2000)));
      return start_server(true);
  }
}

void Job::watch() {
  const auto present = view();
  if (!present) return;
  if (present->state == "halted") fault("the job halted: " + present->state_reason);
  newest_ = std::max(newest_, present->version);
  const std::string position = present->state + " " + std::to_string(present->version);
  if (std::exchange(position_, position) != position) {
    moved_ = world_.time();
    looks_ = 0;
  }
  if (world_.time() - moved_ < kNamedWithin || present->state != "training") return;
  Server& life = server();
  if (life.cluster == nullptr) return;
  looks_ = wait_on(life.executor, life.cluster->waits()).empty() ? looks_ + 1 : 0;
  if (looks_ == kMostLooks)
    fault("version " + std::to_string(present->version) + " stands still and nobody says why");
}

/// What watches over processes starts a shard server again that gave up; as one does that gets
/// another run's number from a server that was killed before it had a state.
void Job::supervise() {
  for (ShardServer& one : shards_)
    if (one.ended && !one.ended->ok() && newest_ <= plan_.rounds) start_shard(one);
}

void Job::drive() {
  start_server(false);
  for (std::size_t i = 0; i < plan_.shards; ++i) {
    ShardServer& one = shards_.emplace_back();
    one.name = "shard-" + std::to_string(i);
    one.endpoint = {.host = one.name, .port = 7070};
    start_shard(one);
  }
  for (std::size_t i = 0; i < plan_.workers; ++i) {
    Worker& worker = workers_.emplace_back();
    worker.name = "worker-" + std::to_string(i);
    start_worker(worker);
  }
  moved_ = world_.time();
  std::vector<std::uint64_t> when;  // versions
  for (std::size_t i = 0; i < plan_.faults; ++i)
    when.push_back(world_.random_numbers().below(plan_.rounds));
  std::ranges::sort(when);
  std::size_t next = 0;
  const auto is_over = [this] {
    return std::ranges::all_of(workers_, [](const Worker& one) { return one.is_done; });
  };
  while (!is_over() && outcome_.faults.empty()) {
    world_.let_pass(milliseconds(20));
    watch();
    supervise();
    while (next < when.size() && newest_ >= when[next] && newest_ <= plan_.rounds) {
      ++next;
      inject();
    }
    if (world_.time() - moved_ <= kMostWithoutProgress) continue;
    fault("no progress beyond version " + std::to_string(newest_) + " for " +
          std::to_string(kMostWithoutProgress.count()) + " s");
    Server& life = server();
    if (life.cluster == nullptr) break;
    for (const auto& wait : wait_on(life.executor, life.cluster->waits()))
      world_.note("wait: " + wait.who + " for " + wait.for_whom + ": " + wait.what);
  }
  outcome_.rounds = newest_;
  if (server().ended && outcome_.faults.empty())
    fault("the server ended: " +
          (server().ended->ok() ? std::string("ok") : server().ended->error().to_string()));
  if (!server().ended) kill_server();
  for (Worker& worker : workers_)
    if (!worker.is_done && !outcome_.faults.empty()) kill_worker(worker);
  for (ShardServer& one : shards_)
    if (!one.ended) kill_shard(one);
  for (Worker& worker : workers_) world_.join_thread(worker.thread);
  for (Server& life : lives_) world_.join_thread(life.thread);
}

}  // namespace centroid::simulation
