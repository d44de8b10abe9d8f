#include "transport/tls/tls_stream.h"

#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <boost/asio/error.hpp>

#include "common/base/thread.h"

namespace centroid::transport {

namespace {

namespace errors = boost::asio::error;

// Records have at most 16 KiB; this many bytes are sealed before they are passed to the system, and
// read from it at once.
constexpr std::size_t kBatch = 256 << 10;
constexpr std::size_t kFirstBatch = 16 << 10;  // the size of a read, until a peer sends more
constexpr std::size_t kGather = 16 << 10;      // parts below this go into one record
// Messages of the protocol beside the caller's bytes: new keys and tickets. OpenSSL answers each
// request for new keys, which is work and memory. A peer needs new keys after 2^24 records.
constexpr std::uint64_t kFreeMessages = 16, kBytesForOneMore = 1 << 20;

// The record's head, and kind and length of the first message. RFC 8446, section 4.1.2, allows
// hellos that no client sends.
constexpr std::size_t kRecordHead = 5, kHelloHead = 9, kMaxHello = 16 << 10;

/// OpenSSL's errors as text: its own codes, and the verdict on a certificate above `kVerdict`.
class Category final : public boost::system::error_category {
 public:
  static constexpr int kVerdict = 1 << 30;
  static constexpr int kBusy = 1;   ///< no code of OpenSSL: what `try_write_last` says
  static constexpr int kFlood = 2;  ///< nor is this
  static constexpr int kLong = 3;   ///< nor this
  static const Category& get() {
    static const Category category;
    return category;
  }
  static std::string reason(int value) {
    if ((value & kVerdict) != 0) return ::X509_verify_cert_error_string(value & ~kVerdict);
    const char* const text = ::ERR_reason_error_string(static_cast<unsigned long>(value));
    return text == nullptr ? "failed" : text;
  }
  static bool is_foreign(int verdict) {
    return verdict == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
           verdict == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN ||
           verdict == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT;
  }
  boost::system::error_condition default_error_condition(int value) const noexcept override {
    if (value == kBusy) return make_error_condition(boost::system::errc::device_or_resource_busy);
    return {value, *this};
  }
  const char* name() const noexcept override { return "tls"; }
  std::string message(int value) const override {
    if ((value & kVerdict) != 0)
      return "TLS: the certificate is not accepted: " + reason(value) +
             (is_foreign(value & ~kVerdict) ? " (tls.authority of this side did not sign it)" : "");
    if (value == kBusy) return "the other side has no room now: try again (an alert of TLS)";
    if (value == kFlood) return "TLS: the other side asks for new keys again and again";
    if (value == kLong) return "TLS: the other side's first message is over 16 KiB, or in pieces";
    std::string text = "TLS: " + reason(value);
    const int code = ERR_GET_REASON(static_cast<unsigned long>(value));
    if (code == SSL_R_WRONG_VERSION_NUMBER || code == SSL_R_HTTP_REQUEST)
      text += " (the other side does not speak TLS: set it on both sides, or on none)";
    if (code == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE ||
        code == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED)
      text += " (tls.certificate and tls.key of the connecting side)";
    if (code == SSL_R_TLSV1_ALERT_UNKNOWN_CA)
      text += " (tls.authority of the other side did not sign tls.certificate of this one)";
    return text;
  }
};

/// A fatal alert in clear (RFC 8446, sections 5.1 and 6).
constexpr std::array<std::byte, 7> alert(std::uint8_t description) {
  return {std::byte{0x15}, std::byte{3}, std::byte{3},          std::byte{0},
          std::byte{2},    std::byte{2}, std::byte{description}};
}
constexpr std::array kProtocolVersion = alert(70), kInternalError = alert(80);

bool is_plain(const boost::system::error_code& error) {
  return error.category() == Category::get() && (error.value() & Category::kVerdict) == 0 &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_WRONG_VERSION_NUMBER;
}

Moved stopped(boost::system::error_code error) {
  Moved moved;
  moved.error = error;
  return moved;
}

}  // namespace

std::optional<TlsFailure> tls_failure(const boost::system::error_code& error) {
  if (error.category() != Category::get()) return std::nullopt;
  return TlsFailure{Category::reason(error.value()), (error.value() & Category::kVerdict) != 0};
}

/// The wire for OpenSSL: our memory, without a copy on the way out.
const BIO_METHOD* TlsStream::method() {
  static BIO_METHOD* const made = [] {
    BIO_METHOD* const m = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "frames");
    ::BIO_meth_set_create(m, [](BIO* bio) {
      ::BIO_set_init(bio, 1);
      return 1;
    });
    ::BIO_meth_set_write(m, [](BIO* bio, const char* data, int size) {
      auto& sealed = static_cast<TlsStream*>(::BIO_get_data(bio))->sealed_;
      const auto* const begin = reinterpret_cast<const std::byte*>(data);
      sealed.insert(sealed.end(), begin, begin + size);
      return size;
    });
    ::BIO_meth_set_read(m, [](BIO* bio, char* data, int size) {
      const std::span into(reinterpret_cast<std::byte*>(data), static_cast<std::size_t>(size));
      const int got = static_cast<TlsStream*>(::BIO_get_data(bio))->give(into);
      ::BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
      if (got == 0) BIO_set_retry_read(bio);
      return got == 0 ? -1 : got;
    });
    ::BIO_meth_set_ctrl(m, [](BIO*, int command, long, void*) -> long {
      return command == BIO_CTRL_FLUSH ? 1 : 0;
    });
    return m;
  }();
  return made;
}

