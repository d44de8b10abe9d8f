// What one caller may see, hold and try: streams end with their token, no token shuts out the
// others, answers are bounded together, and who is not let in is counted.
#include <fstream>
#include <latch>

#include <boost/asio/post.hpp>

#include "tests/component/api_fixture.h"
#include "tests/support/certificates.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kStream = "Accept: text/event-stream\r\n";

class ApiCallers : public ApiTokenTest {
 protected:
  void happen() {
    control.happened.publish("epoch.ended",
                             {{"epoch", std::uint64_t{1}}, {"loss", 0.5}, {"accuracy", 0.25}});
  }
  bool shows(const std::string& line) const {
    return ("\n" + registry.serialize()).find("\n" + line + "\n") != std::string::npos;
  }
};

/// A stream of events; what has come of it so far.
struct Watcher {
  Watcher(std::uint16_t port, const std::string& fields, const std::string& target = "/v1/events")
      : client(port) {
    client.send(http_request_text("GET", target, kStream + fields));
    head = client.receive().value_or(HttpReply());
  }
  /// Until `text` came; false: the stream ended, or nothing came any more.
  bool sees(const std::string& wanted) {
    while (text.find(wanted) == std::string::npos) {
      const auto chunk = client.receive_chunk();
      if (!chunk || chunk->empty()) return false;
      text += *chunk;
    }
    return true;
  }
  HttpClient client;
  HttpReply head;
  std::string text;
};

TEST_F(ApiCallers, WhoDidWhatIsForThoseWhoMayReadTheAuditLog) {
  start();
  const std::string viewer = make("eyes", "viewer");
  for (const std::string& secret : {viewer, make("node", "worker")}) {
    const HttpReply page = request("GET", "/v1/events?limit=100", bearer(secret));
    EXPECT_EQ(page.status, 200);
    EXPECT_EQ(page.body.find("audit.recorded"), std::string::npos) << page.body;
    expect_problem(request("GET", "/v1/events?type=audit", bearer(secret)), 403,
                   "failed_precondition", "role admin");
  }
  EXPECT_NE(request("GET", "/v1/events", bearer("operator")).body.find("audit.recorded"),
            std::string::npos);
  Watcher eyes(port(), bearer(viewer), "/v1/events?since=0");
  request("POST", "/v1/job:pause", bearer("operator"));
  happen();
  ASSERT_TRUE(eyes.sees("epoch.ended"));
  EXPECT_EQ(eyes.text.find("audit.recorded"), std::string::npos) << eyes.text;
}

TEST_F(ApiCallers, NoBodyIsReadBeforeTheTokenIsChecked) {
  options.read_timeout = std::chrono::seconds(60);
  start();
  for (const std::string& fields : {std::string(), bearer("wrong")})
    for (const char* length : {"Content-Length: 60000\r\n", "Transfer-Encoding: chunked\r\n"}) {
      HttpClient client(port());
      client.send("POST /v1/job:pause HTTP/1.1\r\nHost: localhost\r\n" + fields + kJson + length +
                  "\r\n");  // not a byte of the body
      const auto reply = client.receive();
      ASSERT_TRUE(reply.has_value());
      expect_problem(*reply, 401, "failed_precondition");
      EXPECT_EQ(reply->fields.at("connection"), "close");
      EXPECT_TRUE(reply->fields.contains("x-request-id"));
      EXPECT_TRUE(client.wait_closed());
    }
  EXPECT_TRUE(shows("centroid_api_refused_total{reason=\"no_token\"} 2"));
  EXPECT_TRUE(shows("centroid_api_refused_total{reason=\"unknown_token\"} 2"));
  // Nor is that of a probe, which needs no token; a client that waits for leave hears the refusal.
  HttpClient probe(port());
  probe.send(
      "GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"
      "Expect: 100-continue\r\n\r\n");
  expect_problem(probe.receive().value_or(HttpReply()), 400, "invalid_argument", "takes no body");
  // With a token it is read, and one without a body goes on with its connection.
  HttpClient known(port());
  EXPECT_EQ(known.request("POST", "/v1/job:pause").status, 401);
  EXPECT_EQ(known.request("POST", "/v1/job:pause", bearer("operator") + kJson, "{}").status, 202);
}

