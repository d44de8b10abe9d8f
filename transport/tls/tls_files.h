#pragma once

#include <openssl/ssl.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "transport/tls/tls.h"

namespace centroid::transport {

struct SslDeleter {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
};
using SslPointer = std::unique_ptr<SSL, SslDeleter>;

/// When it ends, as Unix time; none: it does not say.
std::optional<double> certificate_end(const X509* certificate);

/// Certificates and keys as OpenSSL has them, read again when the files change. One thread at a
/// time.
class TlsFiles {
 public:
  static Result<TlsFiles> open(TlsOptions options);  ///< fails as make_tls
  /// An end of a new connection, to `host` (a name or an address), or from whoever connected.
  SslPointer connecting_end(const std::string& host);
  SslPointer accepting_end();

 private:
  struct ContextDeleter {
    void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  };
  using Context = std::unique_ptr<SSL_CTX, ContextDeleter>;
  using Times = std::vector<std::filesystem::file_time_type>;

  TlsFiles(TlsOptions options, Context context);
  static Result<Context> make_context(const TlsOptions& options);
  Times file_times() const;
  SslPointer make_end();

  TlsOptions options_;
  Context context_;
  Times seen_;
};

}  // namespace centroid::transport
