#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "transport/tls/tls.h"

namespace centroid::test {

/// A certificate authority for one test: writes PEM files below a folder.
class Authority {
 public:
  explicit Authority(std::filesystem::path folder, const std::string& name = "ca");
  ~Authority();
  /// Files NAME.crt and NAME.key, signed by this authority, for these subject alternative names
  /// ("DNS:host", "IP:127.0.0.1", comma between them). `days` < 0: the certificate has expired.
  transport::TlsOptions issue(const std::string& name,
                              const std::string& names = "DNS:localhost,IP:127.0.0.1",
                              int days = 1);
  std::string file() const;  ///< the authority's certificate

 private:
  struct State;
  std::filesystem::path folder_;
  std::string name_;
  std::unique_ptr<State> state_;
};

/// A TLS server of another make: in its one connection it fails at the client's certificate, with
/// the alert internal_error.
class FailingServer {
 public:
  explicit FailingServer(const transport::TlsOptions& files);
  ~FailingServer();
  std::uint16_t port() const { return port_; }

 private:
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

/// Connect by TLS to a port of this machine, ask so many times for new keys, and end.
void ask_for_new_keys(std::uint16_t port, int times);

/// Connect without TLS, send the first so many bytes and then the others, and wait for the end.
void send_bytes(std::uint16_t port, std::span<const std::uint8_t> bytes, std::size_t first);

/// TLS between two ends with certificates of one authority, which all tests share.
std::shared_ptr<transport::StreamLayer> mutual_tls();

}  // namespace centroid::test
