// What a client may cost the REST server: sizes, times, numbers; and how the server stops.
#include <array>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/component/api_fixture.h"

namespace centroid::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST_F(ApiTest, HeadersOverTheLimitGet431) {
  start();
  EXPECT_EQ(request("GET", "/version", "X-Fill: " + std::string(7'000, 'x') + "\r\n").status, 200);
  const HttpReply reply = request("GET", "/version", "X-Fill: " + std::string(9'000, 'x') + "\r\n");
  expect_problem(reply, 431, "invalid_argument");
  EXPECT_EQ(reply.fields.at("connection"), "close");
  expect_problem(request("GET", "/" + std::string(9'000, 'x')), 431, "invalid_argument");
  // One that never ends is answered as soon as it is too long.
  HttpClient endless(port());
  endless.send("GET / HTTP/1.1\r\nX-Fill: " + std::string(100'000, 'x'));
  const auto refused = endless.receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 431);
  EXPECT_TRUE(endless.wait_closed());
}

TEST_F(ApiTest, EveryByteOfTheFieldsCountsAndSoDoesEachField) {
  start();
  const auto ask = [this](std::size_t fields, const std::string& field) {
    HttpClient client(port());
    std::string text = "GET /version HTTP/1.1\r\nHost: localhost\r\n";
    for (std::size_t i = 1; i < fields; ++i) text += field + "\r\n";
    client.send(text + "\r\n");
    return client.receive().value_or(HttpReply());
  };
  EXPECT_EQ(ask(100, "X:").status, 200);
  expect_problem(ask(101, "X:"), 431, "invalid_argument", "there are more than 100 fields");
  expect_problem(ask(4'000, "X:"), 431, "invalid_argument");
  const std::string field = "X-Fill: " + std::string(90, 'x');
  EXPECT_EQ(ask(80, field).status, 200);
  expect_problem(ask(90, field), 431, "invalid_argument", "larger than this server reads");
}

TEST_F(ApiTest, ARequestOfManyFieldsIsCountedUntilItIsAnswered) {
  start();
  const auto counts = [this](bool is_any) {
    return eventually([this, is_any] {
      request("GET", "/version");
      const std::string none = "centroid_budget_used{resource=\"rest_head_bytes\"} 0\n";
      return (registry.serialize().find(none) == std::string::npos) == is_any;
    });
  };
  HttpClient client(port());
  std::string text = "POST /v1/job:pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n";
  for (int i = 0; i < 80; ++i) text += "X:\r\n";
  client.send(text + kJson + "\r\n");
  EXPECT_TRUE(counts(true));
  client.send("{}");
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 202);
  EXPECT_TRUE(counts(false)) << "the connection is idle";
}

TEST_F(ApiTest, TheHeaderLimitIsTheConfiguredOne) {
  options.header_limit_bytes = 1024;
  EXPECT_EQ(request("GET", "/version", "X-Fill: " + std::string(900, 'x') + "\r\n").status, 200);
  const HttpReply reply = request("GET", "/version", "X-Fill: " + std::string(1'000, 'x') + "\r\n");
  expect_problem(reply, 431, "invalid_argument");
}

TEST_F(ApiTest, BodiesOverTheLimitGet413) {
  start();
  const char* json = "Content-Type: application/json\r\n";
  const std::string fits = "{" + std::string(64 * 1024 - 2, ' ') + "}";
  EXPECT_EQ(request("POST", "/v1/job:pause", json, fits).status, 202);
  expect_problem(request("POST", "/v1/job:pause", json, fits + " "), 413, "invalid_argument");
  // The length alone is enough: no byte of the body is waited for.
  HttpClient announced(port());
  announced.send(
      "POST /v1/job:pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
  EXPECT_EQ(announced.receive().value_or(HttpReply()).status, 413);
  HttpClient chunked(port());
  chunked.send(
      "POST /v1/job:pause HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("1000\r\n" + std::string(4096, ' ') + "\r\n");
  EXPECT_EQ(chunked.receive().value_or(HttpReply()).status, 413);
  EXPECT_EQ(control.actions(), "pause;");
}

TEST_F(ApiTest, WhatIsRefusedBeforeItIsReadNamesItsPathWhereThatCame) {
  start();
  const auto instance = [this](const std::string& text, int status) {
    HttpClient client(port());
    client.send(text);
    const HttpReply reply = client.receive().value_or(HttpReply());
    expect_problem(reply, status, "invalid_argument");
    return nlohmann::json::parse(reply.body, nullptr, false).value("instance", "");
  };
  const std::string fill(100'000, 'x');
  EXPECT_EQ(instance("GET /v1/rounds?limit=3 HTTP/1.1\r\nX-Fill: " + fill, 431), "/v1/rounds");
  EXPECT_EQ(instance("GET /v1/rounds HTTP/1.1\r\nno field at all\r\n\r\n", 400), "/v1/rounds");
  EXPECT_EQ(instance("POST /v1/job:pause HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
            "/v1/job:pause");
  EXPECT_EQ(instance("POST /v1/job:stop HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            "/v1/job:stop");
  // No path came.
  EXPECT_EQ(instance("GET /" + fill, 431), "/");
  EXPECT_EQ(instance("\x16\x03\x01 nonsense\r\n\r\n", 400), "/");
}

TEST_F(ApiTest, ChunkedBodiesAndExpectContinueWork) {
  start();
  HttpClient client(port());
  client.send(
      "POST /v1/job:pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n");
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 202);
  client.send(
      "POST /v1/job:resume HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 100);
  client.send("{}");
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 202);
}

TEST_F(ApiTest, WhatIsNoRequestGets400AndTheConnectionEnds) {
  start();
  const std::array<std::pair<const char*, int>, 9> cases = {{
      {"nonsense\r\n\r\n", 400},
      {"GET /version HTTP/1.1\r\n\r\n", 400},
      {"GET /version HTTP/9.9\r\nHost: localhost\r\n\r\n", 505},
      {"GET version HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET /version HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: "
       "chunked\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
  }};
  for (const auto& [text, status] : cases) {
    SCOPED_TRACE(text);
    HttpClient client(port());
    client.send(text);
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->status, status) << reply->body;
    EXPECT_EQ(reply->fields.at("content-type"), "application/problem+json");
  }
}

TEST_F(ApiTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  HttpClient client(port());
  std::string text = "\r\n";
  for (int i = 1; i <= 50; ++i)
    text += http_request_text("GET", "/v1/workers/" + std::to_string(1000 + i));
  client.send(text + http_request_text("HEAD", "/version") +
              http_request_text("GET", "/healthz", "Connection: close\r\n"));
  for (int i = 1; i <= 50; ++i) {
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value()) << i;
    expect_problem(*reply, 404, "not_found", std::to_string(1000 + i));
  }
  EXPECT_EQ(client.receive(true).value_or(HttpReply()).status, 200);
  EXPECT_EQ(client.receive().value_or(HttpReply()).body, "{\"status\":\"ok\"}");
  EXPECT_TRUE(client.wait_closed());
}

TEST_F(ApiTest, Http10ClosesUnlessAskedToStay) {
  start();
  HttpClient client(port());
  client.send("GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 200);
  client.send("GET /healthz HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 200);
  EXPECT_TRUE(client.wait_closed());
}

TEST_F(ApiTest, AClientThatDripsItsRequestIsDropped) {
  options.read_timeout = milliseconds(150);
  start();
  HttpClient client(port(), milliseconds(20));
  const auto begun = steady_clock::now();
  const std::string text =
      http_request_text("GET", "/version", "X-Fill: " + std::string(5'000, 'x') + "\r\n");
  bool is_dropped = false;
  for (std::size_t i = 0; i < text.size() && !is_dropped; ++i) {
    client.send(text.substr(i, 1));
    is_dropped = client.wait_closed();
  }
  EXPECT_TRUE(is_dropped) << "each byte must not give it new time";
  EXPECT_GE(steady_clock::now() - begun, milliseconds(140));
  EXPECT_TRUE(eventually([this] { return is_counted_slow(); }));
}

TEST_F(ApiTest, AClientThatTakesNoResponseIsDropped) {
  options.write_timeout = milliseconds(100);
  options.read_timeout = std::chrono::hours(1);  // else its rest would end the write too
  control.config.assign(std::size_t{32} << 20, ' ');
  start();
  HttpClient client(port());
  client.send(http_request_text("GET", "/v1/config"));
  EXPECT_TRUE(eventually([this] { return is_counted_slow(); }));
}

TEST_F(ApiTest, AnIdleConnectionIsClosed) {
  options.idle_timeout = milliseconds(60);
  start();
  HttpClient silent(port());
  EXPECT_TRUE(silent.wait_closed());
  HttpClient kept(port());
  EXPECT_EQ(kept.request("GET", "/healthz").status, 200);
  EXPECT_TRUE(kept.wait_closed());
}

TEST_F(ApiTest, OneConnectionTooManyTakesThePlaceOfTheNewestIdle) {
  options.max_connections = 3;
  start();
  HttpClient first(port());
  HttpClient second(port());
  HttpClient third(port());
  for (HttpClient* client : {&first, &second, &third})
    ASSERT_EQ(client->request("GET", "/healthz").status, 200);
  HttpClient fourth(port());
  EXPECT_EQ(fourth.request("GET", "/healthz").status, 200);
  EXPECT_TRUE(third.wait_closed());
  EXPECT_EQ(first.request("GET", "/healthz").status, 200);
  EXPECT_EQ(second.request("GET", "/healthz").status, 200);
}

TEST_F(ApiTest, SilentConnectionsPushOutEachOtherNotWhoAsks) {
  options.max_connections = 3;
  start();
  HttpClient asks(port());
  ASSERT_EQ(asks.request("GET", "/healthz").status, 200);
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<HttpClient>(port()));
  const std::string dropped = "refused_total{resource=\"rest_connections\"} 18";
  EXPECT_TRUE(eventually([&] { return registry.serialize().find(dropped) != std::string::npos; }));
  EXPECT_EQ(asks.request("GET", "/healthz").status, 200);
  EXPECT_EQ(request("GET", "/healthz").status, 200) << "there is room for who comes now";
}

TEST_F(ApiTest, OneThatHasJustComeHasTimeToAsk) {
  options.max_connections = 2;
  start();
  HttpClient silent(port());
  HttpClient comes(port());
  HttpClient next(port());
  EXPECT_TRUE(silent.wait_closed());
  EXPECT_EQ(comes.request("GET", "/healthz").status, 200);
}

TEST_F(ApiTest, WhenAllConnectionsAreBusyTheNextGets503) {
  options.max_connections = 2;
  control.held = true;
  start();
  HttpClient first(port());
  HttpClient second(port());
  first.send(http_request_text("GET", "/v1/cluster"));
  second.send(http_request_text("GET", "/v1/cluster"));
  ASSERT_TRUE(eventually([this] { return control.waiting == 2; }));
  HttpClient third(port());
  const auto refused = third.receive();
  ASSERT_TRUE(refused.has_value());
  expect_problem(*refused, 503, "resource_exhausted", "2 connections");
  EXPECT_TRUE(refused->fields.contains("retry-after"));
  control.held = false;
  EXPECT_EQ(first.receive().value_or(HttpReply()).status, 200);
  EXPECT_EQ(second.receive().value_or(HttpReply()).status, 200);
}

TEST_F(ApiTest, ACallPastItsDeadlineIsCancelledAndGets504) {
  options.call_timeout = milliseconds(50);
  control.held = true;
  start();
  for (const char* path : {"/readyz", "/v1/cluster", "/v1/workers", "/v1/workers/7", "/v1/rounds",
                           "/v1/waits", "/v1/checkpoints"}) {
    SCOPED_TRACE(path);
    expect_problem(request("GET", path), 504, "deadline_exceeded", "50 ms");
  }
  EXPECT_TRUE(eventually([this] { return control.cancelled == 7 && control.waiting == 0; }));
  EXPECT_EQ(request("GET", "/healthz").status, 200);
}

TEST_F(ApiTest, ACheckpointHasALongerDeadline) {
  options.call_timeout = milliseconds(1);
  control.held = true;
  start();
  HttpClient client(port());
  client.send(http_request_text("POST", "/v1/checkpoints"));
  ASSERT_TRUE(eventually([this] { return control.waiting == 1; }));
  expect_problem(request("GET", "/v1/cluster"), 504, "deadline_exceeded");
  control.held = false;
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 201);
  stop();
  options.checkpoint_timeout = milliseconds(30);
  control.held = true;
  start();
  expect_problem(request("POST", "/v1/checkpoints"), 504, "deadline_exceeded", "30 ms");
}

TEST_F(ApiTest, CallsThatNeverEndAreBoundedInNumber) {
  options.call_timeout = milliseconds(20);
  options.max_abandoned = 3;
  control.held = true;
  control.deaf = true;
  start();
  for (int i = 0; i < 3; ++i)
    expect_problem(request("GET", "/v1/cluster"), 504, "deadline_exceeded");
  expect_problem(request("GET", "/v1/cluster"), 503, "resource_exhausted", "3 earlier");
  EXPECT_EQ(control.waiting, 3);
  for (const char* probe : {"/livez", "/healthz", "/metrics"})  // nobody ends the process for it
    EXPECT_EQ(request("GET", probe).status, 200) << probe;
  control.held = false;
  ASSERT_TRUE(eventually([this] { return control.waiting == 0; }));
  EXPECT_TRUE(eventually([this] { return request("GET", "/v1/cluster").status == 200; }));
}

TEST_F(ApiTest, ConcurrentClientsEachGetTheirOwnAnswer) {
  start();
  std::vector<std::future<int>> clients;
  for (int c = 0; c < 16; ++c) {
    clients.push_back(std::async(std::launch::async, [this, c] {
      HttpClient client(port());
      int right = 0;
      for (int i = 0; i < 25; ++i) {
        const std::string id = std::to_string(100 + c * 25 + i);
        const HttpReply reply = client.request("GET", "/v1/workers/" + id);
        right += reply.status == 404 && reply.body.find("number " + id + "\"") != std::string::npos;
      }
      return right;
    }));
  }
  for (auto& client : clients) EXPECT_EQ(client.get(), 25);
}

TEST_F(ApiTest, StopLetsARunningRequestEnd) {
  control.held = true;
  start();
  const std::uint16_t old_port = port();
  HttpClient idle(port());
  ASSERT_EQ(idle.request("GET", "/healthz").status, 200);
  HttpClient reading(port());
  reading.send("GET /hea");
  HttpClient busy(port());
  busy.send(http_request_text("POST", "/v1/job:stop"));
  ASSERT_TRUE(eventually([this] { return control.waiting == 1; }));
  auto stopped = std::async(std::launch::async, [this] { io.wait(api->stop()); });
  EXPECT_TRUE(idle.wait_closed());
  EXPECT_TRUE(reading.wait_closed());
  EXPECT_FALSE(HttpClient(old_port).is_connected());
  control.held = false;
  const auto reply = busy.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->status, 202);
  EXPECT_EQ(reply->fields.at("connection"), "close");
  stopped.get();
  EXPECT_EQ(control.actions(), "stop;");
}

TEST_F(ApiTest, StopCancelsWhatOutlastsTheGrace) {
  options.stop_grace = milliseconds(50);
  control.held = true;
  start();
  HttpClient busy(port());
  busy.send(http_request_text("GET", "/v1/cluster"));
  ASSERT_TRUE(eventually([this] { return control.waiting == 1; }));
  auto first = std::async(std::launch::async, [this] { io.wait(api->stop()); });
  auto second = std::async(std::launch::async, [this] { io.wait(api->stop()); });
  const auto reply = busy.receive();
  ASSERT_TRUE(reply.has_value());
  expect_problem(*reply, 503, "cancelled", "stopping");
  first.get();
  second.get();
  EXPECT_EQ(control.cancelled, 1);
  EXPECT_EQ(control.waiting, 0) << "stop returned while a call still ran";
  io.wait(api->stop());
}

TEST_F(ApiTest, StopWaitsForACallThatDoesNotHearItsCancellation) {
  options.stop_grace = milliseconds(20);
  control.held = true;
  control.deaf = true;
  start();
  HttpClient busy(port());
  busy.send(http_request_text("GET", "/v1/cluster"));
  ASSERT_TRUE(eventually([this] { return control.waiting == 1; }));
  auto stopped = std::async(std::launch::async, [this] { io.wait(api->stop()); });
  EXPECT_EQ(busy.receive().value_or(HttpReply()).status, 503);
  EXPECT_TRUE(busy.wait_closed());
  EXPECT_EQ(stopped.wait_for(milliseconds(0)), std::future_status::timeout);
  control.held = false;
  stopped.get();
  EXPECT_EQ(control.waiting, 0);
}

TEST_F(ApiTest, PeersThatLeaveCostNothing) {
  start();
  for (int i = 0; i < 20; ++i) {
    HttpClient client(port());
    if (i % 3 == 1) client.send("GET /v1/clu");
    if (i % 3 == 2) client.send(http_request_text("GET", "/v1/cluster"));
  }
  EXPECT_TRUE(eventually([this] {
    return registry.serialize().find("centroid_budget_used{resource=\"rest_connections\"} 0") !=
           std::string::npos;
  }));
  EXPECT_EQ(request("GET", "/healthz").status, 200);
}

}  // namespace
}  // namespace centroid::test
