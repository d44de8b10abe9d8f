#pragma once

#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include <boost/asio/this_coro.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/async/io_thread.h"
#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "server/api/api_server.h"
#include "tests/support/http_client.h"

namespace centroid::test {

using server::ApiOptions;
using server::ApiServer;

/// A cluster of two workers that answers at once, late, never, or with a planned error.
class SampleControl final : public server::ControlPlane {
 public:
  Task<server::ClusterView> cluster() override {
    co_await answer();
    server::ClusterView view;
    view.run_id = "run-1";
    view.state = "training";
    view.world = 2;
    view.learning.loss = std::numeric_limits<double>::quiet_NaN();
    co_return view;
  }
  Task<std::vector<server::WorkerView>> workers() override {
    co_await answer();
    std::vector<server::WorkerView> views(2);
    views[0].member = 7;
    views[0].name = "alpha";
    views[0].state = "active";
    views[1].member = 9;
    views[1].name = "bad utf-8 \xff";
    views[1].state = "dead";
    co_return views;
  }
  Task<std::vector<server::RoundView>> rounds(std::size_t limit,
                                              std::optional<server::RoundPlace> before) override {
    co_await answer();
    last_limit = limit;
    std::vector<server::RoundView> views;
    server::RoundView view;
    view.state = "closed";
    view.outcome = "committed";
    view.contributors.assign(1, "alpha");
    for (view.round = 3; view.round > 0 && views.size() < limit; --view.round)
      if (!before || server::RoundPlace(view.round, view.attempt) < *before) views.push_back(view);
    co_return views;
  }
  Task<server::CurvesView> curves(std::uint64_t after) override {
    co_await answer();
    server::CurvesView view;
    view.revision = 2;
    for (std::uint64_t round = after + 1; round <= 3; ++round) {
      server::CurvePointView& point = view.points.emplace_back();
      point.first = point.last = round;
      point.loss = 0.5;
    }
    co_return view;
  }
  Task<std::vector<server::EpochView>> epochs(std::size_t limit,
                                              std::optional<server::EpochPlace> before) override {
    co_await answer();
    last_limit = limit;
    std::vector<server::EpochView> views;
    server::EpochView view;
    view.state = "ended";
    view.loss = std::numeric_limits<double>::quiet_NaN();
    view.workers.resize(1);
    view.workers[0].name = "alpha";
    view.workers[0].share = 1;
    for (view.epoch = 3; view.epoch > 0 && views.size() < limit; --view.epoch)
      if (!before || server::EpochPlace(view.epoch, 0) < *before) views.push_back(view);
    co_return views;
  }
  Task<std::vector<server::WaitView>> waits() override {
    co_await answer();
    std::vector<server::WaitView> views(3);
    for (std::size_t i = 0; i < views.size(); ++i) views[i].waiter = "w" + std::to_string(i);
    co_return views;
  }
  Task<std::vector<server::ServerView>> servers() override {
    co_await answer();
    std::vector<server::ServerView> views(5);
    const char* const states[] = {"leader", "serving", "draining", "draining", "standby"};
    for (std::size_t i = 0; i < views.size(); ++i) {
      views[i].name = "s" + std::to_string(i);
      views[i].state = states[i];
      views[i].bytes = held_bytes[i];
    }
    co_return views;
  }
  Task<std::vector<std::string>> share_tokens() override { co_return std::vector<std::string>(); }
  Task<Status> drain_server(const std::string& name) override {
    co_return co_await act("drain server " + name);
  }
  Task<std::vector<server::CheckpointView>> checkpoints() override {
    co_await answer();
    co_return std::vector<server::CheckpointView>(1);
  }
  Task<std::vector<server::TableView>> tables() override {
    co_await answer();
    server::TableView view;
    view.name = "emb";
    co_return std::vector<server::TableView>{view};
  }
  Task<Result<server::CheckpointView>> make_checkpoint() override {
    CENTROID_CO_TRY(co_await act("checkpoint"));
    server::CheckpointView view;
    view.path = "ckpt/3";
    co_return view;
  }
  Task<Status> drain(std::uint64_t member) override {
    co_return co_await act("drain " + std::to_string(member));
  }
  Task<Result<server::ActView>> pause() override { return steer("pause"); }
  Task<Result<server::ActView>> resume() override { return steer("resume"); }
  Task<Result<server::ActView>> stop() override { return steer("stop"); }
  Task<Status> is_ready() override {
    co_await answer();
    if (!ready.load()) co_return Error(ErrorCode::kUnavailable, "not ready: it is a test");
    co_return Status();
  }
  Task<void> ping() override { return answer(); }
  server::EventLog& events() override { return happened; }
  Task<std::string> config_json() override {
    const std::lock_guard lock(mutex);
    co_return config;
  }
  Task<Result<std::string>> change_config(std::string json) override {
    CENTROID_CO_TRY(co_await act("config " + json));
    co_return co_await config_json();
  }
  Task<Result<server::CheckpointView>> verify_checkpoint(std::uint64_t version) override {
    CENTROID_CO_TRY(co_await act("verify " + std::to_string(version)));
    co_return server::CheckpointView();
  }
  Task<Result<server::CheckpointView>> delete_checkpoint(std::uint64_t version) override {
    CENTROID_CO_TRY(co_await act("delete " + std::to_string(version)));
    co_return server::CheckpointView();
  }
  Task<Result<server::RestoreView>> restore_checkpoint(std::uint64_t version,
                                                       bool delete_newer) override {
    const std::string more = delete_newer ? "!" : "";
    CENTROID_CO_TRY(co_await act("restore " + std::to_string(version) + more));
    co_return server::RestoreView();
  }
  Task<Result<std::vector<server::CheckpointFileView>>> checkpoint_files(
      std::uint64_t version) override {
    co_await answer();
    if (version != 7) co_return Error(ErrorCode::kNotFound, "there is no checkpoint 8");
    const std::lock_guard lock(mutex);
    co_return files;
  }
  Task<Result<server::ParametersView>> parameters() override {
    co_await answer();
    server::ParametersView view;
    view.version = 3;
    server::ParameterView one;
    one.name = "some-name";
    one.dtype = "f32";
    one.shape = {2, 3};
    view.parameters.push_back(one);
    one.name = "layer/1.bias";
    view.parameters.push_back(one);
    co_return view;
  }
  Task<std::vector<std::vector<server::PartView>>> tensor_parts(std::size_t first,
                                                                std::size_t count) override {
    co_await answer();
    std::vector<std::vector<server::PartView>> tensors;
    for (std::size_t tensor = first; tensor < std::min<std::size_t>(first + count, 2); ++tensor) {
      auto& parts = tensors.emplace_back(tensor + 1);  // of the second on two servers
      for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i].server = "s" + std::to_string(i);
        parts[i].bytes = 10 * (tensor + 1) + i;
      }
    }
    co_return tensors;
  }
  Task<Result<server::EvictionView>> evict(std::uint64_t member, double seconds,
                                           std::string why) override {
    CENTROID_CO_TRY(co_await act("evict " + std::to_string(member) + " " +
                                 std::to_string(static_cast<int>(seconds)) + " " + why));
    co_return server::EvictionView();
  }
  Task<std::vector<server::EvictionView>> evictions() override {
    co_await answer();
    co_return std::vector<server::EvictionView>(1);
  }
  Task<Status> allow(std::string name) override { co_return co_await act("allow " + name); }
  Task<server::ScaleView> scale(double efficiency) override {
    co_await answer();
    server::ScaleView view;
    view.efficiency = efficiency;
    view.limited_by = "workers";
    co_return view;
  }

  Task<Result<server::ScaleView>> hint_scale(std::uint64_t workers, std::string why) override {
    CENTROID_CO_TRY(co_await act("scale " + std::to_string(workers) + " " + why));
    server::ScaleView view;
    view.limited_by = "workers";
    view.hint_workers = view.target_workers = workers;
    co_return view;
  }
  Task<Result<server::NetworkView>> measure(std::uint64_t member,
                                            std::optional<std::uint64_t> to) override {
    const std::string there = to ? " to " + std::to_string(*to) : "";
    CENTROID_CO_TRY(co_await act("measure " + std::to_string(member) + there));
    server::NetworkView view;
    view.to = to;
    view.to_name = "beta";
    view.member = member;
    view.name = "alpha";
    view.round_trips = 3;
    co_return view;
  }

  void fail_with(std::optional<Error> error) {
    const std::lock_guard lock(mutex);
    planned = std::move(error);
  }
  std::string actions() {
    const std::lock_guard lock(mutex);
    return done;
  }

  SystemClock clock;
  server::EventLog happened{clock, 64};
  std::atomic<bool> ready{true};
  std::atomic<bool> held{false};  ///< calls wait while this is set
  std::atomic<bool> deaf{false};  ///< held calls do not notice that they are cancelled
  std::atomic<bool> throws{false};
  std::atomic<int> waiting{0};    ///< held calls
  std::atomic<int> cancelled{0};  ///< held calls that gave up
  std::atomic<std::size_t> last_limit{0};
  std::array<std::atomic<std::uint64_t>, 5> held_bytes{};  ///< by server
  std::mutex mutex;
  std::string config = "{\"listen\":{\"value\":1}}";
  std::vector<server::CheckpointFileView> files;  ///< of checkpoint 7
  std::optional<Error> planned;
  std::string done;

 private:
  Task<void> answer() {
    namespace asio = boost::asio;
    if (throws) throw std::runtime_error("planned");
    if (!held) co_return;
    if (deaf) co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
    co_await asio::this_coro::throw_if_cancelled(false);
    ++waiting;
    bool goes_on = true;
    while (held && goes_on)
      goes_on =
          co_await sleep_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
    --waiting;
    if (!goes_on) ++cancelled;
  }
  Task<Result<server::ActView>> steer(std::string what) {
    CENTROID_CO_TRY(co_await act(std::move(what)));
    co_return server::ActView();
  }
  Task<Status> act(std::string what) {
    co_await answer();
    const std::lock_guard lock(mutex);
    if (planned) co_return *planned;
    done += what + ";";
    co_return Status();
  }
};

