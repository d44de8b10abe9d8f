// The HTTP server and the client against each other, over plain connections and over TLS.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "tests/support/certificates.h"
#include "tests/support/http_client.h"
#include "tests/unit/temporary_directory.h"
#include "transport/http/http_client.h"
#include "transport/http/http_exchange.h"
#include "transport/http/http_server.h"

namespace centroid::transport {
namespace {

using test::Authority;

/// Three pieces, without a length.
class Pieces final : public BodyStream {
 public:
  Task<Result<std::string>> next() override {
    ++given_;
    co_return given_ > 3 ? std::string() : std::string(100'000, static_cast<char>('0' + given_));
  }

 private:
  int given_ = 0;
};

struct Echo final : HttpService {
  Task<HttpResponse> answer(HttpRequest request) override {
    HttpResponse response;
    response.content_type = "text/plain";
    if (request.target == "/pieces")
      response.stream = std::make_shared<Pieces>();
    else if (request.target == "/never")
      co_await sleep_until(TimePoint::max());
    else
      response.body = request.method + " " + request.target + " " + request.body;
    co_return response;
  }
  HttpResponse refuse(unsigned status, const std::string& detail, const std::string&) override {
    HttpResponse response;
    response.status = status;
    response.body = detail;
    return response;
  }
};

class Http : public ::testing::TestWithParam<bool> {
 protected:
  Http() {
    if (GetParam()) {
      Authority authority(folder_.path());
      TlsOptions theirs = authority.issue("server"), mine;
      mine.authority = theirs.authority;
      theirs.authority.clear();
      theirs.is_server = true;
      server_tls_ = make_tls(theirs).value();
      client_tls_ = make_tls(mine).value();
    }
    limits_.body_limit_bytes = 150'000;
    server_.emplace(io_.executor(), echo_, limits_, server_tls_, "test");
    Endpoint any;
    HttpOrigin origin;
    origin.endpoint = server_->listen(any).value();
    origin.is_secure = GetParam();
    port_ = origin.endpoint.port;
    client_.emplace(io_.executor(), origin);
    call_on(io_.executor(), [this] { server_->start(); });
  }
  ~Http() override {
    client_.reset();
    io_.wait(stop(&*server_));
  }
  static Task<void> stop(HttpServer* server) {
    co_await server->close(Duration::zero());
    server->drop();
    co_await server->join();
  }
  Result<HttpAnswer> ask(const std::string& target, const std::string& body = "",
                         const HttpReading& reading = {},
                         Duration patience = std::chrono::seconds(60)) {
    HttpRequest request;
    request.method = body.empty() ? "GET" : "POST";
    request.target = target;
    request.body = body;
    const Deadline deadline = now() + patience;
    if (!client_->is_open()) {
      const Status opened = io_.wait(client_->open(client_tls_, deadline));
      if (!opened.ok()) return opened.error();
    }
    return io_.wait(client_->ask(request, reading, deadline));
  }

