#include <array>
#include <ctime>

#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>

#include "tests/conformance/transport_fixture.h"
#include "tests/unit/temporary_directory.h"
#include "transport/session.h"

namespace centroid::transport::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A server and a client that say Hello to each other, each with files of its own.
struct TlsTest : ::testing::Test {
  struct Answer {
    std::string client, server;  ///< why there is no session; "": there is
  };

  std::unique_ptr<Transport> make(const std::optional<TlsOptions>& tls) {
    TransportOptions options;
    if (tls) options.layer = make_tls(*tls).value();
    return make_tcp(thread.executor(), options);
  }
  TlsOptions server_files(const std::string& names = "DNS:localhost,IP:127.0.0.1", int days = 1) {
    TlsOptions options = authority.issue("server", names, days);
    options.authority.clear();
    options.is_server = true;
    return options;
  }
  TlsOptions client_files() {
    TlsOptions options;
    options.authority = authority.file();
    return options;
  }

  static Task<std::string> answer(Transport& transport, std::string host, Endpoint there) {
    there.host = std::move(host);
    auto connection = co_await transport.connect(there, soon());
    if (!connection.ok()) co_return connection.error().to_string();
    Greeting greeting;
    greeting.role = greeting.name = "client";
    auto session = co_await Session::open(std::move(*connection), greeting, soon());
    if (!session.ok()) co_return session.error().to_string();
    (*session)->close(stop());
    co_return "";
  }
  Task<std::string> serve(Listener& listener, Deadline deadline) {
    auto connection = co_await listener.accept();
    if (!connection.ok()) co_return connection.error().to_string();
    Greeting greeting;
    greeting.role = greeting.name = "server";
    greeting.run_id = "run";
    auto session = co_await Session::accept(std::move(*connection), greeting, deadline);
    if (!session.ok()) co_return session.error().to_string();
    shown = (*session)->connection().peer_certificate_end();
    (*session)->close(stop());
    co_return "";
  }
  Answer meet(Transport& server, Transport& client, const std::string& host = "127.0.0.1") {
    auto listener = server.listen(Endpoint()).value();
    auto serving =
        boost::asio::co_spawn(thread.executor(), serve(*listener, soon()), boost::asio::use_future);
    Answer out;
    out.client = wait(thread, answer(client, host, listener->endpoint()));
    out.server = serving.get();
    wait(thread, close(*listener));
    return out;
  }
  static Task<std::unique_ptr<Connection>> open_plain(Transport& transport, Endpoint there) {
    auto connection = co_await transport.connect(std::move(there), soon());
    EXPECT_TRUE(connection.ok()) << connection.error().to_string();
    co_return std::move(*connection);
  }
  static Task<int> close(Listener& listener) {
    listener.close();
    co_return 0;
  }
  Answer meet(const std::optional<TlsOptions>& server, const std::optional<TlsOptions>& client,
              const std::string& host = "127.0.0.1") {
    const auto server_transport = make(server), client_transport = make(client);
    return meet(*server_transport, *client_transport, host);
  }
  std::string refusal(const TlsOptions& options) {
    const auto made = make_tls(options);
    return made.ok() ? "" : made.error().to_string();
  }

  TemporaryDirectory folder;
  test::Authority authority{folder.path()};
  std::optional<double> shown;  ///< end of the certificate that the server saw last
  IoThread thread{"tls"};
};

TEST_F(TlsTest, ByNameAndByAddress) {
  for (const char* const host : {"localhost", "127.0.0.1"}) {
    const Answer answer = meet(server_files(), client_files(), host);
    EXPECT_EQ(answer.client, "") << host;
    EXPECT_EQ(answer.server, "") << host;
  }
}

TEST_F(TlsTest, OnlyTheAuthoritysServersAreTrusted) {
  test::Authority other(folder.path(), "other");
  TlsOptions client = client_files();
  client.authority = other.file();
  const Answer answer = meet(server_files(), client);
  EXPECT_THAT(answer.client, AllOf(HasSubstr("the certificate is not accepted"),
                                   HasSubstr("unable to get local issuer certificate")));
  EXPECT_THAT(answer.server, HasSubstr("alert unknown ca"));
}