TEST_F(ApiCallers, AStreamEndsWithItsToken) {
  options.heartbeat = std::chrono::milliseconds(50);
  start();
  Watcher eyes(port(), bearer(make("eyes", "viewer"))), boss(port(), bearer("operator"));
  ASSERT_EQ(eyes.head.status, 200);
  happen();
  EXPECT_TRUE(eyes.sees("epoch.ended"));
  ASSERT_EQ(request("DELETE", "/v1/tokens/eyes", bearer("operator")).status, 200);
  control.happened.publish("member.left", {{"worker", "w"}, {"member", 1U}, {"why", ""}});
  EXPECT_FALSE(eyes.sees("member.left"));
  EXPECT_TRUE(eyes.client.wait_closed());
  EXPECT_TRUE(boss.sees("member.left")) << "others go on";
  EXPECT_TRUE(eventually(
      [this] { return shows("centroid_budget_used{resource=\"rest_event_streams\"} 1"); }));
}

TEST_F(ApiCallers, OneTokenHasAtMostHalfOfTheStreams) {
  options.max_streams = 4;
  start();
  const std::string viewer = bearer(make("eyes", "viewer"));
  Watcher first(port(), viewer), second(port(), viewer);
  EXPECT_EQ(second.head.status, 200);
  const HttpReply third = request("GET", "/v1/events?since=0", kStream + viewer);
  expect_problem(third, 503, "resource_exhausted", "the token 'eyes' has 2 streams of events");
  EXPECT_EQ(Json::parse(third.body)["instance"], "/v1/events");
  EXPECT_TRUE(third.fields.contains("x-request-id"));
  EXPECT_TRUE(
      shows("centroid_api_requests_total{code=\"5xx\",method=\"GET\",route=\"/v1/events\"} 1"))
      << registry.serialize();
  Watcher other(port(), bearer("operator")), last(port(), bearer("operator"));
  EXPECT_EQ(last.head.status, 200) << "others have theirs";
  expect_problem(request("GET", "/v1/events", kStream + bearer(make("more", "viewer"))), 503,
                 "resource_exhausted", "all 4 streams of events");
}

TEST_F(ApiCallers, StreamsOfEventsLeaveRoomForFiles) {
  TemporaryDirectory folder;
  const auto path = folder.path() / "model.safetensors";
  std::ofstream(path) << "content";
  control.files = {{"model.safetensors", path.string(), 7, 1}};
  options.max_streams = 2;
  start();
  Watcher first(port(), bearer("operator")), second(port(), bearer(make("eyes", "viewer")));
  EXPECT_EQ(second.head.status, 200);
  const HttpReply file =
      request("GET", "/v1/checkpoints/7/files/model.safetensors", bearer("operator"));
  EXPECT_EQ(file.status, 200) << file.body;
  EXPECT_EQ(file.body, "content");
}