TlsStream::TlsStream(std::unique_ptr<ByteStream> inner, SslPointer ssl)
    : inner_(std::move(inner)),
      ssl_(std::move(ssl)),
      received_(kFirstBatch),
      shaken_(inner_->executor()) {
  may_begin_ = ::SSL_is_server(ssl_.get()) == 0;
  BIO* const wire = ::BIO_new(method());
  ::BIO_set_data(wire, this);
  ::SSL_set_bio(ssl_.get(), wire, wire);  // which owns it
  ::SSL_set_msg_callback_arg(ssl_.get(), this);
  ::SSL_set_msg_callback(
      ssl_.get(), [](int is_sent, int, int type, const void*, std::size_t, SSL*, void* self) {
        if (is_sent == 0 && type == SSL3_RT_HANDSHAKE) ++static_cast<TlsStream*>(self)->messages_;
      });
}

bool TlsStream::is_flooded() const {
  return is_ready_ && messages_ > kFreeMessages + read_plain_ / kBytesForOneMore;
}

int TlsStream::give(std::span<std::byte> into) {
  if (is_flooded()) return 0;
  const std::size_t size = std::min(into.size(), received_end_ - taken_);
  if (size != 0) std::memcpy(into.data(), received_.data() + taken_, size);
  taken_ += size;
  return static_cast<int>(size);
}

/// Why OpenSSL stopped: would_block if it needs to read.
Moved TlsStream::failed(int result) {
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return stopped(errors::would_block);
    case SSL_ERROR_ZERO_RETURN:
      return stopped(errors::eof);
    default:
      break;
  }
  const long verdict = ::SSL_get_verify_result(ssl_.get());
  if (!is_ready_ && verdict != X509_V_OK)
    return stopped({static_cast<int>(verdict) | Category::kVerdict, Category::get()});
  const auto why = static_cast<int>(::ERR_peek_error());
  if (why == 0) return stopped(errors::connection_reset);
  // In the place of the server's first answer.
  if (::SSL_get_state(ssl_.get()) == TLS_ST_CW_CLNT_HELLO &&
      ERR_GET_REASON(static_cast<unsigned long>(why)) == SSL_R_TLSV1_ALERT_INTERNAL_ERROR)
    return stopped({Category::kBusy, Category::get()});
  return stopped({why, Category::get()});
}

/// Bytes read into `received_` are passed to OpenSSL, which has consumed all earlier ones.
Moved TlsStream::take_in(Moved moved) {
  if (moved.error) return moved;
  taken_ = 0;
  received_end_ = moved.bytes;
  if (moved.bytes == received_.size() && moved.bytes < kBatch) received_.resize(2 * moved.bytes);
  return moved;
}

/// OpenSSL takes as much memory for a first message as that says it is long. The end that accepts
/// does not begin before it has seen how long. No error: it may begin.
Moved TlsStream::look_at_hello() {
  while (!may_begin_) {
    const Bytes hello = Bytes(received_).first(received_end_);
    const bool is_hello = hello.empty() || hello[0] == std::byte{SSL3_RT_HANDSHAKE};
    if (!is_hello || hello.size() >= kHelloHead) {  // OpenSSL says what else it is
      const auto at = [&hello](std::size_t i) { return std::to_integer<std::size_t>(hello[i]); };
      // A record that ends before the length does hides it.
      const bool is_long = is_hello && ((at(3) << 8 | at(4)) < kHelloHead - kRecordHead ||
                                        (at(6) << 16 | at(7) << 8 | at(8)) > kMaxHello);
      if (is_long) return broken_ = stopped({Category::kLong, Category::get()});
      may_begin_ = true;
      break;
    }
    const Moved more = inner_->try_read(std::span(received_).subspan(received_end_));
    if (more.error) return more;
    received_end_ += more.bytes;
  }
  return {};
}