  TemporaryDirectory folder_;
  IoThread io_{"http"};
  Echo echo_;
  HttpLimits limits_;
  std::shared_ptr<StreamLayer> server_tls_, client_tls_;
  std::uint16_t port_ = 0;
  std::optional<HttpServer> server_;
  std::optional<HttpClient> client_;
};

TEST_P(Http, SeveralRequestsGoOverOneConnection) {
  for (const std::string& body : {std::string(), std::string("x"), std::string(120'000, 'y')}) {
    const auto answer = ask("/a", body);
    ASSERT_TRUE(answer.ok()) << answer.error().message();
    EXPECT_EQ(answer->status, 200u);
    EXPECT_EQ(answer->body, (body.empty() ? "GET /a " : "POST /a ") + body);
    ASSERT_NE(answer->field("server"), nullptr);
    EXPECT_EQ(*answer->field("server"), "test");
    EXPECT_TRUE(client_->is_open());
  }
}

TEST_P(Http, AStreamComesWholeOrInPieces) {
  const auto whole = ask("/pieces");
  ASSERT_TRUE(whole.ok()) << whole.error().message();
  EXPECT_EQ(whole->body.size(), 300'000u);
  std::string got;
  HttpReading reading;
  reading.take = [&got](std::string_view piece) {
    got += piece;
    return true;
  };
  const auto pieces = ask("/pieces", "", reading);
  ASSERT_TRUE(pieces.ok()) << pieces.error().message();
  EXPECT_EQ(got, whole->body);
  reading.take = [](std::string_view) { return false; };
  ASSERT_TRUE(ask("/pieces", "", reading).ok());
  EXPECT_FALSE(client_->is_open()) << "the rest of the stream is still on the way";
}

TEST_P(Http, ABodyOverTheLimitIsRefusedOnBothSides) {
  const auto refused = ask("/a", std::string(150'001, 'z'));
  ASSERT_TRUE(refused.ok()) << refused.error().message();
  EXPECT_EQ(refused->status, 413u);
  EXPECT_FALSE(client_->is_open());
  HttpReading reading;
  reading.most_bytes = 299'999;
  const auto large = ask("/pieces", "", reading);
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code(), ErrorCode::kDataLoss);
}

TEST_P(Http, AnAnswerThatDoesNotComeEndsAtTheDeadline) {
  const auto answer = ask("/never", "", {}, std::chrono::milliseconds(300));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(answer.error().message(), "no answer in time");
  EXPECT_FALSE(client_->is_open());
}

/// What a client sends, and how much room there was for it.
class Sent final : public ByteStream {
 public:
  Sent(Executor executor, std::string bytes, std::vector<std::size_t>& rooms)
      : executor_(std::move(executor)), bytes_(std::move(bytes)), rooms_(rooms) {}
  Moved try_read(MutableBytes into) override {
    rooms_.push_back(into.size());
    const std::size_t count = std::min(into.size(), bytes_.size());
    if (count == 0) return {0, boost::asio::error::eof};
    std::memcpy(into.data(), bytes_.data(), count);
    bytes_.erase(0, count);
    return {count, {}};
  }
  Moved try_write(std::span<const Bytes>) override { return {0, boost::asio::error::eof}; }
  Task<Moved> read_some(MutableBytes into) override { co_return try_read(into); }
  Task<Moved> write_some(std::span<const Bytes> parts) override { co_return try_write(parts); }
  void close() noexcept override {}
  std::string peer() const override { return "127.0.0.1:1"; }
  Executor executor() const override { return executor_; }

 private:
  const Executor executor_;
  std::string bytes_;
  std::vector<std::size_t>& rooms_;
};

Task<void> read_one(HttpStream* stream, const HttpLimits* limits, HttpService* service) {
  const bool has_begun = co_await wait_for_request(*stream, *limits);
  EXPECT_TRUE(has_begun);
  const HttpIncoming incoming = co_await read_request(*stream, *limits, *service);
  EXPECT_TRUE(incoming.request.has_value()) << incoming.detail;
  release_request(*stream);
  const bool has_another = co_await wait_for_request(*stream, *limits);
  EXPECT_FALSE(has_another);
}

TEST(HttpMemory, AConnectionThatIsIdleAgainHasASmallBuffer) {
  IoThread io{"http"};
  std::vector<std::size_t> rooms;
  Echo echo;
  const HttpLimits limits;
  const std::string head = "GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(8'000, 'x');
  HttpStream stream(std::make_unique<Sent>(io.executor(), head + "\r\n\r\n", rooms));
  const auto budget = std::make_shared<ByteBudget>(1 << 20);
  stream.held = HeldBytes(budget);
  io.wait(read_one(&stream, &limits, &echo));
  const std::vector<std::size_t> expected = {512, 512, 1024, 2048, 4096, 512};
  EXPECT_EQ(rooms, expected);
  EXPECT_LE(stream.buffer.capacity(), 512U);
  EXPECT_EQ(budget->used(), 0U);
}

class PlainHttp : public Http {};

TEST_P(PlainHttp, AStreamToHttp10EndsTheConnectionWhateverTheClientWants) {
  test::HttpClient old(port_);
  ASSERT_TRUE(old.send("GET /pieces HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const auto reply = old.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->status, 200);
  EXPECT_FALSE(reply->fields.contains("transfer-encoding"));
  EXPECT_TRUE(old.wait_closed());
}

INSTANTIATE_TEST_SUITE_P(Old, PlainHttp, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(PlainAndTls, Http, ::testing::Bool());

}  // namespace
}  // namespace centroid::transport
