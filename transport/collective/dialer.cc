#include "transport/collective/dialer.h"

#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "transport/bound.h"
#include "transport/collective/network.h"
#include "transport/echo.h"
#include "transport/handshake.h"

namespace centroid::collective {

using transport::Bound;
using transport::Connection;
using transport::Endpoint;
using transport::InFrame;
using transport::OutFrame;

namespace {

constexpr std::chrono::milliseconds kFirstRetry{2}, kLastRetry{50};
constexpr std::size_t kMostStrangers = 256;  ///< at a time, beside ranks
// Operations have deadlines, and peers may compute for minutes between them.
constexpr std::chrono::hours kNoStall{1};
const Endpoint kSharedEndpoint{"collective", 0};

std::string name_of(std::uint32_t rank) { return "rank " + std::to_string(rank); }

Task<Result<InFrame>> read_kind(Connection& connection, std::uint16_t kind) {
  CENTROID_CO_ASSIGN(InFrame frame, co_await connection.read_header());
  if (frame.header.payload_bytes != 0) CENTROID_CO_TRY(co_await connection.skip_payload());
  if (frame.header.kind != kind) {
    co_return Error(ErrorCode::kDataLoss, connection.peer() + ": a frame of kind " +
                                              std::to_string(frame.header.kind) +
                                              " arrived before the join");
  }
  co_return frame;
}

/// Set during its lifetime.
struct Flag {
  explicit Flag(bool& one) : flag(one) { flag = true; }
  ~Flag() { flag = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  bool& flag;
};

Task<Status> confirm(Connection& connection) {
  OutFrame frame;
  frame.kind = kStay;
  co_return co_await connection.write(frame);
}

}  // namespace

void Station::listen_near() {
  if (!options.shared_memory) return;
  transport::TransportOptions near;
  near.stall_timeout = kNoStall;
  shared = transport::make_shm(driver->executor(), near, &driver->polls());
  auto made = shared->listen(kSharedEndpoint);
  if (made.ok()) {
    shared_listener = std::move(*made);
  } else {
    log::info("collective.shared_memory_failed", {{"error", made.error()}});
  }
}

/// A call of a peer that is not decided yet.
class Dialer::Answering {
 public:
  Answering(Dialer& dialer, std::uint32_t rank) : dialer_(dialer), pair_(dialer.pairs_[rank]) {
    ++pair_.answered_now;
  }
  ~Answering() {
    --pair_.answered_now;
    dialer_.changed_.notify_all();
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

 private:
  Dialer& dialer_;
  Pair& pair_;
};

Dialer::Dialer(Network& network, std::shared_ptr<Station> station, Roster roster)
    : network_(network),
      station_(std::move(station)),
      roster_(std::move(roster)),
      pairs_(roster_.endpoints.size()),
      changed_(station_->driver->executor()),
      callers_(station_->driver->executor()),
      answers_(station_->driver->executor()) {}

transport::Greeting Dialer::greeting() const {
  const MeshOptions& options = station_->options;
  transport::Greeting out;
  out.role = "peer";
  out.accepts_roles = {"peer", kMeasurer};
  out.name = name_of(roster_.rank);
  out.run_id = roster_.run_id.empty() ? options.run_id : roster_.run_id;
  out.token = options.token;
  out.manifest_hash = options.manifest_hash;
  return out;
}

/// The features that we request of the connection with a rank.
std::uint32_t Dialer::features(std::uint32_t rank) const {
  const std::vector<std::string>& nodes = roster_.nodes;
  const bool is_near = !nodes.empty() && !nodes[rank].empty() && nodes[rank] == nodes[roster_.rank];
  std::uint32_t out = 0;
  if (is_near || !station_->options.payload_checksum) out |= kFeatureNoPayloadCrc;
  if (is_near && station_->shared_listener) out |= kFeatureSharedMemory;
  return out;
}

void Dialer::put(std::uint32_t rank, std::unique_ptr<Connection> connection, std::uint32_t agreed) {
  if (is_stopping_ || pairs_[rank].is_connected) return;
  pairs_[rank].is_connected = true;
  station_->options.connections.add();
  log::debug("peers.connected",
             {{"generation", roster_.generation}, {"rank", rank}, {"peer", connection->peer()}});
  network_.add_peer(rank, std::move(connection), agreed);
  changed_.notify_all();
}

// ---- calling

void Dialer::need(std::uint32_t rank) {
  Pair& pair = pairs_[rank];
  if (is_stopping_ || pair.is_connected || pair.has_caller) return;
  pair.has_caller = true;
  callers_.spawn(call(rank));
}

bool Dialer::is_wanted(std::uint32_t rank) const {
  return !is_stopping_ && !pairs_[rank].is_connected && network_.needed_until(rank) > now();
}

/// False: the pair has its connection, or nothing needs it any more.
Task<bool> Dialer::pause(std::uint32_t rank, TimePoint until) {
  while (is_wanted(rank) && now() < until) (void)co_await changed_.wait(until);
  co_return is_wanted(rank);
}

Task<void> Dialer::call(std::uint32_t rank) {
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  Pair& pair = pairs_[rank];
  const auto head_start = station_->options.head_start;
  if (rank > roster_.rank) (void)co_await pause(rank, now() + head_start);
  auto retry = kFirstRetry;
  while (is_wanted(rank)) {
    const TimePoint until = network_.needed_until(rank);
    if (pair.answered_now != 0) {
      (void)co_await changed_.wait(until);
      continue;
    }
    pair.is_calling = true;
    Status tried = co_await try_peer(rank, until);
    pair.is_calling = false;
    if (tried.ok()) break;
    const ErrorCode code = tried.error().code();
    pair.failure = std::move(tried).error();
    // Others are not there yet, or in the previous generation: the roster may have reached us
    // first.
    if (code == ErrorCode::kFailedPrecondition || code == ErrorCode::kAborted) {
      network_.on_refused(rank, *pair.failure);
      break;
    }
    (void)co_await pause(rank, now() + retry);
    retry = std::min(2 * retry, kLastRetry);
  }
  pair.has_caller = false;
  if (pair.is_connected || is_stopping_ || !pair.failure) co_return;
  log::info("peers.connection_failed", {{"generation", roster_.generation},
                                        {"rank", rank},
                                        {"endpoint", roster_.endpoints[rank].to_string()},
                                        {"error", *pair.failure}});
}

Task<Status> Dialer::try_peer(std::uint32_t rank, Deadline deadline) {
  const Endpoint endpoint = roster_.endpoints[rank];
  CENTROID_CO_ASSIGN(auto connection, co_await station_->transport->connect(endpoint, deadline));
  Bound bound(*connection, deadline);
  const std::uint32_t requested = features(rank);
  CENTROID_CO_ASSIGN(const JoinReply agreed, co_await introduce(*connection, rank, requested));
  if ((agreed.features & kFeatureSharedMemory) != 0) {
    const Status moved = co_await try_shared(rank, agreed.shared_port, deadline);
    if (moved.ok() || is_stopping_) co_return moved;
    log::info("collective.shared_memory_failed", {{"rank", rank}, {"error", moved.error()}});
  }
  CENTROID_CO_TRY(co_await confirm(*connection));
  if (!bound.stop()) co_return Error(ErrorCode::kDeadlineExceeded, "join: too late");
  put(rank, std::move(connection), agreed.features);
  co_return Status();
}

/// Send our identity, and receive the features of both sides.
Task<Result<JoinReply>> Dialer::introduce(Connection& connection, std::uint32_t rank,
                                          std::uint32_t requested) {
  CENTROID_CO_ASSIGN(const transport::Peer peer,
                     co_await transport::send_hello(connection, greeting()));
  connection.set_limits(peer.limits);
  Join join;
  join.generation = roster_.generation;
  join.rank = roster_.rank;
  join.world = static_cast<std::uint32_t>(roster_.endpoints.size());
  join.features = requested;
  const std::vector<std::byte> head = encode(join);
  OutFrame frame;
  frame.kind = kJoin;
  frame.head = head;
  CENTROID_CO_TRY(co_await connection.write(frame));
  CENTROID_CO_ASSIGN(const InFrame reply, co_await read_kind(connection, kJoinReply));
  if ((reply.header.flags & transport::kFlagError) != 0)
    co_return transport::decode_error(reply.head).with_context(name_of(rank));
  CENTROID_CO_ASSIGN(JoinReply agreed, decode_join_reply(reply.head));
  agreed.features &= requested;
  co_return agreed;
}

Task<Status> Dialer::try_shared(std::uint32_t rank, std::uint32_t port, Deadline latest) {
  const Deadline deadline = std::min(latest, now() + transport::kGreetingTimeout);
  Endpoint endpoint = kSharedEndpoint;
  endpoint.port = static_cast<std::uint16_t>(port);
  CENTROID_CO_ASSIGN(auto connection, co_await station_->shared->connect(endpoint, deadline));
  Bound bound(*connection, deadline);
  const std::uint32_t requested = kFeatureNoPayloadCrc;
  CENTROID_CO_ASSIGN(const JoinReply agreed, co_await introduce(*connection, rank, requested));
  CENTROID_CO_TRY(co_await confirm(*connection));
  if (!bound.stop()) co_return Error(ErrorCode::kDeadlineExceeded, "join: too late");
  put(rank, std::move(connection), agreed.features);
  co_return Status();
}

// ---- being called

void Dialer::answer() {
  station_->strangers.set_connections(kMostStrangers + roster_.endpoints.size());
  for (transport::Listener* const one :
       {station_->listener.get(), station_->shared_listener.get()}) {
    if (one == nullptr) continue;
    auto serve = [this](std::unique_ptr<Connection> connection, StrangerPlace place) {
      answers_.spawn(answer_peer(std::move(connection), std::move(place)));
    };
    answers_.spawn(
        transport::accept_all(*one, station_->strangers, is_stopping_, std::move(serve)));
  }
}

Task<void> Dialer::answer_peer(std::unique_ptr<Connection> connection, StrangerPlace place) {
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  Status turn = co_await place->turn();
  if (!turn.ok()) co_return connection->close(std::move(turn).error());
  Bound bound(*connection, now() + transport::kGreetingTimeout);
  const auto peer = co_await transport::answer_hello(*connection, greeting());
  // It is refused already, or gone; or this generation has ended, and it calls the next one.
  if (!peer.ok()) co_return;
  place->admit_member();
  const auto join = co_await greet_peer(*connection, *peer);
  if (join.ok() && join->world == 0) co_return;  // it only measured
  if (!join.ok()) {
    const std::vector<std::byte> head = transport::encode_error(join.error());
    OutFrame refusal;
    refusal.kind = kJoinReply;
    refusal.flags = transport::kFlagError;
    refusal.head = head;
    (void)co_await connection->write(refusal);
    co_return;
  }
  const Answering answering(*this, join->rank);
  JoinReply agreed;
  agreed.features = join->features & features(join->rank);
  if ((agreed.features & kFeatureSharedMemory) != 0)
    agreed.shared_port = station_->shared_listener->endpoint().port;
  const std::vector<std::byte> head = encode(agreed);
  OutFrame frame;
  frame.kind = kJoinReply;
  frame.head = head;
  const Status sent = co_await connection->write(frame);
  if (!sent.ok()) co_return;
  // Closed instead: the peer continues through shared memory, or has cancelled.
  const auto stays = co_await read_kind(*connection, kStay);
  if (!stays.ok() || !bound.stop()) co_return;
  put(join->rank, std::move(connection), agreed.features);
}

Task<Result<Join>> Dialer::greet_peer(Connection& connection, const transport::Peer& peer) {
  connection.set_limits(peer.limits);
  if (peer.role == kMeasurer) {
    co_await answer_echoes(connection);
    Join nobody;
    nobody.world = 0;
    co_return nobody;
  }
  CENTROID_CO_ASSIGN(const InFrame frame, co_await read_kind(connection, kJoin));
  CENTROID_CO_ASSIGN(const Join join, decode_join(frame.head));
  CENTROID_CO_TRY(judge(join));
  co_return join;
}

/// For at most the time of a caller's greeting, one caller at a time, and for a bounded number of
/// bytes.
Task<void> Dialer::answer_echoes(Connection& connection) {
  constexpr std::uint64_t kMostBytes = 2ull << 30;
  if (is_measured_) co_return;
  const Flag flag(is_measured_);
  const Driver::Work work(*station_->driver);
  for (std::uint64_t moved = 0; moved < kMostBytes && !is_stopping_;) {
    const auto frame = co_await connection.read_header();
    if (!frame.ok() || frame->header.kind != transport::kEcho) break;
    const auto requested = transport::echo_bytes(*frame);
    if (!requested.ok()) break;
    moved += *requested + frame->header.payload_bytes;
    if (frame->header.payload_bytes > 0) {
      const Status skipped = co_await connection.skip_payload();
      if (!skipped.ok()) break;
    }
    const std::vector<std::byte> payload(*requested);
    OutFrame answer;
    answer.kind = transport::kEcho;
    answer.flags = transport::kFlagResponse;
    answer.id = frame->header.id;
    answer.payload = payload;
    const Status sent = co_await connection.write(answer);
    if (!sent.ok()) break;
  }
}

Status Dialer::judge(const Join& join) const {
  const std::string theirs = "generation " + std::to_string(join.generation) + " at " +
                             name_of(roster_.rank) + ", which is in " +
                             std::to_string(roster_.generation);
  if (join.generation < roster_.generation)
    return Error(ErrorCode::kAborted, theirs + ": read the roster again");
  if (join.generation > roster_.generation)
    return Error(ErrorCode::kUnavailable, theirs + ": not there yet");
  if (join.world != roster_.endpoints.size() || join.rank == roster_.rank ||
      join.rank >= join.world) {
    return Error(ErrorCode::kFailedPrecondition,
                 name_of(join.rank) + " of " + std::to_string(join.world) +
                     " does not fit the roster of " + name_of(roster_.rank) + " of " +
                     std::to_string(roster_.endpoints.size()));
  }
  const Pair& pair = pairs_[join.rank];
  if (pair.is_connected)
    return Error(ErrorCode::kAlreadyExists, name_of(join.rank) + " is connected already");
  if (pair.is_calling && join.rank < roster_.rank)
    return Error(ErrorCode::kAlreadyExists, name_of(roster_.rank) + " calls itself");
  return {};
}

// ---- the end

Task<void> Dialer::stop_answering() {
  answers_.cancel();
  co_await answers_.join();
}

Task<void> Dialer::stop() {
  is_stopping_ = true;
  changed_.notify_all();
  callers_.cancel();
  co_await callers_.join();
  co_await stop_answering();
}

}  // namespace centroid::collective