/// Only by the task that runs the handshake, or if none does.
Moved TlsStream::step_handshake() {
  if (const Moved hello = look_at_hello(); hello.error) return hello;
  while (!broken_.error) {
    ::ERR_clear_error();
    const double before = thread_seconds();
    const int result = ::SSL_do_handshake(ssl_.get());
    *spent_ += thread_seconds() - before;
    if (result == 1) {
      is_ready_ = true;
      messages_ = 0;
      shaken_.notify_all();
      return try_flush();
    }
    Moved why = failed(result);
    // OpenSSL sends no alert to a client that does not speak TLS, so it would not learn why.
    if (::SSL_is_server(ssl_.get()) == 1 && is_plain(why.error))
      sealed_.insert(sealed_.end(), kProtocolVersion.begin(), kProtocolVersion.end());
    const Moved flushed =
        try_flush();  // an answer, or the alert with the reason for the other side
    if (!why.is_blocked()) return broken_ = why;
    if (flushed.error) return flushed;
    why = take_in(inner_->try_read(received_));
    if (why.error) return why;
  }
  return broken_;
}

/// Wait for bytes of the handshake, behind those of a hello that is not all here.
Task<Moved> TlsStream::read_more() {
  if (may_begin_) {
    const Moved moved = co_await inner_->read_some(received_);
    co_return take_in(moved);
  }
  const Moved moved = co_await inner_->read_some(std::span(received_).subspan(received_end_));
  received_end_ += moved.bytes;
  co_return moved;
}

/// Reader and writer may both call this; one of them moves the bytes.
Task<Moved> TlsStream::shake_hands() {
  while (!is_ready_ && !is_closed_ && !broken_.error) {
    if (is_shaking_) {
      if (!co_await shaken_.wait(TimePoint::max())) co_return stopped(errors::operation_aborted);
      continue;
    }
    is_shaking_ = true;
    Moved moved = step_handshake();
    if (moved.is_blocked()) {
      moved = Moved();
      while (!unsent().empty() && !moved.error) {
        const std::array<Bytes, 1> parts = {unsent()};
        moved = co_await inner_->write_some(parts);
        sent_ += moved.bytes;
      }
      if (!moved.error && !is_ready_) moved = co_await read_more();
    }
    is_shaking_ = false;
    shaken_.notify_all();
    if (moved.error && !moved.is_blocked()) co_return moved;
  }
  co_return is_closed_ ? stopped(errors::operation_aborted) : broken_;
}

/// The sealed bytes that are not sent yet. Valid until all of them are.
Bytes TlsStream::unsent() {
  if (sent_ == outgoing_.size()) {
    outgoing_.clear();
    std::swap(outgoing_, sealed_);
    sent_ = 0;
  }
  return Bytes(outgoing_).subspan(sent_);
}

/// Nothing if all sealed bytes are sent; else the reason.
Moved TlsStream::try_flush() {
  while (!unsent().empty()) {
    const std::array<Bytes, 1> parts = {unsent()};
    const Moved moved = inner_->try_write(parts);
    if (moved.error) return moved;
    sent_ += moved.bytes;
  }
  return {};
}

/// Seal the beginning of `parts`: small ones together, large ones in place.
Moved TlsStream::seal(std::span<const Bytes> parts) {
  const auto put = [this](Bytes bytes) {
    std::size_t written = 0;
    ::ERR_clear_error();
    if (bytes.empty()) return Moved();
    const int result = ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
    if (result != 1) return failed(result);
    sealed_plain_ += written;
    return Moved();
  };
  gathered_.clear();
  for (const Bytes part : parts) {
    const std::size_t used = sealed_plain_ + gathered_.size();
    if (used >= kBatch) break;
    const Bytes piece = part.first(std::min(part.size(), kBatch - used));
    if (gathered_.size() + piece.size() <= kGather) {
      gathered_.insert(gathered_.end(), piece.begin(), piece.end());
      continue;
    }
    if (const Moved moved = put(gathered_); moved.error) return moved;
    gathered_.clear();
    if (const Moved moved = put(piece); moved.error) return moved;
    if (piece.size() < part.size()) break;
  }
  return put(gathered_);
}

