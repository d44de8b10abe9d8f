#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "transport/byte_stream.h"

namespace centroid::transport {

struct SslDeleter {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
};
using SslPointer = std::unique_ptr<SSL, SslDeleter>;

/// Its expiry as Unix time; none: not stated.
std::optional<double> certificate_end(const X509* certificate);

/// Why a TlsStream failed, without advice.
struct TlsFailure {
  std::string reason;
  bool is_verdict = false;  ///< about the other side's certificate
};
/// Nothing for an error of another category.
std::optional<TlsFailure> tls_failure(const boost::system::error_code& error);

/// One end of a TLS connection over another stream. OpenSSL uses memory only: the inner stream does
/// all waiting.
class TlsStream final : public ByteStream {
 public:
  /// `ssl` is set to connect or accept, and has no BIO yet.
  TlsStream(std::unique_ptr<ByteStream> inner, SslPointer ssl);

  Moved try_read(MutableBytes into) override;
  Moved try_write(std::span<const Bytes> parts) override;
  Moved try_write_last(std::span<const Bytes> parts) override;
  Task<Moved> read_some(MutableBytes into) override;
  Task<Moved> write_some(std::span<const Bytes> parts) override;
  void end() noexcept override;
  void close() noexcept override;
  std::string peer() const override { return inner_->peer(); }
  std::optional<double> peer_certificate_end() const override;
  void count_handshake(std::shared_ptr<double> seconds) override { spent_ = std::move(seconds); }
  Executor executor() const override { return inner_->executor(); }

 private:
  static const BIO_METHOD* method();
  void send_close_notify();
  int give(std::span<std::byte> into);
  bool is_flooded() const;
  Moved failed(int result);
  Moved take_in(Moved moved);
  Moved look_at_hello();
  Moved step_handshake();
  Task<Moved> read_more();
  Task<Moved> shake_hands();
  Bytes unsent();
  Moved try_flush();
  Moved seal(std::span<const Bytes> parts);

  std::unique_ptr<ByteStream> inner_;
  SslPointer ssl_;
  std::vector<std::byte> received_;           ///< received sealed bytes of the last read
  std::size_t taken_ = 0, received_end_ = 0;  ///< of `received_`
  std::vector<std::byte> gathered_;
  std::vector<std::byte> sealed_;    ///< written by OpenSSL since
  std::vector<std::byte> outgoing_;  ///< being sent; nothing is added to it
  std::size_t sent_ = 0;             ///< of `outgoing_`
  std::size_t sealed_plain_ = 0;     ///< bytes of the caller that are sealed and not all sent
  std::uint64_t messages_ = 0;       ///< of the protocol, received since the handshake
  std::uint64_t read_plain_ = 0;     ///< bytes that the caller has read
  bool may_begin_ = false;           ///< the handshake
  bool is_ready_ = false, is_shaking_ = false, is_closed_ = false;
  Moved broken_;  ///< why the handshake failed
  Event shaken_;
  std::shared_ptr<double> spent_ = std::make_shared<double>(0);  ///< seconds of the handshake
};

}  // namespace centroid::transport
