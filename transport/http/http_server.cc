#include "transport/http/http_server.h"

#include <algorithm>
#include <exception>
#include <list>
#include <utility>

#include <boost/asio/ip/tcp.hpp>

#include "common/async/task_group.h"
#include "common/base/log.h"
#include "transport/http/http_exchange.h"
#include "transport/tcp_stream.h"

namespace centroid::transport {

namespace {

namespace asio = boost::asio;
using SystemError = boost::system::error_code;
using Tcp = asio::ip::tcp;

constexpr std::size_t kMaxRefusals = 32;  ///< answered at once; more are closed without an answer
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::uint64_t kLargeHeads = 16u << 20;  ///< bytes of requests beyond their first 4 KiB
constexpr std::chrono::seconds kSlow{1};  ///< time of a request that others need not wait for

/// `close` spares only a connection that is running a call or writing its answer.
enum class Phase : std::uint8_t { kIdle, kReading, kBusy, kStreaming };

struct Peer {
  explicit Peer(std::unique_ptr<ByteStream> bytes) : stream(std::move(bytes)) {}
  void drop() {
    is_dropped = true;
    stream.close();
  }
  HttpStream stream;
  Phase phase = Phase::kIdle;
  TimePoint since = centroid::now();  ///< of the phase
  bool has_request = false;           ///< a complete request, once
  bool is_dropped = false;
};

}  // namespace

struct HttpServer::Impl {
  Impl(Executor executor_, HttpService& service_, const HttpLimits& limits_,
       std::shared_ptr<StreamLayer> tls_, std::string name_, HttpMeters meters_)
      : service(service_),
        limits(limits_),
        tls(std::move(tls_)),
        name(std::move(name_)),
        meters(meters_),
        acceptor(executor_),
        group(executor_),
        changed(executor_) {}

  void show() const;
  Task<void> accept_loop();
  void take(Tcp::socket socket);
  bool make_room();
  Task<void> serve(std::list<Peer>::iterator at);
  Task<void> serve_requests(Peer& peer);
  Task<bool> write(Peer& peer, HttpResponse response, HttpFraming framing);
  Task<void> refuse(std::unique_ptr<Peer> peer);