Moved TlsStream::try_read(MutableBytes into) {
  if (!is_ready_ && is_shaking_) return stopped(errors::would_block);
  if (!is_ready_) {
    const Moved moved = step_handshake();
    if (!is_ready_) return moved.error ? moved : stopped(errors::would_block);
  }
  Moved got;
  while (got.bytes < into.size()) {
    std::size_t bytes = 0;
    ::ERR_clear_error();
    const int result =
        ::SSL_read_ex(ssl_.get(), into.data() + got.bytes, into.size() - got.bytes, &bytes);
    got.bytes += bytes;
    read_plain_ += bytes;
    if (is_flooded()) return broken_ = stopped({Category::kFlood, Category::get()});
    if (result == 1) continue;
    Moved why = failed(result);
    if (why.is_blocked()) why = take_in(inner_->try_read(received_));
    if (!why.error) continue;
    if (got.bytes == 0) return why;  // otherwise the next read returns it
    break;
  }
  return got;
}

Moved TlsStream::try_write(std::span<const Bytes> parts) {
  if (!is_ready_ && is_shaking_) return stopped(errors::would_block);
  if (!is_ready_) {
    const Moved moved = step_handshake();
    if (!is_ready_) return moved.error ? moved : stopped(errors::would_block);
  }
  if (sealed_plain_ == 0)
    if (const Moved moved = seal(parts); moved.error) return moved;
  Moved flushed = try_flush();
  if (!flushed.error) flushed.bytes = std::exchange(sealed_plain_, 0);
  return flushed;
}

/// A handshake would take the processor time for whose lack the peer may be refused.
Moved TlsStream::try_write_last(std::span<const Bytes> parts) {
  const bool has_begun = ::SSL_get_state(ssl_.get()) != TLS_ST_BEFORE;
  if (has_begun || ::SSL_is_server(ssl_.get()) == 0) return try_write(parts);
  const std::array<Bytes, 1> alone = {kInternalError};
  return inner_->try_write(alone);
}

Task<Moved> TlsStream::read_some(MutableBytes into) {
  while (true) {
    if (!is_ready_) {
      const Moved shaken = co_await shake_hands();
      if (shaken.error) co_return shaken;
    }
    const Moved moved = try_read(into);
    if (!moved.is_blocked()) co_return moved;
    Moved came = co_await inner_->read_some(received_);
    came = take_in(came);
    if (came.error) co_return came;
  }
}

Task<Moved> TlsStream::write_some(std::span<const Bytes> parts) {
  while (true) {
    if (!is_ready_) {
      const Moved shaken = co_await shake_hands();
      if (shaken.error) co_return shaken;
    }
    const Moved moved = try_write(parts);
    if (!moved.is_blocked()) co_return moved;
    const std::array<Bytes, 1> rest = {unsent()};
    const Moved sent = co_await inner_->write_some(rest);
    if (sent.error) co_return sent;
    sent_ += sent.bytes;
  }
}

std::optional<double> TlsStream::peer_certificate_end() const {
  if (!is_ready_) return std::nullopt;
  const X509* const own = ::SSL_get0_peer_certificate(ssl_.get());
  if (own == nullptr) return std::nullopt;
  auto first = certificate_end(own);
  const STACK_OF(X509)* const chain = ::SSL_get_peer_cert_chain(ssl_.get());
  for (int i = 0; i < sk_X509_num(chain); ++i) {  // without certificates: -1
    X509* const one = sk_X509_value(chain, i);
    // A self-signed authority counts in our copy, not in the other side's.
    if ((::X509_get_extension_flags(one) & EXFLAG_SS) != 0) continue;
    if (const auto end = certificate_end(one); end && (!first || *end < *first)) first = end;
  }
  return first;
}

/// Within a record nothing can be added.
void TlsStream::send_close_notify() {
  if (!is_ready_ || sealed_plain_ != 0) return;
  ::ERR_clear_error();
  (void)::SSL_shutdown(ssl_.get());
  (void)try_flush();
}

void TlsStream::end() noexcept {
  send_close_notify();
  inner_->end();
}

void TlsStream::close() noexcept {
  if (std::exchange(is_closed_, true)) return;
  send_close_notify();
  inner_->close();
  shaken_.notify_all();
}

}  // namespace centroid::transport
