#include "transport/http/metrics_listener.h"

#include <atomic>
#include <string>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>

#include "common/async/pulse.h"
#include "common/base/prometheus_registry.h"

namespace centroid::transport {
namespace {

/// All that the listener answers until it closes.
std::string send(const Endpoint& endpoint, const std::string& request) {
  boost::asio::io_context context;
  boost::asio::ip::tcp::socket socket(context);
  boost::asio::ip::tcp::resolver resolver(context);
  boost::asio::connect(socket, resolver.resolve(endpoint.host, std::to_string(endpoint.port)));
  boost::asio::write(socket, boost::asio::buffer(request));
  std::string response;
  boost::system::error_code at_end;
  boost::asio::read(socket, boost::asio::dynamic_buffer(response), at_end);
  return response;
}

/// The whole response of one request.
std::string ask(const Endpoint& endpoint, const std::string& path) {
  return send(endpoint, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

bool has(const std::string& response, const std::string& text) {
  return response.find(text) != std::string::npos;
}

TEST(MetricsListener, probes_say_why_the_process_is_not_well) {
  metrics::PrometheusRegistry registry;
  std::atomic<bool> is_live = true, is_ready = false;
  const auto look = [](const std::atomic<bool>& is_well, const char* why) {
    return is_well ? Status() : Status(Error(ErrorCode::kUnavailable, why));
  };
  MetricsOptions options;
  options.endpoint.host = "127.0.0.1";
  options.endpoint.port = 0;
  options.is_live = [&] { return look(is_live, "it hangs"); };
  options.is_ready = [&] { return look(is_ready, "no leader"); };
  const auto started = MetricsListener::start(std::move(options), registry);
  ASSERT_TRUE(started.ok()) << started.error().message();
  const Endpoint at = started.value()->endpoint();
  EXPECT_TRUE(has(ask(at, "/livez"), "HTTP/1.1 200"));
  EXPECT_TRUE(has(ask(at, "/readyz"), "HTTP/1.1 503"));
  EXPECT_TRUE(has(ask(at, "/readyz"), "no leader\n"));
  is_live = false;
  is_ready = true;
  EXPECT_TRUE(has(ask(at, "/livez"), "HTTP/1.1 503"));
  EXPECT_TRUE(has(ask(at, "/livez"), "it hangs\n"));
  EXPECT_TRUE(has(ask(at, "/readyz"), "HTTP/1.1 200"));
  EXPECT_TRUE(has(ask(at, "/healthz"), "HTTP/1.1 200"));  // the listener itself answers
  EXPECT_TRUE(has(ask(at, "/elsewhere"), "HTTP/1.1 404"));
}

TEST(MetricsListener, a_view_is_for_readers_only) {
  metrics::PrometheusRegistry registry;
  MetricsOptions options;
  options.endpoint.host = "127.0.0.1";
  options.endpoint.port = 0;
  options.views.push_back({"/v1/view", [] { return std::string("{\"rank\":1}\n"); }});
  options.views.push_back({"/", [] { return std::string("<p>page"); }, "text/html"});
  const auto started = MetricsListener::start(std::move(options), registry);
  ASSERT_TRUE(started.ok()) << started.error().message();
  const Endpoint at = started.value()->endpoint();
  const std::string view = ask(at, "/v1/view?limit=1");
  EXPECT_TRUE(has(view, "HTTP/1.1 200")) << view;
  EXPECT_TRUE(has(view, "Content-Type: application/json")) << view;
  EXPECT_TRUE(has(view, "{\"rank\":1}\n")) << view;
  const std::string page = ask(at, "/");
  EXPECT_TRUE(has(page, "Content-Type: text/html")) << page;
  EXPECT_TRUE(has(page, "Content-Security-Policy: default-src 'none'")) << page;
  EXPECT_TRUE(has(page, "<p>page")) << page;
  EXPECT_TRUE(has(ask(at, "/v1/views"), "/v1/trace, /v1/view, /\n"));
  const std::string write = "POST /v1/view HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  EXPECT_TRUE(has(send(at, write), "HTTP/1.1 405"));
}

TEST(MetricsListener, answers_nothing_behind_a_request_whose_end_is_not_certain) {
  metrics::PrometheusRegistry registry;
  MetricsOptions options;
  options.endpoint.host = "127.0.0.1";
  options.endpoint.port = 0;
  const auto started = MetricsListener::start(std::move(options), registry);
  ASSERT_TRUE(started.ok()) << started.error().message();
  const std::string next = "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  for (const std::string fields :
       {"Host: x\r\nTransfer-Encoding: xchunked\r\n", "Host: x\r\nHost: x\r\n", "X: y\r\n",
        "Host: x\r\nX: y\r\n z\r\n", "Host: x\r\nX : y\r\n"}) {
    SCOPED_TRACE(fields);
    const std::string got =
        send(started.value()->endpoint(), "GET /livez HTTP/1.1\r\n" + fields + "\r\n" + next);
    EXPECT_TRUE(got.starts_with("HTTP/1.1 400")) << got;
    EXPECT_TRUE(has(got, "Connection: close")) << got;
    EXPECT_TRUE(has(got, "field '")) << got;
    EXPECT_FALSE(has(got, "HTTP/1.1 200")) << got;
  }
}

TEST(Pulse, is_lost_while_a_question_has_no_answer) {
  Pulse::Answered answer;
  int questions = 0;
  Pulse pulse(
      [&](Pulse::Answered answered) {
        ++questions;
        answer = std::move(answered);
      },
      std::chrono::milliseconds(0));
  (void)pulse.check();
  while (pulse.check().ok()) {
  }
  EXPECT_TRUE(has(pulse.check().error().message(), "has not answered"));
  EXPECT_EQ(questions, 1);  // one at a time
  answer();
  EXPECT_TRUE(pulse.check().ok());
  EXPECT_EQ(questions, 2);
}

}  // namespace
}  // namespace centroid::transport
