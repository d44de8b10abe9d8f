// Who may do what over REST: named tokens and their roles, the audit log, requests that are sent
// twice.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <latch>
#include <thread>

#include "server/api/audit_log.h"
#include "server/api/idempotency.h"
#include "server/tokens/token_store.h"
#include "tests/component/api_fixture.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using Json = nlohmann::json;
using server::IdempotencyTable;
using server::Role;
using server::TokenStore;

class ApiTokens : public ApiTokenTest {
 protected:
  ApiTokens() { options.state_dir = folder.path().string(); }
  int status_of(const char* method, const char* path, const std::string& secret) {
    return request(method, path, bearer(secret)).status;
  }
  TemporaryDirectory folder;
};

TEST_F(ApiTokens, ARoleMayWhatItsNameSays) {
  start();
  const std::string viewer = make("eyes", "viewer"), worker = make("node", "worker"),
                    admin = make("boss", "admin");
  for (const std::string& secret : {viewer, worker, admin})
    EXPECT_EQ(status_of("GET", "/v1/cluster", secret), 200);
  for (const std::string& secret : {viewer, worker}) {
    expect_problem(request("POST", "/v1/job:pause", bearer(secret)), 403, "failed_precondition",
                   "role admin");
    EXPECT_EQ(status_of("GET", "/v1/tokens", secret), 403);
    EXPECT_EQ(status_of("GET", "/v1/audit", secret), 403);
  }
  EXPECT_EQ(status_of("POST", "/v1/job:pause", admin), 202);
  EXPECT_FALSE(api->may_join(viewer));
  EXPECT_TRUE(api->may_join(worker));
  EXPECT_TRUE(api->may_join(admin));
  EXPECT_FALSE(api->may_join("operator")) << "the token of REST is none of the cluster's";
  std::string wrong = worker;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  EXPECT_FALSE(api->may_join(wrong));
  EXPECT_EQ(status_of("GET", "/v1/cluster", wrong), 401);
  EXPECT_EQ(request("DELETE", "/v1/tokens/node", bearer("operator")).status, 200);
  EXPECT_FALSE(api->may_join(worker));
  EXPECT_EQ(status_of("GET", "/v1/cluster", worker), 401);
  expect_problem(request("DELETE", "/v1/tokens/node", bearer("operator")), 404, "not_found");
}

