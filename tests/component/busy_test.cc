#include <atomic>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <numeric>

#include <gtest/gtest.h>

#include "common/base/trace_events.h"
#include "tests/support/in_process.h"
#include "tests/support/quadratic.h"
#include "tests/support/sleeping.h"
#include "tests/unit/temporary_directory.h"
#include "worker/model/backend.h"

/// What is to happen at the same time does: devices that compute, an exchange behind computing,
/// unequal workers, whose steps sleep. docs/internals/benchmarks.md has what real steps give.
namespace centroid::test {
namespace {

using server::ServerConfig;
using Ready = SleepingGroup::Ready;

/// Where devices that compute at the same time meet.
class Meeting {
 public:
  explicit Meeting(int wanted) : wanted_(wanted) {}
  /// Block until so many are here; false past a minute.
  bool come() {
    std::unique_lock lock(mutex_);
    ++present_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return present_ >= wanted_; });
  }

 private:
  const int wanted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int present_ = 0;
};

/// A model whose step begins when all devices have come to theirs.
class MeetingModel final : public worker::Model {
 public:
  MeetingModel(std::unique_ptr<worker::Model> model, std::shared_ptr<Meeting> meeting)
      : model_(std::move(model)), meeting_(std::move(meeting)) {}
  const Manifest& manifest() const override { return model_->manifest(); }
  std::uint64_t features() const override { return model_->features(); }
  std::uint32_t classes() const override { return model_->classes(); }
  std::string spec() const override { return model_->spec(); }
  std::uint64_t work_bytes(std::uint64_t samples, bool with_gradient) const override {
    return model_->work_bytes(samples, with_gradient);
  }
  void initialize(std::uint64_t seed, std::span<float> params) const override {
    model_->initialize(seed, params);
  }
  void queue_step(const worker::Batch& batch, std::span<const float> params,
                  std::span<float> gradients,
                  const std::function<void(TensorId)>& on_ready) override {
    EXPECT_TRUE(meeting_->come()) << "one device waits for the other";
    model_->queue_step(batch, params, gradients, on_ready);
  }
  void queue_evaluate(const worker::Batch& batch, std::span<const float> params) override {
    model_->queue_evaluate(batch, params);
  }
  worker::Backend& backend() override { return model_->backend(); }
  std::unique_ptr<Model> clone_on(std::unique_ptr<worker::Backend> backend) const override {
    return std::make_unique<MeetingModel>(model_->clone_on(std::move(backend)), meeting_);
  }

 private:
  std::unique_ptr<worker::Model> model_;
  std::shared_ptr<Meeting> meeting_;
};

TEST(Busy, TwoDevicesComputeAtTheSameTime) {
  const MeetingModel model(worker::make_model("mlp:8-16-4").value(), std::make_shared<Meeting>(2));
  const auto data = make_blobs(64, 8, 4, 1);
  const auto group = worker::make_replica_group(model, {.devices = "cpu:0,cpu:1"}).value();
  model.initialize(1, group->params());
  std::vector<std::uint64_t> batch(32);
  std::iota(batch.begin(), batch.end(), 0);
  EXPECT_TRUE(group->step(data.train, batch, [](TensorId) {}).ok());
}

/// What the threads of this process have run and have waited for a processor, in seconds, by
/// thread: however busy the machine is, who has something to do counts, and who waits for a lock
/// does not. Empty where the kernel does not say.
std::map<std::string, double> wanted_seconds() {
  std::map<std::string, double> out;
  std::error_code failed;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    std::ifstream in(task.path() / "schedstat");
    double ran = 0, waited = 0;
    if (in >> ran >> waited) out[task.path().filename()] = (ran + waited) / 1e9;
  }
  return out;
}

/// So it is with real steps: two devices want more than one processor, which they would not if a
/// lock let only one of them compute at a time. (1.98; 1.02 with such a lock.)
TEST(Busy, TwoDevicesWantTwoProcessors) {
  if (wanted_seconds().empty()) GTEST_SKIP() << "no /proc/self/task/*/schedstat";
  const auto model = worker::make_model("transformer:layers=2,width=128,context=64").value();
  constexpr std::uint64_t kSamples = 64;  // a step is long beside the time a wake-up takes
  worker::Dataset data;
  data.samples = kSamples;
  data.features = model->features();
  data.classes = model->classes();
  data.vocabulary = model->vocabulary();
  for (std::uint64_t i = 0; i <= kSamples; ++i) data.token_begin.push_back(i * (data.features + 1));
  for (std::uint64_t i = 0; i < kSamples * (data.features + 1); ++i)
    data.tokens.push_back(static_cast<std::uint32_t>((i * 7) % data.vocabulary));
  std::vector<std::uint64_t> batch(kSamples);
  std::iota(batch.begin(), batch.end(), 0);
  const auto group = worker::make_replica_group(*model, {.devices = "cpu:0,cpu:1"}).value();
  model->initialize(1, group->params());
  const auto step = [&] { EXPECT_TRUE(group->step(data, batch, [](TensorId) {}).ok()); };
  step();  // memory is taken
  const auto before = wanted_seconds();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) step();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  double wanted = 0;
  for (const auto& [thread, seconds] : wanted_seconds())
    if (before.contains(thread)) wanted += seconds - before.at(thread);
  std::printf("%.2f processors\n", wanted / took.count());
  EXPECT_GT(wanted, 1.4 * took.count());
}