TEST_F(TlsTest, CertificateIsForTheHost) {
  const Answer answer = meet(server_files("DNS:elsewhere"), client_files(), "localhost");
  EXPECT_THAT(answer.client, HasSubstr("hostname mismatch"));
  const Answer address = meet(server_files("IP:127.0.0.2"), client_files());
  EXPECT_THAT(address.client, HasSubstr("IP address mismatch"));
  TlsOptions named = client_files();
  named.server_name = "elsewhere";
  EXPECT_EQ(meet(server_files("DNS:elsewhere"), named).client, "");
  TlsOptions equals = client_files();
  equals.any_name = true;
  EXPECT_EQ(meet(server_files("DNS:elsewhere"), equals).client, "");
}

TEST_F(TlsTest, ExpiredCertificateIsRefused) {
  const Answer answer = meet(server_files("IP:127.0.0.1", -1), client_files());
  EXPECT_THAT(answer.client, HasSubstr("certificate has expired"));
}

TEST_F(TlsTest, ServerWithAnAuthorityWantsTheClientsCertificate) {
  TlsOptions server = server_files();
  server.authority = authority.file();
  Answer answer = meet(server, client_files());
  EXPECT_THAT(answer.server, AllOf(HasSubstr("did not return a certificate"),
                                   HasSubstr("tls.certificate and tls.key")));
  EXPECT_THAT(answer.client, HasSubstr("certificate required"));
  answer = meet(server, authority.issue("client"));
  EXPECT_EQ(answer.client, "");
  EXPECT_EQ(answer.server, "");
  test::Authority other(folder.path(), "other");
  TlsOptions stranger = other.issue("stranger");
  stranger.authority = authority.file();
  answer = meet(server, stranger);
  EXPECT_THAT(answer.server, HasSubstr("the certificate is not accepted"));
}

TEST_F(TlsTest, EndOfTheCertificateThatTheOtherSideShowsIsKnown) {
  EXPECT_EQ(meet(server_files(), client_files()).server, "");
  EXPECT_EQ(shown, std::nullopt);  // it is not asked for one
  TlsOptions server = server_files();
  server.authority = authority.file();
  for (const int days : {3, 700}) {
    const TlsOptions client = authority.issue("client", "DNS:localhost", days);
    EXPECT_EQ(meet(server, client).server, "");
    const auto end = certificate_end(client.certificate);
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(shown, *end);
    const double left = *end - static_cast<double>(std::time(nullptr));
    EXPECT_NEAR(left / 86400, days, 0.1);
  }
  EXPECT_EQ(meet(std::nullopt, std::nullopt).server, "");
  EXPECT_EQ(shown, std::nullopt);
}

TEST_F(TlsTest, OneSideWithoutTls) {
  const Answer plain_client = meet(server_files(), std::nullopt);
  EXPECT_THAT(plain_client.server, HasSubstr("does not speak TLS"));
  EXPECT_THAT(plain_client.client, HasSubstr("TLS, which this side does not speak"));
  const Answer plain_server = meet(std::nullopt, client_files());
  EXPECT_THAT(plain_server.client, HasSubstr("the other side does not speak TLS"));
  EXPECT_THAT(plain_server.server, HasSubstr("TLS, which this side does not speak"));
}

TEST_F(TlsTest, SilentClientHoldsUpNobody) {
  const auto server = make(server_files()), client = make(client_files());
  auto listener = server->listen(Endpoint()).value();
  const auto plain = make(std::nullopt);
  const auto silent = wait(thread, open_plain(*plain, listener->endpoint()));
  auto first = boost::asio::co_spawn(thread.executor(), serve(*listener, now() + 300ms),
                                     boost::asio::use_future);
  while (first.wait_for(0s) != std::future_status::ready) {
    auto second =
        boost::asio::co_spawn(thread.executor(), serve(*listener, soon()), boost::asio::use_future);
    EXPECT_EQ(wait(thread, answer(*client, "127.0.0.1", listener->endpoint())), "");
    EXPECT_EQ(second.get(), "");
  }
  EXPECT_THAT(first.get(), HasSubstr("deadline_exceeded"));
  wait(thread, close(*listener));
}

/// As of one for which there is no place.
Task<std::string> refuse(Listener& listener) {
  const auto connection = co_await listener.accept();
  if (!connection.ok()) co_return connection.error().to_string();
  const auto seconds = std::make_shared<double>(0);
  (*connection)->count_handshake(seconds);
  OutFrame frame;
  frame.kind = kGoodbye;
  (*connection)->close_with(frame, stop());
  co_return *seconds > 0 ? "the handshake has begun" : "";
}