TEST_F(ApiTokens, SecretsAreShownOnceAndKeptAsHashes) {
  start();
  const std::string secret = make("eyes", "viewer");
  const std::string list = request("GET", "/v1/tokens", bearer("operator")).body;
  EXPECT_EQ(list.find(secret), std::string::npos);
  EXPECT_EQ(Json::parse(list)["tokens"][0]["created_by"], "api.token");
  const auto file = folder.path() / "tokens.json";
  std::ifstream in(file);
  const std::string kept((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_NE(kept.find("eyes"), std::string::npos);
  EXPECT_EQ(kept.find(secret.substr(secret.size() - 64)), std::string::npos);
  struct stat about{};
  ASSERT_EQ(::stat(file.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600U);
  stop();
  start();
  EXPECT_EQ(status_of("GET", "/v1/cluster", secret), 200) << "a restart keeps tokens";
  stop();
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  const auto refused = ApiServer::start(io.executor(), options, control, registry);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("chmod 600"), std::string::npos);
}

TEST_F(ApiTokens, WhatIsAskedForMustMakeSense) {
  start();
  const auto ask = [this](const std::string& body) {
    return request("POST", "/v1/tokens", bearer("operator") + kJson, body);
  };
  expect_problem(ask("{}"), 400, "invalid_argument", "'name'");
  expect_problem(ask(R"({"name":"a","role":"king"})"), 400, "invalid_argument", "king");
  expect_problem(ask(R"({"name":"api.token","role":"admin"})"), 400, "invalid_argument", "api.");
  expect_problem(ask(R"({"name":"a b","role":"admin"})"), 400, "invalid_argument", "name");
  expect_problem(ask(R"({"name":7,"role":"admin"})"), 400, "invalid_argument", "a string");
  expect_problem(ask(R"({"name":"a","role":"admin","expires_seconds":-1})"), 400,
                 "invalid_argument", "expires_seconds");
  expect_problem(ask(R"({"name":"a","rule":"admin"})"), 400, "invalid_argument", "'rule'");
  make("a", "viewer");
  expect_problem(ask(R"({"name":"a","role":"viewer"})"), 409, "already_exists", "revoke");
}

TEST(Tokens, EndWhenTheirTimeIsOver) {
  const auto clock = std::make_shared<ManualClock>();
  auto store = TokenStore::open("", clock).value();
  const auto made = store->create("a", Role::kViewer, std::chrono::seconds(60), "test").value();
  clock->advance(std::chrono::seconds(59));
  EXPECT_TRUE(store->find(made.secret).has_value());
  clock->advance(std::chrono::seconds(1));
  EXPECT_FALSE(store->find(made.secret).has_value());
  EXPECT_EQ(store->list().size(), 1U);
  EXPECT_TRUE(store->create("a", Role::kAdmin, {}, "test").ok()) << "its name is free again";
  EXPECT_FALSE(store->find(made.secret).has_value());
}

TEST(Tokens, OfServersWithOneFileAreTheSame) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "tokens.json").string();
  const auto a = TokenStore::open(path).value(), b = TokenStore::open(path).value();
  const auto made = a->create("one", Role::kViewer, {}, "test").value();
  EXPECT_FALSE(b->find(made.secret)) << "not before it has looked";
  ASSERT_TRUE(b->refresh().ok());
  EXPECT_TRUE(b->find(made.secret));
  EXPECT_EQ(b->create("one", Role::kAdmin, {}, "test").error().code(), ErrorCode::kAlreadyExists);
  const auto other = b->create("two", Role::kAdmin, {}, "test").value();
  ASSERT_TRUE(a->revoke("one").ok()) << "which knows nothing of `two` yet, and keeps it";
  ASSERT_TRUE(b->refresh().ok());
  EXPECT_FALSE(b->find(made.secret)) << "revoked stays revoked";
  EXPECT_TRUE(a->find(other.secret));
  ASSERT_TRUE(b->create("three", Role::kViewer, {}, "test").ok());
  EXPECT_FALSE(TokenStore::open(path).value()->find(made.secret));

  std::filesystem::rename(path, path + ".away");
  EXPECT_TRUE(b->refresh().ok());
  EXPECT_TRUE(b->find(other.secret)) << "a folder that is away revokes nothing";
  std::ofstream(path) << "{";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(b->refresh().error().code(), ErrorCode::kDataLoss);
  EXPECT_TRUE(b->find(other.secret));
}

/// Each thread is a server of its own; without the lock one overwrites what another has written.
TEST(Tokens, NoneIsLostWhenServersChangeThemAtOnce) {
  constexpr int kServers = 3, kEach = 30;
  std::latch begin(kServers);
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "tokens.json").string();
  std::vector<std::thread> servers;
  for (int i = 0; i < kServers; ++i)
    servers.emplace_back([&path, &begin, i] {
      const auto store = TokenStore::open(path).value();
      begin.arrive_and_wait();
      const auto repeat = [](const auto& act) {
        for (;;) {
          const auto done = act();
          if (done.ok() || done.error().code() != ErrorCode::kAborted) return done.ok();
          std::this_thread::yield();
        }
      };
      for (int k = 0; k < kEach; ++k) {
        const std::string name = std::string("t").append(std::to_string(i * kEach + k));
        EXPECT_TRUE(repeat([&] { return store->create(name, Role::kViewer, {}, "test"); }));
        if (k % 3 == 0) {
          EXPECT_TRUE(repeat([&] { return store->revoke(name); }));
        }
      }
    });
  for (std::thread& one : servers) one.join();
  EXPECT_EQ(TokenStore::open(path).value()->list().size(), kServers * kEach * 2U / 3);
}

TEST(Tokens, AnotherServerThatHoldsTheLockIsNotWaitedFor) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "tokens.json").string();
  const auto store = TokenStore::open(path).value();
  const int held = ::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  const auto refused = store->create("one", Role::kViewer, {}, "test");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kAborted);
  EXPECT_NE(refused.error().message().find("another server holds"), std::string::npos);
  ::close(held);
  EXPECT_TRUE(store->create("one", Role::kViewer, {}, "test").ok());
}

