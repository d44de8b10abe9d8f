// What the REST server keeps over a restart, and limits that change while it runs.
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <future>
#include <latch>
#include <random>
#include <set>

#include "server/api/idempotency_log.h"
#include "server/api/rate_table.h"
#include "tests/component/api_fixture.h"
#include "tests/support/faulty_storage.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using server::IdempotencyLog;
using server::RateTable;

class ApiRestart : public ApiTest {
 protected:
  ApiRestart() { options.state_dir = folder.path().string(); }
  void restart() {
    stop();
    start();
  }
  std::string file() const { return options.state_dir + "/idempotency.jsonl"; }
  std::string text() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  TemporaryDirectory folder;
};

TEST_F(ApiRestart, ARequestThatIsSentAgainBehindARestartIsNotDoneAgain) {
  const char* key = "Idempotency-Key: k-1\r\n";
  const HttpReply first = request("POST", "/v1/checkpoints", key);
  EXPECT_EQ(first.status, 201);
  restart();
  const HttpReply second = request("POST", "/v1/checkpoints", key);
  EXPECT_EQ(second.status, 201);
  EXPECT_EQ(second.body, first.body);
  EXPECT_EQ(second.fields.at("idempotency-replayed"), "true");
  EXPECT_EQ(second.fields.at("content-type"), "application/json");
  EXPECT_EQ(control.actions(), "checkpoint;");
  expect_problem(request("POST", "/v1/job:pause", key), 422, "invalid_argument", "another request");
  struct stat about{};
  ASSERT_EQ(::stat(file().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600U);
}

TEST_F(ApiRestart, WhatWasNotDoneMayBeTriedAgainBehindARestart) {
  control.fail_with(Error(ErrorCode::kUnavailable, "not now"));
  EXPECT_EQ(request("POST", "/v1/job:stop", "Idempotency-Key: k-1\r\n").status, 503);
  restart();
  control.fail_with(std::nullopt);
  EXPECT_EQ(request("POST", "/v1/job:stop", "Idempotency-Key: k-1\r\n").status, 202);
}

TEST_F(ApiRestart, ASecretIsInNoFile) {
  options.token = "operator";
  const std::string fields =
      std::string("Authorization: Bearer operator\r\nIdempotency-Key: k-1\r\n") + kJson;
  const std::string body = R"({"name":"eyes","role":"viewer"})";
  const HttpReply made = request("POST", "/v1/tokens", fields, body);
  ASSERT_EQ(made.status, 201);
  const auto secret = nlohmann::json::parse(made.body).value("secret", "");
  EXPECT_EQ(request("POST", "/v1/tokens", fields, body).body, made.body) << "while it runs";
  EXPECT_EQ(text().find(secret), std::string::npos);
  restart();
  const HttpReply again = request("POST", "/v1/tokens", fields, body);
  expect_problem(again, 409, "already_exists", "revoke it");
}

TEST_F(ApiRestart, ARequestThatNeverGotAnAnswerIsSaidToBeUnknown) {
  start();
  const HttpReply now = request("POST", "/v1/job:pause", "Idempotency-Key: k-1\r\n");
  EXPECT_EQ(now.status, 202);
  stop();
  const std::string whole = text();  // as a crash between the act and its answer leaves it
  std::ofstream(file(), std::ios::binary)
      << whole.substr(0, whole.find('\n') + 1) << "{\"key\": \"lo";
  start();
  expect_problem(request("POST", "/v1/job:pause", "Idempotency-Key: k-1\r\n"), 409, "aborted",
                 "look whether it was done");
  EXPECT_EQ(control.actions(), "pause;");
}

TEST_F(ApiRestart, AnotherServerWithTheSameFolderKnowsTheKeys) {
  options.state_name = "a:7070";
  const HttpReply first = request("POST", "/v1/checkpoints", "Idempotency-Key: k-1\r\n");
  EXPECT_EQ(first.status, 201);
  stop();
  // A second one, which `a` was killed in the middle of.
  std::ofstream(options.state_dir + "/idempotency-a_7070.jsonl", std::ios::app)
      << R"({"key": "local k-2", "request": "POST /v1/job:pause x", "begun_unix_seconds": )"
      << static_cast<std::int64_t>(SystemClock().unix_seconds()) << "}\n";
  options.state_name = "b";
  start();
  const HttpReply second = request("POST", "/v1/checkpoints", "Idempotency-Key: k-1\r\n");
  EXPECT_EQ(second.status, 201);
  EXPECT_EQ(second.body, first.body);
  EXPECT_EQ(second.fields.at("idempotency-replayed"), "true");
  expect_problem(request("POST", "/v1/job:pause", "Idempotency-Key: k-1\r\n"), 422,
                 "invalid_argument", "another request");
  expect_problem(request("POST", "/v1/job:pause", "Idempotency-Key: k-2\r\n"), 409, "aborted",
                 "another server has begun");
  EXPECT_EQ(request("POST", "/v1/job:pause", "Idempotency-Key: k-3\r\n").status, 202);
  EXPECT_EQ(control.actions(), "checkpoint;pause;");
}

TEST_F(ApiRestart, AKeyThatIsSentToTwoServersAtOnceIsDoneOnce) {
  constexpr int kKeys = 40;
  IoThread other_io("other-api");
  metrics::Registry other_registry;
  ApiOptions second = options;
  options.state_name = "a";
  second.state_name = "b";
  start();
  auto made = ApiServer::start(other_io.executor(), second, control, other_registry);
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  const auto other = std::move(made).value();
  for (int k = 0; k < kKeys; ++k) {
    const std::string key =
        std::string("Idempotency-Key: k-").append(std::to_string(k)).append("\r\n");
    std::latch begin(2);
    const auto ask = [&](std::uint16_t at) {
      HttpClient client(at);
      begin.arrive_and_wait();
      return client.request("POST", "/v1/checkpoints", key).status;
    };
    auto there = std::async(std::launch::async, ask, other->endpoint().port);
    const int here = ask(port()), theirs = there.get();
    EXPECT_TRUE(here == 201 || theirs == 201) << here << " " << theirs;
    EXPECT_TRUE((here == 201 || here == 409) && (theirs == 201 || theirs == 409))
        << here << " " << theirs;
  }
  std::string once;
  for (int k = 0; k < kKeys; ++k) once += "checkpoint;";
  EXPECT_EQ(control.actions(), once);
  other_io.wait(other->stop());
}

TEST_F(ApiRestart, AKeyWhoseRequestHadNoAnswerInTimeIsNotDoneAgain) {
  options.call_timeout = std::chrono::milliseconds(50);
  const char* key = "Idempotency-Key: k-1\r\n";
  start();
  control.held = true;
  expect_problem(request("POST", "/v1/job:stop", key), 504, "deadline_exceeded");
  control.held = false;
  for (int turn = 0; turn < 2; ++turn) {
    expect_problem(request("POST", "/v1/job:stop", key), 409, "aborted",
                   "look whether it was done");
    restart();
  }
}

TEST_F(ApiRestart, AFileThatOthersCanReadIsRefused) {
  start();
  stop();
  ASSERT_EQ(::chmod(file().c_str(), 0644), 0);
  const auto refused = ApiServer::start(io.executor(), options, control, registry);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("chmod 600"), std::string::npos);
}