TEST_F(TlsTest, OneThatIsRefusedBeforeItsHandshakeLearnsThatItMayComeAgain) {
  const auto server = make(server_files()), client = make(client_files());
  auto listener = server->listen(Endpoint()).value();
  auto refusing =
      boost::asio::co_spawn(thread.executor(), refuse(*listener), boost::asio::use_future);
  EXPECT_THAT(wait(thread, answer(*client, "127.0.0.1", listener->endpoint())),
              AllOf(HasSubstr("resource_exhausted"), HasSubstr("try again")));
  EXPECT_EQ(refusing.get(), "");
  wait(thread, close(*listener));
}

/// Each request costs an answer, which nobody may have sent yet.
TEST_F(TlsTest, WhoAsksForNewKeysAgainAndAgainIsClosed) {
  const auto server = make(server_files());
  for (const bool is_flood : {false, true}) {
    auto listener = server->listen(Endpoint()).value();
    auto serving =
        boost::asio::co_spawn(thread.executor(), serve(*listener, soon()), boost::asio::use_future);
    test::ask_for_new_keys(listener->endpoint().port, is_flood ? 1000 : 10);
    const std::string why = serving.get();
    EXPECT_NE(why, "");
    EXPECT_EQ(why.find("new keys") != std::string::npos, is_flood) << why;
    wait(thread, close(*listener));
  }
}

/// OpenSSL would take that much memory at once. The message comes in two parts.
TEST_F(TlsTest, AFirstMessageThatSaysItIsLongIsRefused) {
  const auto server = make(server_files()), plain = make(std::nullopt);
  auto listener = server->listen(Endpoint()).value();
  auto serving =
      boost::asio::co_spawn(thread.executor(), serve(*listener, soon()), boost::asio::use_future);
  constexpr std::array<std::uint8_t, 11> kHello = {0x16, 3, 1, 0, 6, 1, 1, 0xff, 0xb8, 3, 3};
  test::send_bytes(listener->endpoint().port, kHello, 5);
  EXPECT_THAT(serving.get(), HasSubstr("first message is over 16 KiB"));
  wait(thread, close(*listener));
}

/// The same alert of another server, which fails at the client's certificate.
TEST_F(TlsTest, AnAlertThatComesLaterIsNoRefusal) {
  const TlsOptions files = server_files(), own = authority.issue("client", "DNS:localhost", 1);
  const test::FailingServer server(files);
  const auto client = make(own);
  EXPECT_THAT(wait(thread, answer(*client, "127.0.0.1", {"127.0.0.1", server.port()})),
              AllOf(HasSubstr("unavailable"), HasSubstr("alert internal error")));
}

TEST_F(TlsTest, RenewedFilesCountForTheNextConnection) {
  const TlsOptions files = server_files("DNS:elsewhere");
  const auto server = make(files), client = make(client_files());
  EXPECT_THAT(meet(*server, *client).client, HasSubstr("mismatch"));
  server_files();  // the same paths
  EXPECT_EQ(meet(*server, *client).client, "");
  spill(files.key, "broken");
  EXPECT_EQ(meet(*server, *client).client, "") << "the last right ones stay";
}

TEST_F(TlsTest, WrongFilesAreNamed) {
  const TlsOptions right = server_files();
  TlsOptions wrong = right;
  wrong.certificate = folder.path() / "none.crt";
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("tls.certificate"), HasSubstr("none.crt")));
  wrong = right;
  spill(folder.path() / "text", "no certificate");
  wrong.certificate = folder.path() / "text";
  EXPECT_THAT(refusal(wrong), HasSubstr("is no certificate in PEM"));
  wrong = right;
  wrong.key = folder.path() / "text";
  EXPECT_THAT(refusal(wrong), HasSubstr("is no private key in PEM without a password"));
  wrong = right;
  wrong.key = authority.issue("another").key;
  EXPECT_THAT(refusal(wrong), HasSubstr("does not belong to the certificate"));
  wrong = right;
  wrong.key.clear();
  EXPECT_THAT(refusal(wrong), HasSubstr("belong together"));
  wrong = right;
  wrong.authority = folder.path() / "text";
  EXPECT_THAT(refusal(wrong), HasSubstr("tls.authority"));
  wrong = right;
  wrong.certificate.clear();
  wrong.key.clear();
  EXPECT_THAT(refusal(wrong), HasSubstr("needs tls.certificate"));
}

}  // namespace
}  // namespace centroid::transport::testing