TEST_F(ApiTokens, ALockOfAnotherServerKeepsNobodyElseWaiting) {
  start();
  const std::string path = (folder.path() / "tokens.json.lock").string();
  const int held = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  std::atomic<bool> is_answered = false;
  const auto ask = [&](const char* name) {
    const auto body = std::string(R"({"role":"viewer","name":")").append(name).append("\"}");
    const HttpReply reply = request("POST", "/v1/tokens", bearer("operator") + kJson, body);
    is_answered = true;
    return reply;
  };
  auto waiting = std::async(std::launch::async, [&] { return ask("one"); });
  // An answer that needs the same thread for its line in the audit log, more than once.
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(request("POST", "/v1/job:pause", bearer("operator")).status, 202);
  EXPECT_FALSE(is_answered);
  ::flock(held, LOCK_UN);
  EXPECT_EQ(waiting.get().status, 201);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  expect_problem(ask("two"), 503, "unavailable", "another server holds");
  ::close(held);
}

TEST(Tokens, ADamagedFileIsRefused) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "tokens.json").string();
  for (const char* text : {"", "{", "[]", R"({"tokens":[{}]})", R"({"tokens":[{"name":1}]})"}) {
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    EXPECT_FALSE(TokenStore::open(path).ok()) << text;
  }
}

TEST_F(ApiTokens, EveryChangeIsInTheAuditLog) {
  start();
  const std::string viewer = make("eyes", "viewer");
  request("POST", "/v1/job:pause", bearer("operator") + "X-Request-Id: mine-1\r\n");
  request("POST", "/v1/job:pause", bearer(viewer));
  request("GET", "/v1/cluster", bearer("operator"));
  request("POST", "/v1/job:pause");  // nobody we know
  control.fail_with(Error(ErrorCode::kFailedPrecondition, "the job is over"));
  request("POST", "/v1/job:stop", bearer("operator"));
  const auto check = [this] {
    const Json list = Json::parse(request("GET", "/v1/audit", bearer("operator")).body)["entries"];
    ASSERT_EQ(list.size(), 4U) << list;
    EXPECT_EQ(list[0]["path"], "/v1/job:stop");
    EXPECT_EQ(list[0]["outcome"], "the job is over");
    EXPECT_EQ(list[0]["status"], 409);
    EXPECT_EQ(list[1]["caller"], "eyes");
    EXPECT_EQ(list[1]["status"], 403);
    EXPECT_EQ(list[2]["request_id"], "mine-1");
    EXPECT_EQ(list[2]["outcome"], "ok");
    EXPECT_EQ(list[3]["path"], "/v1/tokens");
    EXPECT_NE(list[3]["address"].get<std::string>().find("127.0.0.1:"), std::string::npos);
  };
  check();
  const auto events = control.happened.read(0, 100, nullptr).events;
  EXPECT_EQ(events.size(), 4U);
  EXPECT_EQ(events.back().type, "audit.recorded");
  stop();
  {  // a crash cut the last line short
    std::ofstream file(folder.path() / "audit.jsonl", std::ios::app);
    file << "{\"number\":99,";
  }
  start();
  check();
}

TEST(Audit, FilesAreBounded) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "audit.jsonl").string();
  {
    auto log = server::AuditLog::open(path, "", 1000).value();
    server::AuditEntry entry;
    entry.body = std::string(5000, 'x');
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(log->append(entry).ok());
    EXPECT_EQ(log->newest_first().front().number, 20U);
    EXPECT_EQ(log->newest_first().front().body.size(), 1024U);
  }
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    ++files;
    EXPECT_LT(file.file_size(), 3000U);
  }
  EXPECT_EQ(files, 6U) << "five, and the lock";
  auto log = server::AuditLog::open(path, "", 1000).value();
  ASSERT_TRUE(log->append({}).ok());
  EXPECT_EQ(log->newest_first().front().number, 21U) << "numbers go on";
}

TEST(Audit, RefusedRequestsDisplaceNoChange) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "audit.jsonl").string();
  const auto is_there = [](const server::AuditLog& log) {
    const auto all = log.newest_first();
    return std::ranges::count(all, 202U, &server::AuditEntry::status) == 1 &&
           all.back().number == 1;
  };
  {
    const auto log = server::AuditLog::open(path, "", 4000).value();
    server::AuditEntry act;
    act.status = 202;
    ASSERT_TRUE(log->append(act).ok());
    server::AuditEntry noise;
    noise.status = 403;
    noise.path = std::string(8000, 'x');
    noise.outcome = std::string(8000, 'y');
    for (int i = 0; i < 1200; ++i) ASSERT_TRUE(log->append(noise).ok());
    EXPECT_TRUE(is_there(*log));
    EXPECT_EQ(log->newest_first().front().number, 1201U);
    EXPECT_LT(log->newest_first().front().path.size(), 300U);
    EXPECT_LT(log->newest_first().front().outcome.size(), 1100U);
  }
  EXPECT_TRUE(is_there(*server::AuditLog::open(path, "", 4000).value())) << "also on the disk";
}

