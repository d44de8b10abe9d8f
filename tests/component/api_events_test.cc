// Events over REST: pages, streams with replay, filters, and clients that do not read.
#include <future>
#include <thread>

#include "tests/component/api_fixture.h"

namespace centroid::test::api_events_test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kStream = "Accept: text/event-stream\r\n";

class ApiEvents : public ApiTest {
 protected:
  void happen(std::uint64_t epoch) {
    control.happened.publish("epoch.ended", {{"epoch", epoch}, {"loss", 0.5}, {"accuracy", 0.25}});
  }
  Json page(const std::string& query) {
    const HttpReply reply = request("GET", "/v1/events" + query);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
};

/// A stream of events as the client sees it: the head, then pieces of chunked text.
class Listener {
 public:
  Listener(std::uint16_t port, const std::string& target, const std::string& fields = {})
      : client_(port, milliseconds(5'000)) {
    client_.send(http_request_text("GET", target, kStream + fields));
    head_ = client_.receive().value_or(HttpReply());
  }
  const HttpReply& head() const { return head_; }
  /// The data of the next event; null when there is none in time.
  Json next() {
    for (;;) {
      const auto at = text_.find("\n\n");
      if (at == std::string::npos) {
        const auto chunk = client_.receive_chunk();
        if (!chunk || chunk->empty()) return Json();
        text_ += *chunk;
        continue;
      }
      const std::string block = text_.substr(0, at + 1);
      text_.erase(0, at + 2);
      const auto data = block.find("data: ");
      if (data != std::string::npos) return Json::parse(block.substr(data + 6), nullptr, false);
      ++comments;
    }
  }
  bool is_ended() { return client_.wait_closed(); }
  int comments = 0;

 private:
  HttpClient client_;
  HttpReply head_;
  std::string text_;
};

TEST_F(ApiEvents, ComeInPagesOldestFirst) {
  for (std::uint64_t i = 0; i < 5; ++i) happen(i);
  const Json first = page("?limit=2");
  ASSERT_EQ(first["events"].size(), 2U);
  EXPECT_EQ(first["events"][0]["epoch"], 0);
  EXPECT_EQ(first["events"][0]["type"], "epoch.ended");
  EXPECT_EQ(first["lost"], 0);
  const std::string next = first["next"];
  EXPECT_EQ(Json::parse(request("GET", next).body)["events"][0]["epoch"], 2);
  const Json rest = page("?since=" + first["last"].dump());
  ASSERT_EQ(rest["events"].size(), 3U);
  EXPECT_TRUE(rest["next"].is_null());
  EXPECT_TRUE(page("?since=" + rest["last"].dump())["events"].empty());
}

TEST_F(ApiEvents, AreChosenByTypeOrFamily) {
  happen(1);
  control.happened.publish("member.left", {{"worker", "w"}, {"member", 1U}, {"why", ""}});
  EXPECT_EQ(page("?type=member")["events"].size(), 1U);
  EXPECT_EQ(page("?type=epoch.ended,member.left")["events"].size(), 2U);
  EXPECT_EQ(page("?type=round")["events"].size(), 0U);
  expect_problem(request("GET", "/v1/events?type=weather"), 400, "invalid_argument",
                 "member.joined");
  expect_problem(request("GET", "/v1/events?since=x"), 400, "invalid_argument", "since");
  expect_problem(request("GET", "/v1/events", "Last-Event-ID: x\r\n"), 400, "invalid_argument",
                 "Last-Event-ID");
}

TEST_F(ApiEvents, WhatIsNoLongerKeptIsCounted) {
  happen(0);
  const std::uint64_t id = page("")["last"];
  for (std::uint64_t i = 0; i < 100; ++i) happen(i);
  const Json after = page("?limit=1000&since=" + std::to_string(id));
  EXPECT_EQ(after["events"].size(), 64U);
  EXPECT_EQ(after["lost"], 36);
  EXPECT_GT(page("?since=1")["lost"], 0) << "an id of an earlier start of the server";
}

TEST_F(ApiEvents, AStreamGoesOnWhereTheClientWas) {
  happen(1);
  start();
  Listener live(port(), "/v1/events");
  EXPECT_EQ(live.head().status, 200);
  EXPECT_EQ(live.head().fields.at("content-type"), "text/event-stream");
  EXPECT_EQ(live.head().fields.at("transfer-encoding"), "chunked");
  happen(2);
  const Json second = live.next();
  EXPECT_EQ(second["epoch"], 2) << "what was before is not sent";
  happen(3);
  EXPECT_EQ(live.next()["epoch"], 3);
  Listener again(port(), "/v1/events", "Last-Event-ID: " + second["id"].dump() + "\r\n");
  EXPECT_EQ(again.next()["epoch"], 3);
  Listener both(port(), "/v1/events?since=0", "Last-Event-ID: " + second["id"].dump() + "\r\n");
  EXPECT_EQ(both.next()["epoch"], 3) << "an EventSource that comes back asks as it did at first";
  Listener further(port(), "/v1/events?since=" + second["id"].dump(), "Last-Event-ID: 1\r\n");
  EXPECT_EQ(further.next()["epoch"], 3);
  Listener replay(port(), "/v1/events?since=0&type=epoch");
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(replay.next()["epoch"], i);
}

TEST_F(ApiEvents, AStreamSaysWhatItMissed) {
  happen(0);
  const std::uint64_t id = page("")["last"];
  for (std::uint64_t i = 0; i < 70; ++i) happen(i);
  Listener late(port(), "/v1/events?since=" + std::to_string(id));
  const Json lost = late.next();
  EXPECT_EQ(lost["type"], "events.lost");
  EXPECT_EQ(lost["lost"], 6);
  EXPECT_EQ(late.next()["epoch"], 6);
}

TEST_F(ApiEvents, SilenceIsFilledAndAStopEndsTheStream) {
  options.heartbeat = milliseconds(20);
  start();
  Listener live(port(), "/v1/events");
  auto wake = std::async(std::launch::async, [this] {
    std::this_thread::sleep_for(milliseconds(200));  // lint-ok: heartbeats come meanwhile
    happen(9);
  });
  EXPECT_EQ(live.next()["epoch"], 9);
  EXPECT_GE(live.comments, 2) << "a greeting and a heartbeat";
  io.wait(api->stop());
  EXPECT_TRUE(live.is_ended());
  api.reset();
}

TEST_F(ApiEvents, AClientThatDoesNotReadIsDropped) {
  options.write_timeout = milliseconds(100);
  start();
  HttpClient deaf(port());
  deaf.send(http_request_text("GET", "/v1/events", kStream));
  const std::string text(500, 'x');
  const auto is_dropped = [&] {
    for (int i = 0; i < 64; ++i)
      control.happened.publish("member.left", {{"worker", text}, {"member", 1U}, {"why", text}});
    const std::string metrics = registry.serialize();
    return metrics.find("connections_total{reason=\"slow\"} 1") != std::string::npos ||
           metrics.find("connections_total{reason=\"lagging\"} 1") != std::string::npos;
  };
  EXPECT_TRUE(eventually(is_dropped));
}

TEST_F(ApiEvents, StreamsAreLimited) {
  options.max_streams = 2;
  start();
  Listener first(port(), "/v1/events"), second(port(), "/v1/events");
  EXPECT_EQ(second.head().status, 200);
  expect_problem(request("GET", "/v1/events", kStream), 503, "resource_exhausted",
                 "2 streams of events");
  EXPECT_EQ(request("GET", "/v1/events").status, 200) << "a page is no stream";
}

}  // namespace
}  // namespace centroid::test::api_events_test