/// A server on a free port with its own thread.
class ApiTest : public ::testing::Test {
 protected:
  void start() {
    auto made = ApiServer::start(io.executor(), options, control, registry);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    api = std::move(made).value();
  }
  void stop() {
    control.held = false;
    if (api) io.wait(api->stop());
    api.reset();
  }
  void TearDown() override { stop(); }

  std::uint16_t port() const { return api->endpoint().port; }
  /// One request on a connection of its own.
  HttpReply request(std::string_view method, std::string_view target, std::string_view fields = {},
                    std::string_view body = {}) {
    if (!api) start();
    HttpClient client(port());
    return client.request(method, target, fields, body);
  }
  bool is_counted_slow() const {
    const std::string line = "centroid_api_dropped_connections_total{reason=\"slow\"} 1";
    return registry.serialize().find(line) != std::string::npos;
  }
  template <class Condition>
  static bool eventually(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  SampleControl control;
  metrics::PrometheusRegistry registry;
  ApiOptions options;
  IoThread io{"api"};
  std::unique_ptr<ApiServer> api;
};

inline constexpr const char* kJson = "Content-Type: application/json\r\n";

/// A server that asks for tokens: of the operator, and named ones.
class ApiTokenTest : public ApiTest {
 protected:
  ApiTokenTest() { options.token = "operator"; }
  static std::string bearer(const std::string& secret) {
    return "Authorization: Bearer " + secret + "\r\n";
  }
  /// The secret of a new token.
  std::string make(const std::string& name, const std::string& role) {
    const std::string body = nlohmann::json{{"name", name}, {"role", role}}.dump();
    const HttpReply reply = request("POST", "/v1/tokens", bearer("operator") + kJson, body);
    EXPECT_EQ(reply.status, 201) << reply.body;
    return nlohmann::json::parse(reply.body).value("secret", "");
  }
};

inline void expect_problem(const HttpReply& reply, int status, const std::string& code,
                           const std::string& mentions = {}) {
  EXPECT_EQ(reply.status, status) << reply.body;
  ASSERT_TRUE(reply.fields.contains("content-type"));
  EXPECT_EQ(reply.fields.at("content-type"), "application/problem+json");
  const auto problem = nlohmann::json::parse(reply.body, nullptr, false);
  ASSERT_TRUE(problem.is_object()) << reply.body;
  EXPECT_EQ(problem.value("status", 0), status);
  EXPECT_EQ(problem.value("code", ""), code);
  EXPECT_EQ(problem.value("type", ""), "about:blank");
  EXPECT_NE(problem.value("title", ""), "");
  EXPECT_TRUE(problem.contains("instance"));
  EXPECT_NE(problem.value("detail", "").find(mentions), std::string::npos) << reply.body;
}

}  // namespace centroid::test
