// What a client may ask for how often, and limits that change while the server runs.
#include <chrono>
#include <string>
#include <tuple>
#include <utility>

#include "server/api/rate_table.h"
#include "tests/component/api_fixture.h"

namespace centroid::test {
namespace {

using server::RateTable;

TEST_F(ApiTest, AKeyWhoseRequestHadNoAnswerInTimeIsNotDoneAgain) {
  options.call_timeout = std::chrono::milliseconds(50);
  const char* key = "Idempotency-Key: k-1\r\n";
  start();
  control.held = true;
  expect_problem(request("POST", "/v1/job:stop", key), 504, "deadline_exceeded");
  control.held = false;
  for (int turn = 0; turn < 2; ++turn)
    expect_problem(request("POST", "/v1/job:stop", key), 409, "aborted", "check its effect");
}

TEST(RateTable, GivesASecondsWorthAtOnceThenTheRate) {
  using std::chrono::milliseconds;
  RateTable table(2);
  TimePoint now{};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(table.take("a", now, 10), Duration::zero()) << i;
  EXPECT_EQ(table.take("a", now, 10), milliseconds(100));
  EXPECT_EQ(table.take("b", now, 10), Duration::zero()) << "another client";
  now += milliseconds(100);
  EXPECT_EQ(table.take("a", now, 10), Duration::zero());
  EXPECT_GT(table.take("a", now, 10), Duration::zero());
  now += std::chrono::hours(1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(table.take("a", now, 10), Duration::zero()) << i;
  EXPECT_GT(table.take("a", now, 10), Duration::zero()) << "an hour of silence saves nothing up";
  EXPECT_EQ(table.take("c", now, 10), Duration::zero());
  EXPECT_EQ(table.size(), 2U) << "b, silent for longest, is forgotten";
  EXPECT_GT(table.take("a", now, 10), Duration::zero());
  EXPECT_EQ(table.take("d", now, 0.5), Duration::zero()) << "one at least";
  EXPECT_EQ(table.take("d", now, 0.5), milliseconds(2000));
}

TEST(RateTable, ClientsAreAddressesAndNetworks) {
  EXPECT_EQ(server::client_of("10.0.0.5:4711"), "10.0.0.5");
  EXPECT_EQ(server::client_of("[::ffff:10.0.0.5]:4711"), "10.0.0.5");
  EXPECT_EQ(server::client_of("[2001:db8:1:2:3:4:5:6]:1"), "2001:db8:1:2::/64");
  EXPECT_EQ(server::client_of("[2001:db8:1:2::9]:2"), "2001:db8:1:2::/64");
  EXPECT_EQ(server::client_of("unknown"), server::client_of("unknown"));
}

TEST_F(ApiTest, WhoAsksTooOftenGets429AndHowLongToWait) {
  options.requests_per_second = 3;
  start();
  HttpClient client(port());
  HttpReply reply;
  int good = 0;
  for (; good < 1000; ++good) {
    reply = client.request("GET", "/version");
    if (reply.status != 200) break;
  }
  EXPECT_GE(good, 3);
  EXPECT_LT(good, 1000);
  expect_problem(reply, 429, "resource_exhausted", "127.0.0.1 sent more than 3 requests a second");
  EXPECT_EQ(reply.fields.at("retry-after"), "1");
  EXPECT_FALSE(reply.fields.at("x-request-id").empty());
  api->set_limits(server::ApiLimits());
  EXPECT_TRUE(eventually([&] { return client.request("GET", "/version").status == 200; }));
}

TEST_F(ApiTest, LimitsChangeForConnectionsThatAreOpen) {
  start();
  HttpClient client(port());
  const std::string wide = "X-Fill: " + std::string(7'000, 'x') + "\r\n";
  EXPECT_EQ(client.request("GET", "/version", wide).status, 200);
  server::ApiLimits limits;
  limits.header_limit_bytes = 32 * 1024;
  limits.body_limit_bytes = 1024;
  api->set_limits(limits);
  const std::string wider = "X-Fill: " + std::string(20'000, 'x') + "\r\n";
  EXPECT_TRUE(eventually([&] { return request("GET", "/version", wider).status == 200; }));
  EXPECT_EQ(client.request("GET", "/version", wider).status, 200);
  const std::string body = "{" + std::string(2'000, ' ') + "}";
  expect_problem(client.request("POST", "/v1/job:pause", kJson, body), 413, "invalid_argument");
  limits.header_limit_bytes = 1024;
  api->set_limits(limits);
  EXPECT_TRUE(eventually([&] { return request("GET", "/version", wide).status == 431; }));
}

TEST_F(ApiTest, ABodyWithAFieldTwiceIsRefused) {
  start();
  for (const auto& [method, path, body] :
       {std::tuple("PATCH", "/v1/config", R"({"workers":4,"workers":5})"),
        std::tuple("PATCH", "/v1/config", R"({"a":1,"b":{"c":[{"workers":4,"\u0077orkers":5}]}})"),
        std::tuple("POST", "/v1/scale", R"({"workers":4,"workers":4})")})
    expect_problem(request(method, path, kJson, body), 400, "invalid_argument",
                   "field 'workers' appears twice");
  EXPECT_EQ(control.actions(), "");
  const std::string same = R"({"a":{"x":1},"b":{"x":[{"x":1},{"x":1}]},"x":1})";
  EXPECT_EQ(request("PATCH", "/v1/config", kJson, same).status, 200) << "in different objects";
}

TEST_F(ApiTest, ADeeplyNestedBodyIsRefusedBeforeItIsParsed) {
  start();
  for (const int depth : {17, 30'000}) {
    const std::string nested = std::string(static_cast<std::size_t>(depth), '[') +
                               std::string(static_cast<std::size_t>(depth), ']');
    for (const auto& [method, path] :
         {std::pair("POST", "/v1/workers/7:evict"), std::pair("PATCH", "/v1/config")}) {
      const std::string body = R"({"seconds":)" + nested + "}";
      expect_problem(request(method, path, kJson, body), 400, "invalid_argument", "nested");
    }
  }
  const std::string flat = R"({"seconds":[")" + std::string(40'000, 'x') + R"("]})";
  const HttpReply refused = request("POST", "/v1/workers/7:evict", kJson, flat);
  expect_problem(refused, 400, "invalid_argument", "seconds");
  EXPECT_LT(refused.body.size(), 1000U) << "not all of it comes back";
  EXPECT_EQ(control.actions(), "");
}

}  // namespace
}  // namespace centroid::test
