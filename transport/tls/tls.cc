#include "transport/tls/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

#include <boost/asio/ip/address.hpp>

#include "common/base/log.h"
#include "transport/tls/tls_stream.h"

namespace centroid::transport {

namespace fs = std::filesystem;

namespace {

/// OpenSSL's message about its last failure; the queue is empty afterwards.
std::string last_error() {
  std::string text;
  while (const unsigned long code = ::ERR_get_error()) {
    const char* const reason = ::ERR_reason_error_string(code);
    if (text.empty() && reason != nullptr) text = reason;
  }
  return text.empty() ? "it contains nothing of this kind" : text;
}

Status check_readable(const std::string& setting, const std::string& path) {
  std::error_code failed;
  if (!fs::exists(path, failed))
    return Error(ErrorCode::kNotFound, setting + ": there is no file " + path);
  return {};
}

/// Without this, OpenSSL would prompt on the terminal.
int no_password(char*, int, int, void*) { return 0; }

Status load_identity(SSL_CTX* context, const TlsOptions& options) {
  if (options.certificate.empty() != options.key.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "tls.certificate and tls.key belong together: one is set, the other is not");
  if (options.certificate.empty() && options.is_server)
    return Error(ErrorCode::kInvalidArgument,
                 "TLS is enabled (tls.authority, api.tls), but accepting connections needs "
                 "tls.certificate and tls.key");
  if (options.certificate.empty()) return {};
  CENTROID_TRY(check_readable("tls.certificate", options.certificate));
  CENTROID_TRY(check_readable("tls.key", options.key));
  if (::SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str()) != 1)
    return Error(ErrorCode::kInvalidArgument, "tls.certificate " + options.certificate +
                                                  " is no certificate in PEM: " + last_error());
  ::SSL_CTX_set_default_passwd_cb(context, no_password);
  if (::SSL_CTX_use_PrivateKey_file(context, options.key.c_str(), SSL_FILETYPE_PEM) == 1) return {};
  const std::string why = last_error();
  if (why.find("mismatch") != std::string::npos)
    return Error(
        ErrorCode::kFailedPrecondition,
        "tls.key " + options.key + " does not belong to the certificate in " + options.certificate);
  return Error(ErrorCode::kInvalidArgument,
               "tls.key " + options.key + " is no private key in PEM without a password: " + why);
}

struct ContextDeleter {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
};
using Context = std::unique_ptr<SSL_CTX, ContextDeleter>;

Result<Context> make_context(const TlsOptions& options) {
  ::ERR_clear_error();
  Context context(::SSL_CTX_new(::TLS_method()));
  if (!context) return Error(ErrorCode::kInternal, "TLS cannot be set up: " + last_error());
  ::SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  // AES-128 first: 10 rounds a block for 14.
  ::SSL_CTX_set_ciphersuites(
      context.get(), "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  ::SSL_CTX_set_num_tickets(context.get(), 0);  // a connection lives as long as its process
  ::SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  CENTROID_TRY(load_identity(context.get(), options));
  if (options.authority.empty()) return context;
  if (options.authority == "system") {
    ::SSL_CTX_set_default_verify_paths(context.get());
    return context;
  }
  CENTROID_TRY(check_readable("tls.authority", options.authority));
  if (::SSL_CTX_load_verify_file(context.get(), options.authority.c_str()) != 1)
    return Error(
        ErrorCode::kInvalidArgument,
        "tls.authority " + options.authority + " contains no certificates in PEM: " + last_error());
  return context;
}

/// Certificates and keys in OpenSSL's form, read again when the files change.
class TlsLayer final : public StreamLayer {
 public:
  TlsLayer(TlsOptions options, Context context)
      : options_(std::move(options)), context_(std::move(context)), seen_(file_times()) {}

  std::unique_ptr<ByteStream> connected(std::unique_ptr<ByteStream> inner,
                                        const Endpoint& to) override {
    return std::make_unique<TlsStream>(std::move(inner), connecting_end(to.host));
  }
  std::unique_ptr<ByteStream> accepted(std::unique_ptr<ByteStream> inner) override {
    SslPointer ssl = make_end();
    ::SSL_set_accept_state(ssl.get());
    if (!options_.authority.empty())
      ::SSL_set_verify(ssl.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    return std::make_unique<TlsStream>(std::move(inner), std::move(ssl));
  }

 private:
  using Times = std::vector<fs::file_time_type>;

  Times file_times() const;
  SslPointer make_end();
  SslPointer connecting_end(const std::string& host);

  const TlsOptions options_;
  std::mutex mutex_;  ///< for the rest: several transports share a layer
  Context context_;
  Times seen_;
};

TlsLayer::Times TlsLayer::file_times() const {
  Times times;
  for (const std::string* path : {&options_.certificate, &options_.key, &options_.authority}) {
    std::error_code failed;
    times.push_back(path->empty() ? fs::file_time_type() : fs::last_write_time(*path, failed));
  }
  return times;
}

SslPointer TlsLayer::make_end() {
  const std::lock_guard lock(mutex_);
  if (Times times = file_times(); times != seen_) {
    seen_ = std::move(times);
    auto renewed = make_context(options_);
    if (renewed.ok()) {
      context_ = std::move(renewed).value();
      log::info("tls.renewed", {{"certificate", options_.certificate}});
    } else {
      log::warn("tls.renewal_failed", {{"why", renewed.error()}, {"uses", "the files as before"}});
    }
  }
  return SslPointer(::SSL_new(context_.get()));
}

SslPointer TlsLayer::connecting_end(const std::string& host) {
  SslPointer ssl = make_end();
  ::SSL_set_connect_state(ssl.get());
  ::SSL_set_verify(ssl.get(), options_.is_unchecked ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  if (options_.is_unchecked) return ssl;
  const std::string& name = options_.server_name.empty() ? host : options_.server_name;
  boost::system::error_code is_name;
  boost::asio::ip::make_address(name, is_name);
  if (is_name) ::SSL_set_tlsext_host_name(ssl.get(), name.c_str());
  if (options_.any_name) return ssl;
  if (is_name) {
    ::SSL_set_hostflags(ssl.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    ::SSL_set1_host(ssl.get(), name.c_str());
  } else {
    ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl.get()), name.c_str());
  }
  return ssl;
}

}  // namespace

Result<std::shared_ptr<StreamLayer>> make_tls(TlsOptions options) {
  CENTROID_ASSIGN(auto context, make_context(options));
  return std::shared_ptr<StreamLayer>(
      std::make_shared<TlsLayer>(std::move(options), std::move(context)));
}

std::optional<double> certificate_end(const X509* certificate) {
  std::tm end{};
  if (::ASN1_TIME_to_tm(::X509_get0_notAfter(certificate), &end) != 1) return std::nullopt;
  return static_cast<double>(::timegm(&end));
}

Result<double> certificate_end(const std::string& path) {
  CENTROID_TRY(check_readable("certificate", path));
  const std::unique_ptr<BIO, decltype(&::BIO_free_all)> file(::BIO_new_file(path.c_str(), "r"),
                                                             &::BIO_free_all);
  std::optional<double> first;
  while (file) {
    const std::unique_ptr<X509, decltype(&::X509_free)> one(
        ::PEM_read_bio_X509(file.get(), nullptr, no_password, nullptr), &::X509_free);
    if (!one) break;
    if (const auto end = certificate_end(one.get())) first = std::min(first.value_or(*end), *end);
  }
  const std::string why = last_error();
  if (first) return *first;
  return Error(ErrorCode::kInvalidArgument, path + " is no certificate in PEM: " + why);
}

}  // namespace centroid::transport
