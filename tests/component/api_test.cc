// The REST interface over real sockets: routes, problems, who may call.
#include <array>
#include <utility>

#include "server/api/access.h"
#include "server/api/problem.h"
#include "server/api/target.h"
#include "tests/component/api_fixture.h"

namespace centroid::test {
namespace {

using Json = nlohmann::json;

TEST_F(ApiTest, EveryGetRouteAnswersWithSecurityFields) {
  for (const char* path : {"/", "/healthz", "/readyz", "/metrics", "/version", "/openapi.json",
                           "/v1/cluster", "/v1/workers", "/v1/workers/7", "/v1/rounds", "/v1/waits",
                           "/v1/config", "/v1/checkpoints", "/v1/events"}) {
    SCOPED_TRACE(path);
    const HttpReply reply = request("GET", path);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.fields.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(reply.fields.at("cache-control"), "no-store");
    EXPECT_TRUE(reply.fields.contains("date"));
    if (std::string_view(path) == "/metrics") {
      EXPECT_EQ(reply.fields.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    } else {
      EXPECT_EQ(reply.fields.at("content-type"), "application/json");
      EXPECT_TRUE(Json::accept(reply.body)) << reply.body;
    }
  }
}

TEST_F(ApiTest, HeadHasTheFieldsOfGetAndNoBody) {
  start();
  const HttpReply get = request("GET", "/v1/workers");
  HttpClient client(port());
  const HttpReply head = client.request("HEAD", "/v1/workers");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.fields.at("content-length"), std::to_string(get.body.size()));
  EXPECT_EQ(client.request("GET", "/version").status, 200)
      << "the connection is out of step after HEAD";
}

TEST_F(ApiTest, ViewsArriveWithTheirValues) {
  const auto cluster = Json::parse(request("GET", "/v1/cluster").body);
  EXPECT_EQ(cluster["run_id"], "run-1");
  EXPECT_EQ(cluster["world"], 2);
  EXPECT_TRUE(cluster["loss"].is_null()) << "not a number must be null";
  const auto workers = Json::parse(request("GET", "/v1/workers").body)["workers"];
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_EQ(workers[0]["name"], "alpha");
  EXPECT_EQ(Json::parse(request("GET", "/v1/workers/7").body), workers[0]);
  EXPECT_EQ(request("GET", "/v1/config").body, "{\"listen\":{\"value\":1}}");
  EXPECT_EQ(Json::parse(request("GET", "/v1/rounds?limit=2").body)["rounds"].size(), 2U);
}

TEST_F(ApiTest, RoundsComeInPages) {
  const auto first = Json::parse(request("GET", "/v1/rounds?limit=2").body);
  ASSERT_EQ(first["rounds"].size(), 2U);
  EXPECT_EQ(first["rounds"][1]["round"], 2);
  EXPECT_EQ(first["next"], "/v1/rounds?cursor=2&limit=2");
  const auto second = Json::parse(request("GET", first["next"].get<std::string>()).body);
  EXPECT_EQ(control.last_limit, 3U) << "what is before the page is not asked for";
  ASSERT_EQ(second["rounds"].size(), 1U);
  EXPECT_EQ(second["rounds"][0]["round"], 1);
  EXPECT_TRUE(second["next"].is_null());
}

TEST_F(ApiTest, CurvesBeginAfterTheRequestedRound) {
  const auto all = Json::parse(request("GET", "/v1/curves").body);
  EXPECT_EQ(all["revision"], 2);
  ASSERT_EQ(all["points"].size(), 3U);
  EXPECT_EQ(all["points"][0]["loss"], 0.5);
  EXPECT_TRUE(all["points"][0]["gradient_norm"].is_null()) << "it is not known";
  const auto newer = Json::parse(request("GET", "/v1/curves?after=2").body);
  ASSERT_EQ(newer["points"].size(), 1U);
  EXPECT_EQ(newer["points"][0]["first"], 3);
  for (const char* value : {"", "x", "-1", "1.5"})
    expect_problem(request("GET", std::string("/v1/curves?after=") + value), 400,
                   "invalid_argument", "'after'");
}

TEST_F(ApiTest, EpochsComePageByPageWithTheirWorkers) {
  const auto first = Json::parse(request("GET", "/v1/epochs?limit=2").body);
  ASSERT_EQ(first["epochs"].size(), 2U);
  EXPECT_EQ(first["epochs"][1]["epoch"], 2);
  EXPECT_TRUE(first["epochs"][0]["loss"].is_null());
  EXPECT_EQ(first["epochs"][0]["workers"][0]["name"], "alpha");
  EXPECT_EQ(first["epochs"][0]["workers"][0]["share"], 1);
  const auto second = Json::parse(request("GET", first["next"].get<std::string>()).body);
  ASSERT_EQ(second["epochs"].size(), 1U);
  EXPECT_EQ(second["epochs"][0]["epoch"], 1);
  EXPECT_TRUE(second["next"].is_null());
}

TEST_F(ApiTest, ATensorSaysWhatOfItLiesOnEachServerOnAnyPage) {
  const Json first = Json::parse(request("GET", "/v1/parameters?limit=1").body);
  EXPECT_EQ(first["parameters"][0]["servers"], Json::parse(R"([{"name":"s0","bytes":10}])"));
  const Json both = Json::parse(R"([{"name":"s0","bytes":20},{"name":"s1","bytes":21}])");
  const Json second = Json::parse(request("GET", first["next"].get<std::string>()).body);
  EXPECT_EQ(second["parameters"][0]["servers"], both);
  EXPECT_EQ(Json::parse(request("GET", "/v1/parameters/layer%2F1.bias").body)["servers"], both);
}

TEST_F(ApiTest, BalanceIsOfTheServersThatHoldTheParameters) {
  const auto balance = [this](const char* query) {
    return Json::parse(request("GET", std::string("/v1/servers") + query).body)["balance"];
  };
  EXPECT_TRUE(balance("").is_null()) << "no parameters are there";
  control.held_bytes[0] = 300;
  EXPECT_EQ(balance(""), 2.0) << "the one that serves and has nothing counts";
  control.held_bytes[1] = 100;
  EXPECT_EQ(balance(""), 1.5) << "who drains and has nothing, and who stands by, do not";
  control.held_bytes[2] = 200;
  EXPECT_EQ(balance(""), 1.5) << "who drains and still has some does";
  control.held_bytes[1] = 700;
  EXPECT_EQ(balance("?limit=1"), 1.75) << "whatever is on this page";
}

TEST_F(ApiTest, ActionsReachTheControlPlane) {
  EXPECT_EQ(request("POST", "/v1/checkpoints").status, 201);
  const HttpReply drain = request("POST", "/v1/workers/7:drain");
  EXPECT_EQ(drain.status, 202);
  EXPECT_EQ(Json::parse(drain.body), (Json{{"action", "drain"}, {"member", 7}}));
  EXPECT_EQ(
      request("POST", "/v1/job:pause", "Content-Type: application/json; charset=utf-8\r\n", "{}")
          .status,
      202);
  EXPECT_EQ(request("POST", "/v1/job:resume").status, 202);
  EXPECT_EQ(request("POST", "/v1/job:stop").status, 202);
  EXPECT_EQ(control.actions(), "checkpoint;drain 7;pause;resume;stop;");
}

TEST_F(ApiTest, ActionsWithABodyReachTheControlPlaneWithWhatTheySay) {
  const char* json = "Content-Type: application/json\r\n";
  EXPECT_EQ(request("POST", "/v1/workers/7:evict", json, R"({"seconds":60,"why":"hot"})").status,
            200);
  EXPECT_EQ(request("POST", "/v1/workers/7:evict").status, 200);
  EXPECT_EQ(request("DELETE", "/v1/evictions/w%201").status, 200);
  EXPECT_EQ(request("PATCH", "/v1/config", json, R"({"checkpoint.keep":5})").status, 200);
  EXPECT_EQ(request("POST", "/v1/checkpoints/7:verify").status, 200);
  EXPECT_EQ(request("POST", "/v1/checkpoints/7:restore", json, R"({"delete_newer":true})").status,
            200);
  EXPECT_EQ(request("DELETE", "/v1/checkpoints/7").status, 200);
  EXPECT_EQ(request("POST", "/v1/scale", json, R"({"workers":6,"why":"fair"})").status, 200);
  EXPECT_EQ(request("POST", "/v1/workers/7:measure").status, 200);
  EXPECT_EQ(control.actions(),
            "evict 7 60 hot;evict 7 0 ;allow w 1;config {\"checkpoint.keep\":5};verify 7;restore "
            "7!;delete 7;scale 6 fair;measure 7;");
  for (const char* bad : {R"({})", R"({"workers":1.5})", R"({"workers":-1})", R"({"workers":"6"})"})
    expect_problem(request("POST", "/v1/scale", json, bad), 400, "invalid_argument", "workers");
  const std::string book = R"({"workers":6,"why":")" + std::string(1001, 'x') + R"("})";
  expect_problem(request("POST", "/v1/scale", json, book), 400, "invalid_argument", "1000");
  expect_problem(request("POST", "/v1/workers/7:evict", json, R"({"seconds":"x"})"), 400,
                 "invalid_argument", "seconds");
  expect_problem(request("POST", "/v1/checkpoints/7:restore", json, R"({"delete_newer":1})"), 400,
                 "invalid_argument", "true or false");
  expect_problem(request("PATCH", "/v1/config"), 400, "invalid_argument", "JSON object");
  expect_problem(request("GET", "/v1/scale?efficiency=1"), 400, "invalid_argument", "0.05");
  EXPECT_EQ(Json::parse(request("GET", "/v1/scale?efficiency=0.75").body)["efficiency"], 0.75);
  EXPECT_EQ(request("GET", "/v1/parameters/layer%2F1.bias").status, 200);
  EXPECT_EQ(request("GET", "/v1/parameters/other").status, 404);
  const Json page = Json::parse(request("GET", "/v1/parameters?limit=1").body);
  EXPECT_EQ(page["parameters"].size(), 1U);
  const Json rest = Json::parse(request("GET", page["next"].get<std::string>()).body);
  EXPECT_EQ(rest["parameters"][0]["name"], "layer/1.bias");
  EXPECT_TRUE(rest["next"].is_null());
}

TEST_F(ApiTest, ErrorsOfTheControlPlaneBecomeProblems) {
  const std::array<std::pair<ErrorCode, int>, 12> expected = {
      {{ErrorCode::kUnavailable, 503},
       {ErrorCode::kDeadlineExceeded, 504},
       {ErrorCode::kAborted, 409},
       {ErrorCode::kFailedPrecondition, 409},
       {ErrorCode::kResourceExhausted, 429},
       {ErrorCode::kCancelled, 503},
       {ErrorCode::kDataLoss, 500},
       {ErrorCode::kInvalidArgument, 400},
       {ErrorCode::kNotFound, 404},
       {ErrorCode::kAlreadyExists, 409},
       {ErrorCode::kUnimplemented, 501},
       {ErrorCode::kInternal, 500}}};
  for (const auto& [code, status] : expected) {
    control.fail_with(Error(code, "planned: 7 of \"9\""));
    for (const char* path : {"/v1/checkpoints", "/v1/workers/9:drain", "/v1/job:pause",
                             "/v1/job:resume", "/v1/job:stop"}) {
      SCOPED_TRACE(path);
      const HttpReply reply = request("POST", path);
      expect_problem(reply, status, std::string(to_string(code)), "planned: 7 of \"9\"");
      EXPECT_EQ(Json::parse(reply.body)["instance"], path);
      EXPECT_EQ(reply.fields.contains("retry-after"), status == 503 || status == 429);
    }
  }
}

TEST_F(ApiTest, AThrowingControlPlaneIsAnInternalProblem) {
  control.throws = true;
  const HttpReply reply = request("GET", "/v1/cluster");
  expect_problem(reply, 500, "internal");
  EXPECT_EQ(reply.body.find("planned"), std::string::npos) << "inner text must not leak";
}

TEST_F(ApiTest, ReadyzSays503WhenNotReadyAndHealthzStays) {
  control.ready = false;
  expect_problem(request("GET", "/readyz"), 503, "unavailable", "not ready");
  EXPECT_EQ(request("GET", "/healthz").status, 200);
}

TEST_F(ApiTest, UnknownThingsAreNotFound) {
  for (const char* path :
       {"/nothing", "/v1", "/v1/", "/v1/workers/", "/v1/workers/7/", "/v1/workers/7:fly",
        "/v1/workers/:drain", "/V1/cluster", "//", "/v1/job", "/v1/cluster/x"}) {
    SCOPED_TRACE(path);
    expect_problem(request("GET", path), 404, "not_found");
  }
  expect_problem(request("GET", "/v1/workers/8"), 404, "not_found", "8");
}

TEST_F(ApiTest, WorkerNumbersAreChecked) {
  for (const char* id :
       {"x", "-1", "+7", "7x", "0x7", "18446744073709551616", "%20", "7%2f", "7%C3%A9"}) {
    SCOPED_TRACE(id);
    expect_problem(request("GET", std::string("/v1/workers/") + id), 400, "invalid_argument",
                   "id: expected a number");
    expect_problem(request("POST", std::string("/v1/workers/") + id + ":drain"), 400,
                   "invalid_argument", "id: expected a number");
  }
  for (const char* id : {"%", "%7", "%zz", "7%00", "7%0a"}) {
    SCOPED_TRACE(id);
    expect_problem(request("GET", std::string("/v1/workers/") + id), 400, "invalid_argument");
  }
  EXPECT_EQ(request("GET", "/v1/workers/%37").status, 200) << "an encoded digit is a digit";
  EXPECT_EQ(control.actions(), "");
}

TEST_F(ApiTest, QueryParametersAreChecked) {
  EXPECT_EQ(request("GET", "/v1/rounds").status, 200);
  EXPECT_EQ(control.last_limit, 51U) << "one more, to see whether there is another page";
  EXPECT_EQ(request("GET", "/v1/rounds?limit=1000").status, 200);
  EXPECT_EQ(control.last_limit, 1001U);
  for (const char* value : {"0", "1001", "-1", "", "x", "5x", "99999999999999999999999"})
    expect_problem(request("GET", std::string("/v1/rounds?limit=") + value), 400,
                   "invalid_argument", "'limit'");
  expect_problem(request("GET", "/v1/rounds?limit=1&limit=2"), 400, "invalid_argument", "twice");
  expect_problem(request("GET", "/v1/rounds?limit=1&max=2"), 400, "invalid_argument", "'max'");
  expect_problem(request("GET", "/v1/cluster?limit=1"), 400, "invalid_argument", "'limit'");
  expect_problem(request("GET", "/healthz?verbose"), 400, "invalid_argument", "'verbose'");
  expect_problem(request("POST", "/v1/job:stop?force=1"), 400, "invalid_argument", "'force'");
  EXPECT_EQ(control.actions(), "");
}

TEST_F(ApiTest, WrongMethodsGet405WithAllow) {
  const auto allow_of = [this](const char* method, const char* path) {
    const HttpReply reply = request(method, path);
    expect_problem(reply, 405, "unimplemented");
    return reply.fields.at("allow");
  };
  EXPECT_EQ(allow_of("POST", "/v1/cluster"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(allow_of("DELETE", "/v1/checkpoints"), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(allow_of("GET", "/v1/job:stop"), "POST, OPTIONS");
  EXPECT_EQ(allow_of("PUT", "/v1/workers/7:drain"), "POST, OPTIONS");
  EXPECT_EQ(allow_of("BREW", "/v1/cluster"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(control.actions(), "");
}

TEST_F(ApiTest, OptionsNamesTheMethods) {
  const HttpReply one = request("OPTIONS", "/v1/checkpoints");
  EXPECT_EQ(one.status, 204);
  EXPECT_EQ(one.fields.at("allow"), "GET, HEAD, POST, OPTIONS");
  EXPECT_FALSE(one.fields.contains("content-length"));
  EXPECT_EQ(request("OPTIONS", "*").status, 204);
  expect_problem(request("OPTIONS", "/nothing"), 404, "not_found");
}

TEST_F(ApiTest, BodiesAreChecked) {
  const char* json = "Content-Type: application/json\r\n";
  const char* path = "/v1/job:pause";
  expect_problem(request("POST", path, "Content-Type: text/plain\r\n", "{}"), 415,
                 "invalid_argument", "text/plain");
  EXPECT_EQ(request("POST", path, {}, "{}").fields.at("accept-post"), "application/json");
  expect_problem(
      request("POST", path, "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", "{}"),
      415, "invalid_argument", "encoding");
  expect_problem(request("POST", path, json, "{"), 400, "invalid_argument", "not JSON");
  expect_problem(request("POST", path, json, "[]"), 400, "invalid_argument", "array");
  expect_problem(request("POST", path, json, "{\"when\":1}"), 400, "invalid_argument", "'when'");
  expect_problem(request("POST", path, json, std::string(60'000, '[')), 400, "invalid_argument");
  expect_problem(request("GET", "/v1/cluster", json, "{}"), 400, "invalid_argument", "no body");
  EXPECT_EQ(control.actions(), "");
}

TEST_F(ApiTest, TheTokenIsAskedForEverythingButProbes) {
  options.token = "s3cret-token";
  start();
  for (const char* path :
       {"/", "/metrics", "/version", "/openapi.json", "/v1/cluster", "/v1/workers/7", "/nothing"}) {
    SCOPED_TRACE(path);
    const HttpReply none = request("GET", path);
    expect_problem(none, 401, "failed_precondition");
    EXPECT_EQ(none.fields.at("www-authenticate"), "Bearer realm=\"centroid\"");
    const HttpReply wrong = request("GET", path, "Authorization: Bearer s3cret-tokem\r\n");
    expect_problem(wrong, 401, "failed_precondition");
    EXPECT_NE(wrong.fields.at("www-authenticate").find("invalid_token"), std::string::npos);
  }
  expect_problem(request("POST", "/v1/job:stop"), 401, "failed_precondition");
  expect_problem(request("OPTIONS", "/v1/job:stop"), 401, "failed_precondition");
  EXPECT_EQ(control.actions(), "");
  EXPECT_EQ(request("GET", "/healthz").status, 200);
  EXPECT_EQ(request("GET", "/readyz").status, 200);
  EXPECT_EQ(request("GET", "/metrics", "Authorization: Bearer s3cret-token\r\n").status, 200);
  EXPECT_EQ(request("POST", "/v1/job:stop", "authorization: bearer s3cret-token\r\n").status, 202);
}

TEST(ApiAccess, SecretsAreEqualOnlyWhole) {
  EXPECT_TRUE(server::is_same_secret("abc", "abc"));
  for (const char* other : {"", "ab", "abcd", "abd", "xbc"})
    EXPECT_FALSE(server::is_same_secret("abc", other)) << other;
}

TEST(ApiAccess, HostNamesLoseTheirPort) {
  EXPECT_EQ(server::host_name("LocalHost:80"), "localhost");
  EXPECT_EQ(server::host_name("[::1]:80"), "::1");
  EXPECT_EQ(server::host_name("[::1]"), "::1");
  for (const char* bad : {"[::1", "[::1]x", "a:b", "a:123456", "::1"})
    EXPECT_EQ(server::host_name(bad), "") << bad;
}

TEST(ApiTarget, PercentEncodingIsDecodedOrRefused) {
  EXPECT_EQ(server::percent_decode("a%2Fb%C3%a9+").value(), "a/b\xC3\xA9+");
  for (const char* bad : {"%", "%4", "%g0", "x%0g", "%00", "a%0Ab", "%1f", "%7F", "\n"})
    EXPECT_FALSE(server::percent_decode(bad).ok()) << bad;
}

TEST(ApiTarget, FormsOfTargetsAreTakenApart) {
  const auto target = server::Target::parse("HTTP://Host:80/v1/a%20b?x=%31&y&&z=a=b").value();
  EXPECT_EQ(target.authority, "Host:80");
  EXPECT_EQ(target.path, "/v1/a%20b");
  EXPECT_EQ(target.segments, (std::vector<std::string>{"v1", "a b"}));
  using Query = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(target.query, (Query{{"x", "1"}, {"y", ""}, {"z", "a=b"}}));
  EXPECT_EQ(server::Target::parse("http://h").value().path, "/");
  for (const char* bad : {"", "v1", "http://", "http:///x", "/a#b", "/a b", "/\xC3\xA9", "/%"})
    EXPECT_FALSE(server::Target::parse(bad).ok()) << bad;
}

TEST_F(ApiTest, ForeignHostsAreRefusedOnLoopback) {
  for (const char* host :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", ""}) {
    SCOPED_TRACE(host);
    const std::string field = std::string("Host: ") + host + "\r\n";
    const HttpReply reply = request("GET", "/healthz", field);
    if (*host != '\0') expect_problem(reply, 421, "failed_precondition", host);
  }
  for (const char* host : {"localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8080"})
    EXPECT_EQ(request("GET", "/healthz", std::string("Host: ") + host + "\r\n").status, 200)
        << host;
  expect_problem(request("GET", "/healthz", "Host: localhost\r\nHost: localhost\r\n"), 400,
                 "invalid_argument", "Host");
  expect_problem(request("GET", "http://evil.example/healthz"), 421, "failed_precondition",
                 "evil.example");
  EXPECT_EQ(request("GET", "http://localhost/healthz").status, 200);
}

TEST_F(ApiTest, PagesOfOtherOriginsCannotAct) {
  const auto act = [this](const char* origin) {
    return request("POST", "/v1/job:stop", std::string("Origin: ") + origin + "\r\n");
  };
  expect_problem(act("http://evil.example"), 403, "failed_precondition", "evil.example");
  expect_problem(act("null"), 403, "failed_precondition");
  EXPECT_EQ(control.actions(), "");
  EXPECT_EQ(act("http://localhost").status, 202);
}

TEST_F(ApiTest, TheIndexLinksToWhatAnswers) {
  const auto links = Json::parse(request("GET", "/").body)["links"];
  EXPECT_GE(links.size(), 10U);
  for (const auto& [name, path] : links.items())
    EXPECT_EQ(request("GET", path.get<std::string>()).status, 200) << name;
}

TEST_F(ApiTest, RequestsAreCountedByRouteAndClass) {
  request("GET", "/v1/workers/7");
  request("GET", "/v1/workers/8");
  request("GET", "/v1/workers/8");
  request("GET", "/nothing/at/all");
  const std::string text = request("GET", "/metrics").body;
  const auto has = [&text](const char* line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(
      has("centroid_api_requests_total{code=\"2xx\",method=\"GET\",route=\"/v1/workers/{id}\"} 1"))
      << text;
  EXPECT_TRUE(
      has("centroid_api_requests_total{code=\"4xx\",method=\"GET\",route=\"/v1/workers/{id}\"} 2"));
  EXPECT_TRUE(has("centroid_api_requests_total{code=\"4xx\",method=\"other\",route=\"other\"} 1"));
  EXPECT_TRUE(
      has("centroid_api_request_seconds_count{method=\"GET\",route=\"/v1/workers/{id}\"} 3"));
  EXPECT_FALSE(has("/nothing")) << "paths of strangers must not become series";
}

TEST_F(ApiTest, ADangerousEndpointIsRefused) {
  const auto fails = [this] {
    const auto made = ApiServer::start(io.executor(), options, control, registry);
    return made.ok() ? Error(ErrorCode::kInternal, "started") : made.error();
  };
  for (const char* host : {"0.0.0.0", "::"}) {
    options.endpoint.host = host;
    EXPECT_EQ(fails().code(), ErrorCode::kFailedPrecondition) << host;
    EXPECT_NE(fails().message().find("token"), std::string::npos);
  }
  options.endpoint.host = "127.0.0.1";
  options.token = "with space";
  EXPECT_EQ(fails().code(), ErrorCode::kInvalidArgument);
  options.token.clear();
  options.endpoint.host = "no such host";
  EXPECT_EQ(fails().code(), ErrorCode::kInvalidArgument);
  options.endpoint.host = "127.0.0.1";
  start();
  options.endpoint.port = port();
  EXPECT_EQ(fails().code(), ErrorCode::kAlreadyExists);
}

TEST_F(ApiTest, TheViewersTokenReadsAndDoesNotAct) {
  options.token = "s3cret-token";
  options.viewer_token = "for-looking";
  start();
  const char* viewer = "Authorization: Bearer for-looking\r\n";
  for (const char* path : {"/", "/metrics", "/v1/cluster", "/v1/config"})
    EXPECT_EQ(request("GET", path, viewer).status, 200) << path;
  for (const char* path :
       {"/v1/job:stop", "/v1/job:pause", "/v1/checkpoints", "/v1/workers/7:drain"})
    expect_problem(request("POST", path, viewer), 403, "failed_precondition", "role admin");
  EXPECT_EQ(control.actions(), "");
  EXPECT_EQ(request("POST", "/v1/job:pause", "Authorization: Bearer s3cret-token\r\n").status, 202);
  expect_problem(request("GET", "/v1/cluster", "Authorization: Bearer for-lookinG\r\n"), 401,
                 "failed_precondition");
}

TEST_F(ApiTest, AViewersTokenNeedsAnotherOneBesideIt) {
  options.viewer_token = "for-looking";
  for (const char* token : {"", "for-looking"}) {
    options.token = token;
    const auto started = ApiServer::start(io.executor(), options, control, registry);
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST_F(ApiTest, WithATokenItListensAnywhereAndTakesAnyHost) {
  options.endpoint.host = "0.0.0.0";
  options.token = "t";
  EXPECT_EQ(request("GET", "/v1/cluster", "Host: node-3.example:80\r\nAuthorization: Bearer t\r\n")
                .status,
            200);
  expect_problem(request("GET", "/v1/cluster", "Host: node-3.example:80\r\n"), 401,
                 "failed_precondition");
}

}  // namespace
}  // namespace centroid::test