TEST_F(ApiTokens, OneCallersRefusedRequestsAreCountedNotAllRecorded) {
  start();
  const std::string viewer = make("eyes", "viewer"), other = make("more", "viewer");
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(status_of("POST", ("/v1/job:pause?" + std::to_string(i)).c_str(), viewer), 403);
  EXPECT_EQ(status_of("POST", "/v1/job:pause", other), 403);
  const auto of = [this](const std::string& caller) {
    std::size_t count = 0;
    const Json page = Json::parse(request("GET", "/v1/audit?limit=1000", bearer("operator")).body);
    for (const Json& entry : page["entries"]) count += entry["caller"] == caller ? 1 : 0;
    return count;
  };
  EXPECT_LT(of("eyes"), 150U);
  EXPECT_EQ(of("more"), 1U) << "each has a budget of its own";
  EXPECT_EQ(of("api.token"), 2U) << "changes are all there";
}

/// Each thread is a server of its own.
TEST(Audit, ServersWithOneFileWriteOneLog) {
  constexpr std::uint64_t kServers = 3, kEach = 40;
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "audit.jsonl").string();
  std::latch begin(kServers);
  std::vector<std::thread> servers;
  for (std::uint64_t i = 0; i < kServers; ++i)
    servers.emplace_back([&path, &begin, i] {
      const auto log =
          server::AuditLog::open(path, std::string("s").append(std::to_string(i)), 4000);
      ASSERT_TRUE(log.ok());
      begin.arrive_and_wait();
      for (std::uint64_t k = 0; k < kEach;) {
        server::AuditEntry entry;
        entry.request_id = std::to_string(k);
        const Status written = (*log)->append(entry, true);
        k += written.ok() ? 1 : 0;
        ASSERT_TRUE(written.ok() || written.error().code() == ErrorCode::kAborted);
      }
      ASSERT_TRUE((*log)->refresh().ok());
    });
  for (std::thread& one : servers) one.join();
  std::vector<std::uint64_t> numbers;
  for (const char* name : {".4", ".3", ".2", ".1", ""}) {
    std::ifstream file(path + name);
    for (std::string line; std::getline(file, line);)
      numbers.push_back(Json::parse(line)["number"].get<std::uint64_t>());
  }
  ASSERT_GT(numbers.size(), kEach);
  EXPECT_EQ(numbers.back(), kServers * kEach);
  for (std::size_t i = 1; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], numbers[i - 1] + 1);
}

TEST(Audit, OneServerShowsEntriesOfAnotherAcrossARotation) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "audit.jsonl").string();
  const auto a = server::AuditLog::open(path, "a", 1500).value();
  const auto b = server::AuditLog::open(path, "b", 1500).value();
  std::size_t count = 0;
  for (int turn = 0; turn < 12; ++turn) {  // a file holds about ten
    for (int i = 0; i <= turn % 5; ++i, ++count)
      ASSERT_TRUE((turn % 2 == 0 ? a : b)->append({}, true).ok());
    const auto& other = turn % 2 == 0 ? b : a;
    ASSERT_TRUE(other->refresh().ok());
    const auto shown = other->newest_first();
    ASSERT_EQ(shown.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(shown[i].number, count - i);
    EXPECT_EQ(shown.front().server, turn % 2 == 0 ? "a" : "b");
  }
  EXPECT_TRUE(std::filesystem::exists(path + ".2"));
}

TEST(Audit, ALineThatAFullDiskCutShortSpoilsNoOther) {
  TemporaryDirectory folder;
  const std::string path = (folder.path() / "audit.jsonl").string();
  const auto log = server::AuditLog::open(path).value();
  ASSERT_TRUE(log->append({}).ok());
  std::ofstream(path, std::ios::app) << "{\"number\": 2, \"who";
  ASSERT_TRUE(log->append({}).ok());
  EXPECT_EQ(log->newest_first().size(), 2U);
  EXPECT_EQ(server::AuditLog::open(path).value()->newest_first().size(), 2U);
}

