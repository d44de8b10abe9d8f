#include "transport/http/http_server.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <list>
#include <map>
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
constexpr std::uint64_t kLargeHeads = 16u << 20;  ///< memory of requests that are not small
constexpr std::chrono::seconds kSlow{1};  ///< time of a request that others need not wait for

/// `close` spares only a connection that is running a call or writing its answer. kSilent: it has
/// sent no request yet.
enum class Phase : std::uint8_t { kSilent, kReading, kIdle, kBusy, kStreaming, kDropped };

struct Peer {
  Peer(std::unique_ptr<ByteStream> bytes, std::uint64_t arrival)
      : stream(std::move(bytes)), number(arrival) {}
  HttpStream stream;
  const std::uint64_t number;  ///< in the order of arrival
  Phase phase = Phase::kSilent;
  TimePoint since = centroid::now();  ///< of the phase
};

/// Connections, by phase those that are longest in it first.
class Peers {
 public:
  using Place = std::list<Peer>::iterator;
  Place add(std::unique_ptr<ByteStream> stream) {
    std::list<Peer>& silent = in(Phase::kSilent);
    return silent.emplace(silent.end(), std::move(stream), next_++);
  }
  void enter(Place at, Phase phase) {
    if (at->phase == Phase::kDropped) return;
    if (at->phase == Phase::kIdle) idle_.erase(at->number);
    if (phase == Phase::kIdle) idle_.emplace(at->number, at);
    std::list<Peer>& to = in(phase);
    to.splice(to.end(), in(at->phase), at);
    at->phase = phase;
    at->since = centroid::now();
  }
  void drop(Place at) {
    enter(at, Phase::kDropped);
    at->stream.close();
  }
  void drop_all(Phase phase) {
    while (!in(phase).empty()) drop(in(phase).begin());
  }
  void erase(Place at) {
    idle_.erase(at->number);
    in(at->phase).erase(at);
  }
  /// The idle one that came last.
  Place newest_idle() { return std::prev(idle_.end())->second; }
  std::list<Peer>& in(Phase phase) { return lists_[static_cast<std::size_t>(phase)]; }
  /// With those that are dropped, and have not ended yet.
  std::size_t size() const {
    std::size_t size = 0;
    for (const auto& list : lists_) size += list.size();
    return size;
  }

 private:
  std::array<std::list<Peer>, 6> lists_;
  std::map<std::uint64_t, Place> idle_;
  std::uint64_t next_ = 0;
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
  void take(Tcp::socket socket, const Tcp::endpoint& client);
  bool make_room();
  Task<void> serve(Peers::Place at);
  Task<void> serve_requests(Peers::Place at);
  Task<bool> write(Peer& peer, HttpResponse response, HttpFraming framing);
  Task<void> refuse(std::unique_ptr<Peer> peer);

  HttpService& service;
  const HttpLimits& limits;
  const std::shared_ptr<StreamLayer> tls;
  const std::string name;
  const HttpMeters meters;
  Tcp::acceptor acceptor;
  TaskGroup group;  ///< the accept loop, connections and refusals
  Event changed;    ///< a connection ended
  Peers peers;
  std::size_t refusals = 0;
  LineBudget lines;
  const std::shared_ptr<ByteBudget> heads = std::make_shared<ByteBudget>(kLargeHeads);
  bool is_stopping = false;  ///< nothing new is accepted
  Duration write_at_most = Duration::max();
};

Task<void> HttpServer::Impl::accept_loop() {
  while (!is_stopping) {
    Tcp::endpoint client;
    auto [ec, socket] = co_await acceptor.async_accept(client, kAwait);
    if (is_stopping) co_return;
    if (!ec) {
      take(std::move(socket), client);
    } else if (ec != asio::error::connection_aborted) {  // others must end first
      if (const auto why = lines.take(ec.message(), centroid::now()))
        log::warn("api.accept_failed", {{"error", *why}});
      if (!co_await sleep_until(centroid::now() + kAcceptPause)) co_return;
    }
  }
}