TEST_F(ApiCallers, AnswersThatNobodyTakesAreBoundedTogether) {
  options.max_pending_bytes = 100'000;
  options.write_timeout = std::chrono::seconds(60);
  control.config = "{\"text\":{\"value\":\"" + std::string(64u << 20, 'x') + "\"}}";
  start();
  HttpClient deaf(port());
  deaf.send(http_request_text("GET", "/v1/config", bearer("operator")));
  ASSERT_TRUE(eventually(
      [this] { return !shows("centroid_budget_used{resource=\"rest_answer_bytes\"} 0"); }));
  expect_problem(request("GET", "/v1/config", bearer("operator")), 503, "resource_exhausted",
                 "unread answers take");
  EXPECT_EQ(request("GET", "/v1/cluster", bearer("operator")).status, 200) << "small ones may";
  const HttpReply page = request("GET", "/console/uplot.js", "Accept: */*\r\n");
  EXPECT_EQ(page.status, 200) << "it is not copied";
  EXPECT_GT(page.body.size(), 10'000U);
}

TEST_F(ApiCallers, OneTraceIsWrittenAtATime) {
  IoThread files{"files"};
  options.blocking = files.executor();
  start();
  std::latch go(1);
  boost::asio::post(files.context(), [&go] { go.wait(); });
  HttpClient first(port());
  first.send(http_request_text("GET", "/v1/trace", bearer("operator")));
  HttpReply second;
  EXPECT_TRUE(eventually([&] {
    second = HttpClient(port(), std::chrono::milliseconds(100))
                 .request("GET", "/v1/trace", bearer("operator"));
    return second.status == 429;
  }));
  go.count_down();
  EXPECT_EQ(first.receive().value_or(HttpReply()).status, 200);
  EXPECT_EQ(request("GET", "/v1/trace", bearer("operator")).status, 200);
  stop();
}

TEST_F(ApiCallers, WhoIsNotLetInIsCounted) {
  start();
  const std::string viewer = make("eyes", "viewer");
  EXPECT_TRUE(shows("centroid_api_refused_total{reason=\"no_token\"} 0"));
  request("GET", "/v1/cluster");
  request("GET", "/v1/cluster", bearer("guess"));
  request("GET", "/v1/cluster", bearer("guess again"));
  request("POST", "/v1/job:pause", bearer(viewer));
  request("GET", "/healthz");
  EXPECT_TRUE(shows("centroid_api_refused_total{reason=\"no_token\"} 1"));
  EXPECT_TRUE(shows("centroid_api_refused_total{reason=\"unknown_token\"} 2"));
  EXPECT_TRUE(shows("centroid_api_refused_total{reason=\"role\"} 1"));
}

TEST_F(ApiCallers, AServiceThreadThatHangsIsSeen) {
  options.hang_after = std::chrono::milliseconds(50);
  start();
  EXPECT_EQ(request("GET", "/livez").status, 200);
  control.held = control.deaf = true;
  EXPECT_TRUE(eventually([this] { return request("GET", "/livez").status == 503; }));
  expect_problem(request("GET", "/livez"), 503, "unavailable",
                 "the service thread has not answered");
  EXPECT_EQ(request("GET", "/healthz").status, 200) << "the process lives";
  control.held = control.deaf = false;
  EXPECT_TRUE(eventually([this] { return request("GET", "/livez").status == 200; }));
}

TEST_F(ApiCallers, TheMachineIsDescribed) {
  TemporaryDirectory folder;
  Authority authority(folder.path());
  options.certificates = {authority.issue("server").certificate,
                          authority.issue("old", "DNS:localhost", -1).certificate,
                          (folder.path() / "none.crt").string()};
  options.state_dir = folder.path().string();
  start();
  const Json host = Json::parse(request("GET", "/v1/host", bearer("operator")).body);
  EXPECT_GT(host["total_bytes"], 0);
  EXPECT_LE(host["free_bytes"], host["total_bytes"]);
  const double now = SystemClock().unix_seconds();
  EXPECT_GT(host["certificates"][0]["expires_unix_seconds"], now);
  EXPECT_LT(host["certificates"][1]["expires_unix_seconds"], now);
  EXPECT_TRUE(host["certificates"][2]["expires_unix_seconds"].is_null());
  EXPECT_NE(host["certificates"][2]["problem"].get<std::string>().find("none.crt"),
            std::string::npos);
}

TEST_F(ApiCallers, AWayBetweenWorkersIsAskedForByNumber) {
  start();
  const auto measure = [this](const char* body) {
    return request("POST", "/v1/workers/7:measure", bearer("operator") + kJson, body);
  };
  const Json found = Json::parse(measure("{\"to\":9}").body);
  EXPECT_EQ(found["to"], 9);
  EXPECT_EQ(found["to_name"], "beta");
  EXPECT_TRUE(Json::parse(measure("{}").body)["to"].is_null());
  for (const char* odd : {"{\"to\":-1}", "{\"to\":1.5}", "{\"to\":\"9\"}", "{\"to\":1e300}"})
    EXPECT_EQ(measure(odd).status, 400) << odd;
  EXPECT_EQ(control.actions(), "measure 7 to 9;measure 7;");
}

TEST_F(ApiCallers, HandshakesOfAnAddressAreBounded) {
  TemporaryDirectory folder;
  Authority authority(folder.path());
  transport::TlsOptions tls = authority.issue("server");
  tls.is_server = true;
  tls.authority.clear();
  options.tls = transport::make_tls(std::move(tls)).value();
  options.requests_per_second = 5;  // a fifth of it, and two at least
  options.read_timeout = std::chrono::seconds(60);
  start();
  HttpClient first(port()), second(port()), third(port());
  EXPECT_TRUE(third.wait_closed());
  EXPECT_TRUE(shows("centroid_budget_refused_total{resource=\"rest_handshakes\"} 1"));
  EXPECT_TRUE(shows("centroid_budget_used{resource=\"rest_connections\"} 2"))
      << "the others may go on";
}

}  // namespace
}  // namespace centroid::test
