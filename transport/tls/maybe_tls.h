#pragma once

#include <optional>
#include <string>
#include <utility>

#include <boost/asio/ssl/stream.hpp>

#include "transport/tls/tls_files.h"

namespace centroid::transport {

/// An Asio stream that is TLS or plain, as was said when it was made: what Beast reads and writes.
/// `Lower` is the plain one, whose deadlines hold for both.
template <class Lower>
class MaybeTls {
 public:
  using executor_type = typename Lower::executor_type;
  using Secure = boost::asio::ssl::stream<Lower&>;

  /// `end`: none for a plain stream.
  template <class Argument>
  MaybeTls(Argument&& argument, SslPointer end) : lower_(std::forward<Argument>(argument)) {
    if (end) secure(std::move(end));
  }
  void secure(SslPointer end) { secure_.emplace(lower_, end.release()); }
  bool is_secure() const { return secure_.has_value(); }
  Lower& lower() { return lower_; }
  executor_type get_executor() { return lower_.get_executor(); }

  /// As the end that was given connects or accepts. Only when it is secure.
  template <class Token>
  auto async_handshake(Token&& token) {
    const auto as =
        ::SSL_is_server(secure_->native_handle()) == 1 ? Secure::server : Secure::client;
    return secure_->async_handshake(as, std::forward<Token>(token));
  }
  /// Why the other side's certificate was not accepted; "": it was, or there was none.
  std::string verdict() {
    const long code = ::SSL_get_verify_result(secure_->native_handle());
    return code == X509_V_OK ? "" : ::X509_verify_cert_error_string(code);
  }
  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (secure_) return secure_->async_read_some(buffers, std::forward<Token>(token));
    return lower_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (secure_) return secure_->async_write_some(buffers, std::forward<Token>(token));
    return lower_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  Lower lower_;
  std::optional<Secure> secure_;
};

}  // namespace centroid::transport