void HttpServer::Impl::take(Tcp::socket socket, const Tcp::endpoint& client) {
  std::unique_ptr<ByteStream> stream = std::make_unique<TcpStream>(std::move(socket), client);
  if (tls && !service.may_shake_hands(stream->peer())) return;
  if (peers.size() >= limits.max_connections && !make_room()) {
    meters.connections.refused.add();
    if (refusals >= kMaxRefusals || tls) return;
    ++refusals;
    group.spawn(refuse(std::make_unique<Peer>(std::move(stream), 0)));
    return;
  }
  if (tls) stream = tls->accepted(std::move(stream));
  const auto at = peers.add(std::move(stream));
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
  if (peers.size() - peers.in(Phase::kDropped).size() < limits.max_connections) return true;
  const auto is_slow = [now = centroid::now()](const Peer& peer) {
    return now - peer.since > kSlow;
  };
  std::list<Peer>&silent = peers.in(Phase::kSilent), &reading = peers.in(Phase::kReading);
  if (!silent.empty())
    peers.drop(silent.begin());
  else if (!reading.empty() && is_slow(reading.front()))
    peers.drop(reading.begin());
  else if (!peers.in(Phase::kIdle).empty())
    peers.drop(peers.newest_idle());
  else
    return false;
  meters.connections.refused.add();
  return true;
}

Task<void> HttpServer::Impl::serve(Peers::Place at) {
  try {
    co_await serve_requests(at);
  } catch (const std::exception& failure) {
    log::error("api.connection_threw", {{"what", failure.what()}});
  }
  peers.erase(at);
  show();
  changed.notify_all();
}

Task<void> HttpServer::Impl::serve_requests(Peers::Place at) {
  Peer& peer = *at;
  const auto is_dropped = [&peer] { return peer.phase == Phase::kDropped; };
  HttpFraming framing;
  peer.stream.expires_after(limits.read_timeout);
  const SystemError unshaken = co_await peer.stream.shake_hands();
  if (unshaken || is_dropped()) co_return;
  for (;;) {
    const bool has_begun = co_await wait_for_request(peer.stream, limits);
    if (!has_begun || is_dropped() || is_stopping) co_return;
    peers.enter(at, Phase::kReading);
    auto incoming = co_await read_request(peer.stream, limits, service);
    if (incoming.is_slow) meters.dropped_slow.add();
    show();
    const bool is_answered = incoming.refused != 0 || incoming.answer;
    if (is_dropped() || (!incoming.request && !is_answered)) co_return;
    peers.enter(at, Phase::kBusy);
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
    release_request(peer.stream);
    show();
    if (response.stream && !framing.is_head) peers.enter(at, Phase::kStreaming);
    const bool is_written = co_await write(peer, std::move(response), framing);
    if (!is_written) co_return;
    if (!framing.keep_alive || is_stopping) break;
    peers.enter(at, Phase::kIdle);
  }
  peers.enter(at, Phase::kReading);
  if (!is_stopping) co_await linger(peer.stream);
}

/// False: the connection is not usable any more.
Task<bool> HttpServer::Impl::write(Peer& peer, HttpResponse response, HttpFraming framing) {
  const Duration timeout = std::min<Duration>(limits.write_timeout, write_at_most);
  const SystemError ec =
      co_await write_response(peer.stream, std::move(response), framing, name, timeout);
  if (ec == asio::error::timed_out) meters.dropped_slow.add();
  co_return !ec && peer.phase != Phase::kDropped;
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
  TransportOptions options;
  options.stall_timeout = std::chrono::milliseconds(0);
  CENTROID_ASSIGN(impl_->acceptor,
                  open_acceptor(impl_->acceptor.get_executor(), endpoint, options));
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
  for (const Phase phase : {Phase::kSilent, Phase::kReading, Phase::kIdle, Phase::kStreaming})
    impl_->peers.drop_all(phase);
  const TimePoint until = centroid::now() + grace;
  bool goes_on = true;
  while (goes_on && impl_->peers.size() > 0 && centroid::now() < until)
    goes_on = co_await impl_->changed.wait(until);
  impl_->write_at_most = grace;
}

void HttpServer::drop() {
  for (const Phase phase :
       {Phase::kSilent, Phase::kReading, Phase::kIdle, Phase::kBusy, Phase::kStreaming})
    impl_->peers.drop_all(phase);
  impl_->group.cancel();
}

Task<void> HttpServer::join() { co_await impl_->group.join(); }

}  // namespace centroid::transport