TEST_F(ApiTest, ARequestThatIsSentTwiceIsDoneOnce) {
  start();
  const std::string key = "Idempotency-Key: k-1\r\n";
  const HttpReply first = request("POST", "/v1/checkpoints", key);
  const HttpReply second = request("POST", "/v1/checkpoints", key);
  EXPECT_EQ(second.status, 201);
  EXPECT_EQ(second.body, first.body);
  EXPECT_FALSE(first.fields.contains("idempotency-replayed"));
  EXPECT_EQ(second.fields.at("idempotency-replayed"), "true");
  EXPECT_NE(second.fields.at("x-request-id"), first.fields.at("x-request-id"));
  EXPECT_EQ(control.actions(), "checkpoint;");
  expect_problem(request("POST", "/v1/job:pause", key), 422, "invalid_argument", "another request");
  expect_problem(
      request("POST", "/v1/job:pause", "Idempotency-Key: " + std::string(200, 'x') + "\r\n"), 400,
      "invalid_argument", "128");
  control.fail_with(Error(ErrorCode::kUnavailable, "not now"));
  EXPECT_EQ(request("POST", "/v1/job:stop", "Idempotency-Key: k-2\r\n").status, 503);
  control.fail_with(std::nullopt);
  EXPECT_EQ(request("POST", "/v1/job:stop", "Idempotency-Key: k-2\r\n").status, 202)
      << "what was not done may be tried again";
}

TEST(Idempotency, IsBoundedInNumberAndTime) {
  using std::chrono::seconds;
  IdempotencyTable table(3, seconds(10));
  TimePoint now{};
  const auto verdict = [&](const char* key, const char* request) {
    return table.begin(key, request, now).verdict;
  };
  EXPECT_EQ(verdict("a", "x"), IdempotencyTable::Verdict::kNew);
  EXPECT_EQ(verdict("a", "x"), IdempotencyTable::Verdict::kRunning);
  table.finish("a", server::HttpResponse());
  EXPECT_EQ(verdict("a", "x"), IdempotencyTable::Verdict::kReplay);
  EXPECT_EQ(verdict("a", "y"), IdempotencyTable::Verdict::kOther);
  now += seconds(10);
  EXPECT_EQ(verdict("a", "y"), IdempotencyTable::Verdict::kNew) << "forgotten by age";
  EXPECT_EQ(verdict("b", "x"), IdempotencyTable::Verdict::kNew);
  EXPECT_EQ(verdict("c", "x"), IdempotencyTable::Verdict::kNew);
  EXPECT_EQ(verdict("d", "x"), IdempotencyTable::Verdict::kFull) << "all of them run";
  table.finish("b", server::HttpResponse());
  EXPECT_EQ(verdict("d", "x"), IdempotencyTable::Verdict::kNew) << "the oldest done gives way";
  EXPECT_EQ(verdict("b", "x"), IdempotencyTable::Verdict::kFull);
  table.forget("a");
  EXPECT_EQ(verdict("b", "x"), IdempotencyTable::Verdict::kNew);
  EXPECT_EQ(table.size(), 3U);
}

TEST_F(ApiTest, ListsComeInPages) {
  start();
  const Json first = Json::parse(request("GET", "/v1/workers?limit=1").body);
  ASSERT_EQ(first["workers"].size(), 1U);
  EXPECT_EQ(first["workers"][0]["member"], 7);
  const Json second = Json::parse(request("GET", first["next"].get<std::string>()).body);
  ASSERT_EQ(second["workers"].size(), 1U);
  EXPECT_EQ(second["workers"][0]["member"], 9);
  EXPECT_TRUE(second["next"].is_null());
  std::string seen;  // of a list without numbers, by position
  for (Json page; page.is_null() || !page["next"].is_null(); seen += page["waits"][0]["waiter"]) {
    const std::string path = page.is_null() ? "/v1/waits?limit=1" : std::string(page["next"]);
    page = Json::parse(request("GET", path).body);
    ASSERT_EQ(page["waits"].size(), 1U) << page;
  }
  EXPECT_EQ(seen, "w0w1w2");
  for (const char* cursor : {"x", "1.", "1.x", "-1", ""})
    expect_problem(request("GET", std::string("/v1/workers?cursor=") + cursor), 400,
                   "invalid_argument", "cursor");
}

}  // namespace
}  // namespace centroid::test