/// From its second step on it has all tensors but the last when `computes` is over.
class HeldBackGroup final : public CustomGroup {
 public:
  HeldBackGroup(std::uint32_t tensors, std::uint64_t parameters, std::shared_future<void> computes)
      : CustomGroup(parameters, 1e-3f), tensors_(tensors), computes_(std::move(computes)) {}
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    for (std::uint32_t tensor = tensors_ - 1; tensor > 0; --tensor) on_ready(TensorId(tensor));
    if (steps_++ > 0) computes_.wait();
    on_ready(TensorId(0));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }

 private:
  const std::uint32_t tensors_;
  const std::shared_future<void> computes_;
  std::uint64_t steps_ = 0;
};

/// An exchange hides behind computing: the tensors that are computed have travelled to the server,
/// and their results back, before the last one is computed. (docs/internals/benchmarks.md says how
/// much time that saves.)
TEST(Busy, TensorsAreExchangedWhileOthersAreComputed) {
  constexpr std::uint32_t kTensors = 20;
  constexpr std::uint64_t kParameters = 200'000, kWorkers = 2;
  constexpr std::uint64_t kBytes = sizeof(float) * kParameters / kTensors * (kTensors - 1);
  const TemporaryDirectory directory;
  ServerConfig config;
  config.run_dir = directory.path();
  config.goal.rounds = 2;
  config.workers.min = kWorkers;
  config.leaving.when_finished = true;
  config.optimizer = {.name = "sgd", .learning_rate = 0.1};  // a chunk needs no other one
  const auto transports = [](Executor executor) { return transport::make_tcp(executor, {}); };
  TestServer server(config, transports);
  const worker::DataSplit data = numbers(1'000);
  std::promise<void> is_measured, is_computed;
  const auto measured = is_measured.get_future().share();
  const auto computed = is_computed.get_future().share();
  std::atomic<std::uint64_t> first_rounds = 0;
  std::vector<Status> ended(kWorkers);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kWorkers; ++i)
    threads.emplace_back([&, i] {
      WorkerSpec spec;
      spec.name = std::string("worker-").append(std::to_string(i));
      auto model = std::make_shared<CustomModel>(
          *sleeping_model(kTensors, kParameters, 0, Ready::kAtTheEnd));
      model->make_group = [&] {
        return std::make_unique<HeldBackGroup>(kTensors, kParameters, computed);
      };
      spec.custom = model;
      const auto observe = [&](const worker::Share& share, const auto&, const auto&, const auto&) {
        if (share.round.value != 1) return;
        ++first_rounds;
        measured.wait();
      };
      ended[i] = run_worker(spec, data, server.endpoint(), transports, observe).status;
    });
  EXPECT_TRUE(server.wait_until([&](const auto&) { return first_rounds == kWorkers; }));
  const auto before = server.workers();
  is_measured.set_value();
  const bool is_exchanged = server.wait_until([&](const auto&) {
    const auto now = server.workers();
    for (std::size_t i = 0; i < kWorkers; ++i)
      if (now[i].bytes_in < before[i].bytes_in + kBytes ||
          now[i].bytes_out < before[i].bytes_out + kBytes)
        return false;
    return true;
  });
  EXPECT_TRUE(is_exchanged);
  is_computed.set_value();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(server.join().ok());
  for (const Status& status : ended) EXPECT_TRUE(status.ok()) << status.error().to_string();
}

class BusyWorkers : public ::testing::Test, protected InProcess {
 protected:
  ServerConfig config() {
    ServerConfig c = config_of_own();
    c.workers.min = 2;
    c.local.count = 10;
    c.local.outer = "average";
    c.cadence.mode = "tuned";
    return c;
  }
};

/// Steps of 5 and 15 ms: together at least 85 % of what the two make each for itself, with the
/// defaults of the cadence, over the ends of short epochs.
TEST_F(BusyWorkers, UnequalOnesMakeMostOfTheirSteps) {
  constexpr std::uint64_t kBatch = 8;
  const auto data = numbers(45 * kBatch);
  ServerConfig c = config();
  c.goal.rounds = 30;
  TestServer server(c, transports());
  std::vector<WorkerSpec> specs(2);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = "worker-" + std::to_string(i);
    specs[i].batch = kBatch;
    specs[i].custom = sleeping_model(4, 80, i == 0 ? 0.005 : 0.015, Ready::kAtTheEnd);
  }
  double compute[2] = {0, 0}, lasted[2] = {0, 0};
  std::uint64_t samples[2] = {0, 0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < specs.size(); ++i)
    threads.emplace_back([&, i] {
      std::optional<std::chrono::steady_clock::time_point> begin;
      const auto observe = [&](const worker::Share& share, const worker::StepStats& stats,
                               const worker::RoundReport&, const worker::TrainingSummary&) {
        const auto now = std::chrono::steady_clock::now();
        if (begin) {
          compute[i] += stats.compute_seconds;
          samples[i] += stats.samples;
          lasted[i] = std::chrono::duration<double>(now - *begin).count();
        }
        if (share.round.value == 4) begin = now;  // speeds are known
      };
      EXPECT_TRUE(run_worker(specs[i], data, server.endpoint(), transports(), observe).status.ok());
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(server.join().ok());
  // By what a step really took, for on a loaded machine sleeping takes longer.
  double made = 0, possible = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    made += static_cast<double>(samples[i]);
    possible += lasted[i] * static_cast<double>(samples[i]) / compute[i];
  }
  EXPECT_GE(made / possible, 0.85);
  EXPECT_GT(samples[0], 2 * samples[1]);
  std::printf("%.1f %% of what both make alone\n", 100 * made / possible);
}