TEST(IdempotencyLog, ForgetsWhatIsOldAndReadsAnything) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "keys").string();
  {
    const auto log = IdempotencyLog::open(path, 1000, 60);
    ASSERT_TRUE(log.ok());
    ASSERT_TRUE((*log)->claim("old", "r", 930).ok());
    ASSERT_TRUE((*log)->claim("young", "r", 990).ok());
    server::HttpResponse response;
    response.status = 202;
    response.fields.emplace_back("X-Thing", "1");
    ASSERT_TRUE((*log)->finish("young", response).ok());
    ASSERT_TRUE((*log)->claim("undone", "r", 990).ok());
    ASSERT_TRUE((*log)->forget("undone").ok());
  }
  const auto log = IdempotencyLog::open(path, 1000, 60);
  ASSERT_TRUE(log.ok());
  const auto kept = (*log)->take_kept();
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept[0].key, "young");
  ASSERT_TRUE(kept[0].response.has_value());
  EXPECT_EQ(kept[0].response->status, 202U);
  EXPECT_EQ(kept[0].response->fields.front().second, "1");

  std::ifstream in(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = static_cast<char>(random());
    for (const auto& one : server::parse_idempotency(text, 1000, 60)) EXPECT_FALSE(one.key.empty());
  }
}

/// Its file is made anew once it is larger than 32 MiB. Whatever fails then, a key is kept, or it
/// is said that it is not; and later ones are kept.
TEST(IdempotencyLog, WhateverFailsWhereTheFileIsMadeAnewNoKeyIsKeptElsewhere) {
  constexpr std::size_t kLarge = 17u << 20;
  int operations = 0;
  std::string failed = "none yet";
  for (int fail_at = 1; !failed.empty(); ++fail_at) {  // until nothing is left to fail
    TemporaryDirectory folder;
    const std::string path = (folder.path() / "keys").string();
    auto log = IdempotencyLog::open(path, 1000, 60);
    ASSERT_TRUE(log.ok());
    server::HttpResponse large;
    large.status = 200;
    large.body.assign(kLarge, 'x');
    for (const std::string key : {"a", "b"}) {
      ASSERT_TRUE((*log)->claim(key, "r", 1000).ok());
      ASSERT_TRUE((*log)->finish(key, large).ok());
    }
    ASSERT_TRUE((*log)->claim("begun", "r", 1000).ok());  // makes it anew: too large to keep
    EXPECT_LT(std::filesystem::file_size(path), kLarge);
    for (const std::string key : {"a", "b"}) ASSERT_TRUE((*log)->finish(key, large).ok());
    operations = 0;
    failed.clear();
    bool is_kept = false;
    {
      const ScopedFaults hook([&](std::string_view operation, const auto&) {
        if (is_query(operation) || ++operations != fail_at) return 0;
        failed = operation;
        return ENOSPC;
      });
      is_kept = (*log)->claim("at-the-fault", "r", 1000).ok();
    }
    SCOPED_TRACE("operation " + std::to_string(fail_at) + ": " + failed);
    EXPECT_EQ(is_kept, failed.empty());
    ASSERT_TRUE((*log)->claim("later", "r", 1000).ok());
    log->reset();
    log = IdempotencyLog::open(path, 1000, 60);
    ASSERT_TRUE(log.ok());
    std::set<std::string> keys;
    for (const auto& one : (*log)->take_kept()) keys.insert(one.key);
    EXPECT_TRUE(keys.contains("begun") && keys.contains("later"));
    EXPECT_TRUE(!is_kept || keys.contains("at-the-fault"));
  }
  EXPECT_GT(operations, 5);
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

TEST_F(ApiTest, ABodyOfBracketsIsRefusedBeforeAnybodyGoesDownIntoIt) {
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
