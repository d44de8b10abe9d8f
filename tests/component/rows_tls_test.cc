#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/rows_client.h"
#include "tests/support/certificates.h"
#include "tests/support/cluster.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using client::RowsClient;
using client::RowsClientOptions;
using testing::HasSubstr;

class RowsTls : public testing::Test {
 protected:
  std::unique_ptr<TestServer> start() {
    server::ServerConfig config;
    config.run_dir = folder.path() / "run";
    config.tables = "emb:dim=2,optimizer=sgd,lr=1";
    transport::TlsOptions shown = authority.issue("server");  // asks for the clients', too
    shown.is_server = true;
    return std::make_unique<TestServer>(config, [shown](Executor executor) {
      transport::TransportOptions options;
      options.layer = transport::make_tls(shown).value();
      return transport::make_tcp(executor, options);
    });
  }
  static Result<std::unique_ptr<RowsClient>> open(const TestServer& server,
                                                  std::optional<transport::TlsOptions> tls) {
    RowsClientOptions options;
    options.servers = server.endpoint().to_string();
    options.tls = std::move(tls);
    options.timeout = std::chrono::milliseconds(2000);
    return RowsClient::open(options, "emb");
  }
  static std::string refusal(const TestServer& server, std::optional<transport::TlsOptions> tls) {
    const auto client = open(server, std::move(tls));
    return client.ok() ? "it was let in" : client.error().message();
  }

  TemporaryDirectory folder;
  Authority authority{folder.path()};
};

TEST_F(RowsTls, CarriesPushesAndPulls) {
  const auto server = start();
  auto client = open(*server, authority.issue("client"));
  ASSERT_TRUE(client.ok()) << client.error().to_string();
  const std::vector<std::uint64_t> keys{3, 4};
  ASSERT_TRUE((*client)->push(keys, std::vector<float>{1, 2, 3, 4}).ok());
  std::vector<float> rows(4);
  ASSERT_TRUE((*client)->pull(keys, rows).ok());
  EXPECT_EQ(rows, (std::vector<float>{-1, -2, -3, -4}));
}

TEST_F(RowsTls, RefusesAClientWithoutACertificateOfTheAuthority) {
  const auto server = start();
  transport::TlsOptions nothing;
  nothing.authority = authority.file();
  EXPECT_THAT(refusal(*server, nothing), HasSubstr("certificate"));
  Authority other(folder.path(), "other");
  EXPECT_THAT(refusal(*server, other.issue("stranger")), HasSubstr("certificate"));
  EXPECT_NE(refusal(*server, std::nullopt), "it was let in");
  transport::TlsOptions missing;
  missing.authority = "/nowhere/ca.crt";
  EXPECT_THAT(refusal(*server, missing), HasSubstr("/nowhere/ca.crt"));
}

}  // namespace
}  // namespace centroid::test
