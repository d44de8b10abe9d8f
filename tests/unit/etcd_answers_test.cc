#include <thread>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "server/election/candidates.h"
#include "server/election/etcd_client.h"

/// What the client makes of answers that no sound etcd gives; tests/process/standby_test.py has a
/// real one.
namespace centroid::server {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

/// Answers every connection with the same bytes, then closes it.
class Canned {
 public:
  explicit Canned(std::string bytes) : bytes_(std::move(bytes)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Canned() {
    stops_ = true;
    asio::io_context context;
    Tcp::socket wake(context);
    boost::system::error_code ignored;
    wake.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }
  std::string endpoint() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  void run() {
    for (;;) {
      Tcp::socket socket = acceptor_.accept();
      if (stops_) return;
      boost::system::error_code ignored;
      std::string request;
      asio::read_until(socket, asio::dynamic_buffer(request), "\r\n\r\n", ignored);
      asio::write(socket, asio::buffer(bytes_), ignored);
    }
  }
  const std::string bytes_;
  asio::io_context context_;
  Tcp::acceptor acceptor_{context_, {asio::ip::address_v4::loopback(), 0}};
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

std::string http(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

Result<std::optional<Holder>> get_from(const std::vector<std::string>& endpoints) {
  IoThread io("test");
  EtcdOptions options;
  options.endpoints = endpoints;
  EtcdClient client(io.executor(), options);
  return io.wait(client.get("/k"));
}

Error error_of(const std::string& bytes) {
  const Canned etcd(bytes);
  const auto got = get_from({etcd.endpoint()});
  return got.ok() ? Error(ErrorCode::kInternal, "it was taken") : got.error();
}

TEST(EtcdClient, AKeyWithItsRevisionAndLease) {
  const Canned etcd(http("200 OK",
                         R"({"header":{"revision":"9"},"kvs":[{"key":"L2s=","create_revision":"7",)"
                         R"("mod_revision":"8","value":"aGVsbG8=","lease":"123"}],"count":"1"})"));
  const auto got = get_from({etcd.endpoint()});
  ASSERT_TRUE(got.ok()) << got.error().message();
  ASSERT_TRUE(got->has_value());
  EXPECT_EQ((*got)->value, "hello");
  EXPECT_EQ((*got)->term, 7u);
  EXPECT_EQ((*got)->lease, 123);
}

TEST(EtcdClient, NoKey) {
  const Canned etcd(http("200 OK", R"({"header":{"revision":"9"}})"));
  const auto got = get_from({etcd.endpoint()});
  ASSERT_TRUE(got.ok());
  EXPECT_FALSE(got->has_value());
}

TEST(EtcdClient, ADeadEndpointIsPassedOver) {
  const Canned etcd(http("200 OK", "{}"));
  EXPECT_TRUE(get_from({"http://127.0.0.1:1", etcd.endpoint()}).ok());
}

TEST(EtcdClient, AnErrorNamesEveryEndpointThatWasTried) {
  const auto got = get_from({"http://127.0.0.1:1", "http://127.0.0.1:2"});
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(got.error().message().find("http://127.0.0.1:1: "), std::string::npos);
  EXPECT_NE(got.error().message().find("http://127.0.0.1:2: "), std::string::npos);
}

TEST(EtcdClient, WhatEtcdRefusesIsNotTriedElsewhere) {
  const std::string body = R"({"error":"etcdserver: permission denied","code":7})";
  const Error refused = error_of(http("403 Forbidden", body));
  EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("permission denied"), std::string::npos);
  EXPECT_NE(refused.message().find("etcd.user"), std::string::npos);
}

TEST(EtcdClient, AnswersThatNoEtcdGives) {
  EXPECT_EQ(error_of("220 smtp.example.org ESMTP\r\n").code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error_of(http("200 OK", "<html>")).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error_of(http("200 OK", "[1]")).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error_of(http("200 OK", R"({"kvs":[7]})")).code(), ErrorCode::kDataLoss);
  EXPECT_EQ(error_of(http("200 OK", R"({"kvs":[{"value":"a$b"}]})")).code(), ErrorCode::kDataLoss);
  EXPECT_EQ(error_of(http("503 Service Unavailable", "")).code(), ErrorCode::kUnavailable);
}

TEST(EtcdClient, ALargeAnswerIsNotRead) {
  const Error refused = error_of("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{");
  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable);
  EXPECT_NE(refused.message().find("limit"), std::string::npos);
}

TEST(EtcdClient, KeysWithAPrefixAndWhatIsLeftOfALease) {
  const auto ask = [](const Canned& etcd, auto what) {
    IoThread io("test");
    EtcdOptions options;
    options.endpoints = {etcd.endpoint()};
    EtcdClient client(io.executor(), options);
    return io.wait(what(client));
  };
  const auto list = [](EtcdClient& client) { return client.list("/k/", 2); };
  const auto look = [](EtcdClient& client) { return client.time_to_live(5); };
  const auto found = ask(Canned(http("200 OK", R"({"kvs":[{"value":"aGVsbG8=","lease":"1"},)"
                                               R"({"value":"aGVsbG8=","lease":"2"}]})")),
                         list);
  ASSERT_TRUE(found.ok()) << found.error().message();
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ(found->back().lease, 2);
  EXPECT_TRUE(ask(Canned(http("200 OK", "{}")), list)->empty());
  EXPECT_EQ(ask(Canned(http("200 OK", R"({"kvs":[{},7]})")), list).error().code(),
            ErrorCode::kDataLoss);
  const Canned living(http("200 OK", R"({"ID":"5","TTL":"12","grantedTTL":"30"})"));
  EXPECT_EQ(ask(living, look)->ttl, std::chrono::seconds(12));
  EXPECT_EQ(ask(living, look)->granted, std::chrono::seconds(30));
  EXPECT_EQ(ask(Canned(http("200 OK", R"({"ID":"5","TTL":"-1"})")), look)->ttl, Duration::zero());
}

TEST(Candidates, WhatOneTellsIsReadBackAndOtherValuesAreNone) {
  Candidate one;
  one.name = "a";
  one.data = "h:1";
  one.api = "h:2";
  one.version = "1.2";
  EXPECT_EQ(decode_candidate(encode_candidate(one)), one);
  for (const char* other : {"", "x", "[]", "{}", R"({"name":7})", R"({"data":"h:1"})"})
    EXPECT_FALSE(decode_candidate(other)) << other;
}

TEST(EtcdClient, Endpoints) {
  const auto several = parse_etcd_endpoints("http://a:2379/,b:1,http://[::1]:2379");
  ASSERT_TRUE(several.ok());
  EXPECT_EQ(*several,
            (std::vector<std::string>{"http://a:2379", "http://b:1", "http://[::1]:2379"}));
  for (const char* bad : {"", "a", "a:", ":1", "a:x", "a:0", "a:65536", "a:1,", "http://", "a/b:1",
                          "user@a:1", "ftp://a:1"})
    EXPECT_EQ(parse_etcd_endpoints(bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  EXPECT_EQ(parse_etcd_endpoints("https://a:1").value().front(), "https://a:1");
}

}  // namespace
}  // namespace centroid::server