/// Marks of this name in the trace, that is in the last minutes.
std::size_t marks(const std::string& name) {
  const auto all = trace::capture(600).marks;
  return static_cast<std::size_t>(std::ranges::count(all, name, &trace::Capture::Mark::name));
}

/// The exchange costs more than a hundredth of two short steps: there are more of them, and the
/// trace says so.
TEST_F(BusyWorkers, AChangeOfTheCadenceIsInTheTrace) {
  const auto data = numbers(8000);
  ServerConfig c = config();
  c.goal.rounds = 12;
  c.local.count = 2;
  c.cadence.overhead = 0.01;
  c.cadence.divergence = 0;
  TestServer server(c, transports());
  const std::size_t before = marks("cadence.changed");
  std::vector<WorkerSpec> specs(2);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = "worker-" + std::to_string(i);
    specs[i].batch = 1;
    specs[i].custom = sleeping_model(4, 80, 0.001, Ready::kAtTheEnd);
  }
  for (const auto& outcome : run_workers(specs, data, server.endpoint(), transports()))
    ASSERT_TRUE(outcome.status.ok());
  ASSERT_TRUE(server.join().ok());
  EXPECT_GT(server.view().cadence.steps, 2u);
  EXPECT_GT(marks("cadence.changed"), before);
}

/// Steps that take a worker's parameters away from the other's, further with every step.
class DriftingGroup final : public QuadraticGroup {
 public:
  explicit DriftingGroup(float direction) : QuadraticGroup(80), direction_(direction) {}
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>&) override {
    std::ranges::fill(gradients(), direction_);
    direction_ *= 1.01f;
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }

 private:
  float direction_;
};

/// `cadence.guard predict` in a server that trains: rounds get shorter before the divergence passes
/// its threshold. `halve` waits until it has.
TEST_F(BusyWorkers, APredictedDivergenceShortensTheRounds) {
  const auto data = numbers(8000);
  for (const std::string guard : {"predict", "halve"}) {
    SCOPED_TRACE(guard);
    ServerConfig c = config();
    c.goal.rounds = 14;
    c.local.count = c.cadence.max_steps = 40;
    c.cadence.guard = guard;
    c.cadence.max_lead = 0;  // the same steps for both, whatever the speeds are
    TestServer server(c, transports());
    const std::size_t marked = marks("cadence.reduced");
    std::vector<WorkerSpec> specs(2);
    std::vector<double> found;  // by the first worker, at the end of each round
    std::vector<std::uint64_t> steps;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].batch = 1;
      specs[i].inner = {.name = "sgd", .learning_rate = 1};
      auto model = std::make_shared<CustomModel>(*quadratic_model());
      const float direction = i == 0 ? 2e-4f : -2e-4f;
      model->make_group = [direction] { return std::make_unique<DriftingGroup>(direction); };
      model->initialize = [](std::uint64_t, std::span<float> params) {
        std::ranges::fill(params, 1.0f);
      };
      specs[i].custom = model;
      threads.emplace_back([&, i] {
        const auto observe = [&](const worker::Share& share, const worker::StepStats& stats,
                                 const worker::RoundReport&, const worker::TrainingSummary&) {
          if (i > 0) return;
          found.push_back(stats.divergence);
          steps.push_back(share.samples());
        };
        EXPECT_TRUE(
            run_worker(specs[i], data, server.endpoint(), transports(), observe).status.ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(server.join().ok());
    ASSERT_EQ(found.size(), 14u);
    std::size_t shorter = 2;  // the first round that is, behind the probe
    while (shorter < steps.size() && steps[shorter] >= 40) ++shorter;
    ASSERT_LT(shorter, steps.size());
    const double before =
        *std::max_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(shorter));
    // Half as much again in each round: 0.024 to 0.036 with predict, 0.055 where a busy machine
    // makes steps uneven; 0.074 mostly with halve, which begins above the threshold.
    EXPECT_TRUE(guard == "predict" ? before < 0.06 : before > 0.05)
        << before << " in round " << shorter;
    EXPECT_EQ(server.registry().serialize().find("centroid_server_cadence_nudges_total 0"),
              std::string::npos);
    EXPECT_GT(marks("cadence.reduced"), marked);
  }
}

}  // namespace
}  // namespace centroid::test
