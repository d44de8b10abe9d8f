#include "tests/support/certificates.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "tests/unit/temporary_directory.h"

namespace centroid::test {

namespace {

template <auto F>
struct FreeWith {
  template <class T>
  void operator()(T* value) const {
    F(value);
  }
};
using Key = std::unique_ptr<EVP_PKEY, FreeWith<::EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<::X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, FreeWith<::X509_EXTENSION_free>>;

void need(bool is_fine, const char* what) {
  if (!is_fine) throw std::runtime_error(std::string("test certificates: ") + what);
}

Certificate make_certificate(const std::string& name, EVP_PKEY* key, long serial, int days) {
  Certificate certificate(::X509_new());
  ::X509_set_version(certificate.get(), 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate.get()), serial);
  const long day = 24 * 3600;
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate.get()), -3 * day);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate.get()), days * day);
  ::X509_set_pubkey(certificate.get(), key);
  ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

void add_extension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(::X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  need(extension && ::X509_add_ext(certificate, extension.get(), -1) == 1, value.c_str());
}

void fail_at_certificate(int socket, const transport::TlsOptions& files) {
  const std::unique_ptr<SSL_CTX, FreeWith<::SSL_CTX_free>> settings(
      ::SSL_CTX_new(::TLS_server_method()));
  ::SSL_CTX_use_certificate_chain_file(settings.get(), files.certificate.c_str());
  ::SSL_CTX_use_PrivateKey_file(settings.get(), files.key.c_str(), SSL_FILETYPE_PEM);
  ::SSL_CTX_set_verify(settings.get(), SSL_VERIFY_PEER, [](int, X509_STORE_CTX* at) {
    ::X509_STORE_CTX_set_error(at, X509_V_ERR_UNSPECIFIED);
    return 0;
  });
  const std::unique_ptr<SSL, FreeWith<::SSL_free>> ssl(::SSL_new(settings.get()));
  ::SSL_set_fd(ssl.get(), socket);
  need(::SSL_accept(ssl.get()) != 1, "the handshake was to fail");
}

template <class Write>
void write_file(const std::filesystem::path& path, const Write& write) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  need(file != nullptr, path.c_str());
  need(write(file) == 1, path.c_str());
  std::fclose(file);
}

}  // namespace

struct Authority::State {
  Key key{EVP_EC_gen("P-256")};
  Certificate certificate;
  long serial = 1;
};

Authority::Authority(std::filesystem::path folder, const std::string& name)
    : folder_(std::move(folder)), name_(name), state_(std::make_unique<State>()) {
  state_->certificate = make_certificate("Test authority " + name, state_->key.get(), 1, 2);
  X509* const own = state_->certificate.get();
  ::X509_set_issuer_name(own, ::X509_get_subject_name(own));
  add_extension(own, own, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(own, own, NID_key_usage, "critical,keyCertSign");
  need(::X509_sign(own, state_->key.get(), ::EVP_sha256()) > 0, "sign");
  write_file(file(), [own](std::FILE* out) { return ::PEM_write_X509(out, own); });
}

Authority::~Authority() = default;

std::string Authority::file() const { return folder_ / (name_ + ".crt"); }

transport::TlsOptions Authority::issue(const std::string& name, const std::string& names,
                                       int days) {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate made = make_certificate(name, key.get(), ++state_->serial, days);
  X509* const issuer = state_->certificate.get();
  ::X509_set_issuer_name(made.get(), ::X509_get_subject_name(issuer));
  add_extension(made.get(), issuer, NID_subject_alt_name, names);
  need(::X509_sign(made.get(), state_->key.get(), ::EVP_sha256()) > 0, "sign");
  transport::TlsOptions options;
  options.certificate = folder_ / (name + ".crt");
  options.key = folder_ / (name + ".key");
  options.authority = file();
  write_file(options.certificate,
             [&](std::FILE* out) { return ::PEM_write_X509(out, made.get()); });
  write_file(options.key, [&](std::FILE* out) {
    return ::PEM_write_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return options;
}

FailingServer::FailingServer(const transport::TlsOptions& files)
    : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof here;
  auto* const at = reinterpret_cast<sockaddr*>(&here);
  need(::bind(listener_, at, size) == 0 && ::listen(listener_, 1) == 0 &&
           ::getsockname(listener_, at, &size) == 0,
       "listen");
  port_ = ntohs(here.sin_port);
  thread_ = std::thread([this, files] {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0) return;  // nobody came
    fail_at_certificate(socket, files);
    // Closed with unread bytes, it would reset the connection, and the alert could be lost.
    ::shutdown(socket, SHUT_WR);
    for (char rest[512]; ::read(socket, rest, sizeof rest) > 0;) {
    }
    ::close(socket);
  });
}

FailingServer::~FailingServer() {
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  ::close(listener_);
}

namespace {
int dial(std::uint16_t port) {
  ::signal(SIGPIPE, SIG_IGN);  // the other side may close
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  need(::connect(socket, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0, "connect");
  return socket;
}

void wait_for_end(int socket) {
  ::shutdown(socket, SHUT_WR);
  for (char rest[512]; ::read(socket, rest, sizeof rest) > 0;) {
  }
  ::close(socket);
}
}  // namespace

void send_bytes(std::uint16_t port, std::span<const std::uint8_t> bytes, std::size_t first) {
  const int socket = dial(port);
  for (const auto part : {bytes.first(first), bytes.subspan(first)}) {
    need(::write(socket, part.data(), part.size()) > 0, "write");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lint-ok: a packet of its own
  }
  for (char rest[512]; ::read(socket, rest, sizeof rest) > 0;) {
  }
  ::close(socket);
}

void ask_for_new_keys(std::uint16_t port, int times) {
  const int socket = dial(port);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(::SSL_CTX_new(TLS_client_method()),
                                                             ::SSL_CTX_free);
  const std::unique_ptr<SSL, void (*)(SSL*)> ssl(::SSL_new(context.get()), ::SSL_free);
  need(::SSL_set_fd(ssl.get(), socket) == 1 && ::SSL_connect(ssl.get()) == 1, "handshake");
  for (int i = 0; i < times; ++i) {
    const bool is_sent = ::SSL_key_update(ssl.get(), SSL_KEY_UPDATE_REQUESTED) == 1 &&
                         ::SSL_do_handshake(ssl.get()) == 1;
    if (!is_sent) break;
  }
  wait_for_end(socket);
}

std::shared_ptr<transport::StreamLayer> mutual_tls() {
  static const TemporaryDirectory folder;
  static Authority authority(folder.path());
  static const auto layer = [] {
    transport::TlsOptions options = authority.issue("node");
    options.is_server = true;
    return transport::make_tls(std::move(options)).value();
  }();
  return layer;
}

}  // namespace centroid::test