  HttpService& service;
  const HttpLimits& limits;
  const std::shared_ptr<StreamLayer> tls;
  const std::string name;
  const HttpMeters meters;
  Tcp::acceptor acceptor;
  TaskGroup group;        ///< the accept loop, connections and refusals
  Event changed;          ///< a connection ended
  std::list<Peer> peers;  ///< in the order of their arrival
  std::size_t refusals = 0;
  LineBudget lines;
  const std::shared_ptr<ByteBudget> heads = std::make_shared<ByteBudget>(kLargeHeads);
  bool is_stopping = false;  ///< nothing new is accepted
  Duration write_at_most = Duration::max();
};

Task<void> HttpServer::Impl::accept_loop() {
  while (!is_stopping) {
    auto [ec, socket] = co_await acceptor.async_accept(kAwait);
    if (is_stopping) co_return;
    if (!ec) {
      take(std::move(socket));
    } else if (ec != asio::error::connection_aborted) {  // others must end first
      if (const auto why = lines.take(ec.message(), centroid::now()))
        log::warn("api.accept_failed", {{"error", *why}});
      if (!co_await sleep_until(centroid::now() + kAcceptPause)) co_return;
    }
  }
}

void HttpServer::Impl::take(Tcp::socket socket) {
  TransportOptions options;
  options.stall_timeout = std::chrono::milliseconds(0);
  std::unique_ptr<ByteStream> stream = std::make_unique<TcpStream>(std::move(socket), options);
  if (tls && !service.may_shake_hands(stream->peer())) return;
  if (peers.size() >= limits.max_connections && !make_room()) {
    meters.connections.refused.add();
    if (refusals >= kMaxRefusals || tls) return;
    ++refusals;
    group.spawn(refuse(std::make_unique<Peer>(std::move(stream))));
    return;
  }
  if (tls) stream = tls->accepted(std::move(stream));
  const auto at = peers.emplace(peers.end(), std::move(stream));
  at->stream.held = HeldBytes(heads);
  show();
  group.spawn(serve(at));
}

void HttpServer::Impl::show() const {
  meters.connections.show(peers.size(), limits.max_connections);
  meters.head_bytes.show(heads->used(), heads->limit());
  meters.head_bytes.follow_refused(heads->refused());
}

bool HttpServer::Impl::make_room() {
  const TimePoint now = centroid::now();
  std::size_t live = 0;
  Peer *silent = nullptr, *slow = nullptr, *idle = nullptr;
  for (Peer& peer : peers) {
    if (peer.is_dropped) continue;
    ++live;
    const bool is_idle = peer.phase == Phase::kIdle;
    if (is_idle) idle = &peer;
    if (is_idle && !peer.has_request && silent == nullptr) silent = &peer;
    const bool is_slow = peer.phase == Phase::kReading && now - peer.since > kSlow;
    if (is_slow && (slow == nullptr || peer.since < slow->since)) slow = &peer;
  }
  if (live < limits.max_connections) return true;
  Peer* const victim = silent != nullptr ? silent : slow != nullptr ? slow : idle;
  if (victim == nullptr) return false;
  meters.connections.refused.add();
  victim->drop();
  return true;
}

Task<void> HttpServer::Impl::serve(std::list<Peer>::iterator at) {
  try {
    co_await serve_requests(*at);
  } catch (const std::exception& failure) {
    log::error("api.connection_threw", {{"what", failure.what()}});
  }
  peers.erase(at);
  show();
  changed.notify_all();
}

Task<void> HttpServer::Impl::serve_requests(Peer& peer) {
  HttpFraming framing;
  peer.stream.expires_after(limits.read_timeout);
  const SystemError unshaken = co_await peer.stream.shake_hands();
  if (unshaken || peer.is_dropped) co_return;
  do {
    peer.phase = Phase::kIdle;
    const bool has_begun = co_await wait_for_request(peer.stream, limits);
    if (!has_begun || peer.is_dropped || is_stopping) co_return;
    peer.phase = Phase::kReading;
    peer.since = centroid::now();
    auto incoming = co_await read_request(peer.stream, limits, service);
    if (incoming.is_slow) meters.dropped_slow.add();
    show();
    const bool is_answered = incoming.refused != 0 || incoming.answer;
    if (peer.is_dropped || (!incoming.request && !is_answered)) co_return;
    peer.phase = Phase::kBusy;
    peer.has_request = true;
    HttpResponse response;
    framing = HttpFraming();
    if (incoming.answer) {
      response = std::move(*incoming.answer);
    } else if (incoming.refused != 0) {
      response = service.refuse(incoming.refused, incoming.detail, incoming.path);
    } else {
      framing.version = incoming.request->version;
      framing.is_head = incoming.request->method == "HEAD";
      response = co_await service.answer(std::move(*incoming.request));
      const bool ends = framing.version < 11 && response.stream;
      framing.keep_alive = incoming.keep_alive && !ends && !is_stopping;
    }
    const bool is_written = co_await write(peer, std::move(response), framing);
    if (!is_written) co_return;
  } while (framing.keep_alive && !is_stopping);
  peer.phase = Phase::kReading;
  if (!is_stopping) co_await linger(peer.stream);
}

/// False: the connection is not usable any more.
Task<bool> HttpServer::Impl::write(Peer& peer, HttpResponse response, HttpFraming framing) {
  const bool is_stream = response.stream != nullptr && !framing.is_head;
  if (is_stream) peer.phase = Phase::kStreaming;
  const Duration timeout = std::min<Duration>(limits.write_timeout, write_at_most);
  const SystemError ec =
      co_await write_response(peer.stream, std::move(response), framing, name, timeout);
  if (ec == asio::error::timed_out) meters.dropped_slow.add();
  co_return !ec && !peer.is_dropped;
}

/// Refuse one connection too many.
Task<void> HttpServer::Impl::refuse(std::unique_ptr<Peer> peer) {
  const std::string detail =
      "all " + std::to_string(limits.max_connections) + " connections are busy: try again";
  HttpResponse response = service.refuse(503, detail, "/");
  const bool is_written = co_await write(*peer, std::move(response), HttpFraming());
  if (is_written) co_await linger(peer->stream);
  --refusals;
}

HttpServer::HttpServer(Executor executor, HttpService& service, const HttpLimits& limits,
                       std::shared_ptr<StreamLayer> tls, std::string name, HttpMeters meters)
    : impl_(std::make_unique<Impl>(std::move(executor), service, limits, std::move(tls),
                                   std::move(name), meters)) {}

HttpServer::~HttpServer() = default;

Result<Endpoint> HttpServer::listen(const Endpoint& endpoint) {
  CENTROID_ASSIGN(impl_->acceptor,
                  open_acceptor(impl_->acceptor.get_executor(), endpoint, TransportOptions()));
  SystemError ignored;
  const Tcp::endpoint local = impl_->acceptor.local_endpoint(ignored);
  Endpoint bound;
  bound.host = local.address().to_string();
  bound.port = local.port();
  return bound;
}

void HttpServer::start() { impl_->group.spawn(impl_->accept_loop()); }

Task<void> HttpServer::close(Duration grace) {
  impl_->is_stopping = true;
  SystemError ec;
  impl_->acceptor.close(ec);
  for (Peer& peer : impl_->peers)
    if (peer.phase != Phase::kBusy) peer.drop();
  const TimePoint until = centroid::now() + grace;
  bool goes_on = true;
  while (goes_on && !impl_->peers.empty() && centroid::now() < until)
    goes_on = co_await impl_->changed.wait(until);
  impl_->write_at_most = grace;
}

void HttpServer::drop() {
  for (Peer& peer : impl_->peers) peer.drop();
  impl_->group.cancel();
}

Task<void> HttpServer::join() { co_await impl_->group.join(); }

}  // namespace centroid::transport
