#include "transport/collective/mesh.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "transport/collective/group_core.h"
#include "transport/handshake.h"

namespace centroid::collective {

using transport::Connection;
using transport::Endpoint;
using transport::InFrame;
using transport::OutFrame;

namespace {

constexpr std::chrono::milliseconds kFirstRetry{2}, kLastRetry{200};
// Operations have deadlines, and peers may compute for minutes between them.
constexpr std::chrono::hours kNoStall{1};
const Endpoint kSharedEndpoint{"collective", 0};

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string listed(const std::vector<std::uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

/// A connection that says nothing is closed when its time is over.
class Bound {
 public:
  Bound(Connection& connection, Deadline deadline) : timer_(connection.executor(), deadline) {
    timer_.async_wait([state = state_, &connection](const boost::system::error_code& error) {
      if (error || state->is_over) return;
      state->is_late = true;
      connection.close(Error(ErrorCode::kDeadlineExceeded, connection.peer() + " said nothing"));
    });
  }
  ~Bound() { state_->is_over = true; }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
  /// False: it came too late.
  bool stop() {
    state_->is_over = true;
    return !state_->is_late;
  }

 private:
  struct State {
    bool is_over = false, is_late = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  boost::asio::steady_timer timer_;
};

Task<Result<InFrame>> read_kind(Connection& connection, std::uint16_t kind) {
  CENTROID_CO_ASSIGN(InFrame frame, co_await connection.read_header());
  if (frame.header.payload_bytes != 0) CENTROID_CO_TRY(co_await connection.skip_payload());
  if (frame.header.kind != kind) {
    co_return Error(ErrorCode::kDataLoss, connection.peer() + ": a frame of kind " +
                                              std::to_string(frame.header.kind) +
                                              " came before the join");
  }
  co_return frame;
}

}  // namespace

struct Mesh::Impl {
  MeshOptions options;
  std::shared_ptr<Driver> driver;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Listener> listener;
  struct Building;
  Building* building_now = nullptr;          ///< on the driver
  std::optional<std::uint64_t> interrupted;  ///< generation
  Error interrupted_by{ErrorCode::kCancelled, ""};
  std::atomic<std::uint32_t> absent{kNoRank};
  /// For ranks on this machine; none when it is off or does not work here.
  std::unique_ptr<transport::Transport> shared;
  std::unique_ptr<transport::Listener> shared_listener;

  /// The connection with one peer, and what both want.
  struct Joined {
    std::unique_ptr<Connection> connection;
    std::uint32_t features = 0;
  };

  /// One generation being built; on the driver.
  struct Building {
    Roster roster;
    Deadline deadline;
    std::vector<Joined> joined;  ///< by rank
    std::uint32_t missing = 0;
    std::optional<Error> refused;
    Event changed;
    TaskGroup tasks;
    Building(Roster given, Deadline until, const Executor& executor)
        : roster(std::move(given)),
          deadline(until),
          joined(roster.endpoints.size()),
          missing(static_cast<std::uint32_t>(roster.endpoints.size()) - 1),
          changed(executor),
          tasks(executor) {}

    void put(std::uint32_t rank, Joined made) {
      joined[rank] = std::move(made);
      --missing;
      changed.notify_all();
    }
    void refuse(Error error) {
      if (!refused) refused = std::move(error);
      changed.notify_all();
    }
  };

  transport::Greeting greeting(const Roster& roster) const {
    transport::Greeting out;
    out.role = "peer";
    out.name = "rank " + std::to_string(roster.rank);
    out.run_id = roster.run_id.empty() ? options.run_id : roster.run_id;
    out.token = options.token;
    out.manifest_hash = options.manifest_hash;
    return out;
  }

  /// What we want of the connection with a rank.
  std::uint32_t features(const Roster& roster, std::uint32_t rank) const {
    const bool is_near = !roster.nodes.empty() && !roster.nodes[rank].empty() &&
                         roster.nodes[rank] == roster.nodes[roster.rank];
    std::uint32_t out = 0;
    if (is_near || !options.payload_checksum) out |= kFeatureUnsummed;
    if (is_near && shared_listener) out |= kFeatureSharedMemory;
    return out;
  }

  void listen_near() {
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

  Task<void> call_peer(Building& building, std::uint32_t rank);
  Task<Status> try_peer(Building& building, std::uint32_t rank);
  Task<Result<JoinReply>> introduce(Building& building, Connection& connection, std::uint32_t rank,
                                    std::uint32_t wanted);
  Task<Status> try_shared(Building& building, std::uint32_t rank, std::uint32_t port);
  Task<void> answer_peers(Building& building, transport::Listener& listening);
  Task<void> answer_peer(Building& building, std::unique_ptr<Connection> connection);
  Task<Result<Join>> greet_peer(Building& building, Connection& connection);
  Task<Status> build(Building& building);
};

Task<void> Mesh::Impl::call_peer(Building& building, std::uint32_t rank) {
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  auto pause = kFirstRetry;
  while (true) {
    Status tried = co_await try_peer(building, rank);
    if (tried.ok()) co_return;
    const ErrorCode code = tried.error().code();
    // Not there yet, or still in the generation before: the roster may have reached us first.
    if (code == ErrorCode::kFailedPrecondition || code == ErrorCode::kAborted)
      co_return building.refuse(std::move(tried).error());
    const TimePoint until = now() + pause;
    if (until >= building.deadline || !co_await sleep_until(until)) co_return;
    pause = std::min(2 * pause, kLastRetry);
  }
}

Task<Status> Mesh::Impl::try_peer(Building& building, std::uint32_t rank) {
  const Endpoint endpoint = building.roster.endpoints[rank];
  CENTROID_CO_ASSIGN(auto connection, co_await transport->connect(endpoint, building.deadline));
  Bound bound(*connection, building.deadline);
  const std::uint32_t wanted = features(building.roster, rank);
  CENTROID_CO_ASSIGN(const JoinReply agreed,
                     co_await introduce(building, *connection, rank, wanted));
  if ((agreed.features & kFeatureSharedMemory) != 0) {
    const Status moved = co_await try_shared(building, rank, agreed.shared_port);
    if (moved.ok()) co_return Status();
    log::info("collective.shared_memory_failed", {{"rank", rank}, {"error", moved.error()}});
    OutFrame frame;
    frame.kind = kStay;
    CENTROID_CO_TRY(co_await connection->write(frame));
  }
  if (!bound.stop()) co_return Error(ErrorCode::kDeadlineExceeded, "join: too late");
  Joined joined;
  joined.connection = std::move(connection);
  joined.features = agreed.features;
  building.put(rank, std::move(joined));
  co_return Status();
}

/// Say who we are, and hear what both sides want.
Task<Result<JoinReply>> Mesh::Impl::introduce(Building& building, Connection& connection,
                                              std::uint32_t rank, std::uint32_t wanted) {
  CENTROID_CO_ASSIGN(const transport::Peer peer,
                     co_await transport::send_hello(connection, greeting(building.roster)));
  connection.set_limits(peer.limits);
  Join join;
  join.generation = building.roster.generation;
  join.rank = building.roster.rank;
  join.world = static_cast<std::uint32_t>(building.roster.endpoints.size());
  join.features = wanted;
  const std::vector<std::byte> head = encode(join);
  OutFrame frame;
  frame.kind = kJoin;
  frame.head = head;
  CENTROID_CO_TRY(co_await connection.write(frame));
  CENTROID_CO_ASSIGN(const InFrame reply, co_await read_kind(connection, kJoinReply));
  if ((reply.header.flags & transport::kFlagError) != 0)
    co_return transport::decode_error(reply.head).with_context("rank " + std::to_string(rank));
  CENTROID_CO_ASSIGN(JoinReply agreed, decode_join_reply(reply.head));
  agreed.features &= wanted;
  co_return agreed;
}

Task<Status> Mesh::Impl::try_shared(Building& building, std::uint32_t rank, std::uint32_t port) {
  const Deadline deadline = std::min(building.deadline, now() + transport::kGreetingTimeout);
  Endpoint endpoint = kSharedEndpoint;
  endpoint.port = static_cast<std::uint16_t>(port);
  CENTROID_CO_ASSIGN(auto connection, co_await shared->connect(endpoint, deadline));
  Bound bound(*connection, deadline);
  const std::uint32_t wanted = kFeatureUnsummed;
  CENTROID_CO_ASSIGN(const JoinReply agreed,
                     co_await introduce(building, *connection, rank, wanted));
  if (!bound.stop()) co_return Error(ErrorCode::kDeadlineExceeded, "join: too late");
  Joined joined;
  joined.connection = std::move(connection);
  joined.features = agreed.features;
  building.put(rank, std::move(joined));
  co_return Status();
}

Task<void> Mesh::Impl::answer_peers(Building& building, transport::Listener& listening) {
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  while (true) {
    auto accepted = co_await listening.accept();
    if (accepted.ok()) {
      building.tasks.spawn(answer_peer(building, std::move(*accepted)));
      continue;
    }
    if (accepted.error().code() == ErrorCode::kCancelled) co_return;
    if (!co_await sleep_until(now() + kLastRetry)) co_return;
  }
}

Task<void> Mesh::Impl::answer_peer(Building& building, std::unique_ptr<Connection> connection) {
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  Bound bound(*connection, std::min(building.deadline, now() + transport::kGreetingTimeout));
  auto join = co_await greet_peer(building, *connection);
  JoinReply agreed;
  if (join.ok()) agreed.features = join->features & features(building.roster, join->rank);
  if ((agreed.features & kFeatureSharedMemory) != 0)
    agreed.shared_port = shared_listener->endpoint().port;
  const std::vector<std::byte> head =
      join.ok() ? encode(agreed) : transport::encode_error(join.error());
  OutFrame frame;
  frame.kind = kJoinReply;
  if (!join.ok()) frame.flags = transport::kFlagError;
  frame.head = head;
  const Status sent = co_await connection->write(frame);
  if (sent.ok() && (agreed.features & kFeatureSharedMemory) != 0) {
    // The peer calls again through shared memory, and closes this; or that failed.
    const auto stays = co_await read_kind(*connection, kStay);
    if (!stays.ok()) co_return;
  }
  if (!bound.stop() || !sent.ok() || !join.ok() || building.joined[join->rank].connection)
    co_return;
  Joined joined;
  joined.connection = std::move(connection);
  joined.features = agreed.features;
  building.put(join->rank, std::move(joined));
}

Task<Result<Join>> Mesh::Impl::greet_peer(Building& building, Connection& connection) {
  CENTROID_CO_ASSIGN(const transport::Peer peer,
                     co_await transport::answer_hello(connection, greeting(building.roster)));
  connection.set_limits(peer.limits);
  CENTROID_CO_ASSIGN(const InFrame frame, co_await read_kind(connection, kJoin));
  CENTROID_CO_ASSIGN(const Join join, decode_join(frame.head));
  const Roster& roster = building.roster;
  const std::string theirs = "generation " + std::to_string(join.generation) + " at rank " +
                             std::to_string(roster.rank) + ", which is in " +
                             std::to_string(roster.generation);
  if (join.generation < roster.generation)
    co_return Error(ErrorCode::kAborted, theirs + ": read the roster again");
  if (join.generation > roster.generation)
    co_return Error(ErrorCode::kUnavailable, theirs + ": not there yet");
  if (join.world != roster.endpoints.size() || join.rank <= roster.rank ||
      join.rank >= join.world) {
    co_return Error(ErrorCode::kFailedPrecondition,
                    "rank " + std::to_string(join.rank) + " of " + std::to_string(join.world) +
                        " does not fit the roster of rank " + std::to_string(roster.rank) + " of " +
                        std::to_string(roster.endpoints.size()));
  }
  if (building.joined[join.rank].connection) {
    co_return Error(ErrorCode::kFailedPrecondition,
                    "rank " + std::to_string(join.rank) + " is there already");
  }
  co_return join;
}

Task<Status> Mesh::Impl::build(Building& building) {
  building_now = &building;
  if (interrupted == building.roster.generation) building.refuse(interrupted_by);
  absent = kNoRank;
  building.tasks.spawn(answer_peers(building, *listener));
  if (shared_listener) building.tasks.spawn(answer_peers(building, *shared_listener));
  for (std::uint32_t rank = 0; rank < building.roster.rank; ++rank)
    building.tasks.spawn(call_peer(building, rank));
  while (building.missing != 0 && !building.refused && now() < building.deadline)
    (void)co_await building.changed.wait(building.deadline);
  building_now = nullptr;
  building.tasks.cancel();
  co_await building.tasks.join();
  const std::string doing = "join generation " + std::to_string(building.roster.generation) +
                            " as rank " + std::to_string(building.roster.rank);
  if (building.refused) co_return std::move(*building.refused).with_context(doing);
  if (building.missing == 0) co_return Status();
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < building.joined.size(); ++rank)
    if (rank != building.roster.rank && !building.joined[rank].connection) missing.push_back(rank);
  absent = missing.front();
  co_return Error(ErrorCode::kDeadlineExceeded,
                  doing + ": " + listed(missing) + " did not connect in time");
}

// ---- public

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Mesh::~Mesh() {
  const auto stop = [](Impl* impl) -> Task<void> {
    impl->listener->close();
    impl->listener.reset();
    if (impl->shared_listener) impl->shared_listener->close();
    impl->shared_listener.reset();
    co_return;
  };
  impl_->driver->run(stop(impl_.get()));
}

Endpoint Mesh::endpoint() const { return impl_->listener->endpoint(); }

Result<std::unique_ptr<Mesh>> Mesh::open(const TransportFactory& make_transport,
                                         const Endpoint& listen, MeshOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->driver = std::make_shared<Driver>(options.thread_name, options.spin);
  impl->options = std::move(options);
  impl->transport = make_transport(impl->driver->executor());
  CENTROID_ASSIGN(impl->listener, impl->transport->listen(listen));
  impl->listen_near();
  return std::unique_ptr<Mesh>(new Mesh(std::move(impl)));
}

Result<Group> Mesh::join(const Roster& roster, Deadline deadline) {
  const auto world = static_cast<std::uint32_t>(roster.endpoints.size());
  if (roster.rank >= world) {
    return Error(ErrorCode::kInvalidArgument, "roster: rank " + std::to_string(roster.rank) +
                                                  " of " + std::to_string(world) + " endpoints");
  }
  if (!roster.nodes.empty() && roster.nodes.size() != world) {
    return Error(ErrorCode::kInvalidArgument, "roster: " + std::to_string(roster.nodes.size()) +
                                                  " nodes of " + std::to_string(world) +
                                                  " endpoints");
  }
  const auto is_near = [&](const std::string& node) {
    return !node.empty() && node == roster.nodes[roster.rank];
  };
  const auto near = std::count_if(roster.nodes.begin(), roster.nodes.end(), is_near);
  impl_->driver->set_has_cores(near <= std::thread::hardware_concurrency());
  const auto join = [](Impl* impl, Roster given,
                       Deadline until) -> Task<Result<std::shared_ptr<Network>>> {
    Impl::Building building(std::move(given), until, impl->driver->executor());
    CENTROID_CO_TRY(co_await impl->build(building));
    auto network =
        std::make_shared<Network>(impl->driver, building.roster.generation, building.roster.rank,
                                  static_cast<std::uint32_t>(building.joined.size()),
                                  impl->options.timeout, impl->options.leave_timeout);
    for (std::uint32_t rank = 0; rank < building.joined.size(); ++rank) {
      Impl::Joined& one = building.joined[rank];
      if (one.connection) network->add_link(rank, std::move(one.connection), one.features);
    }
    network->run_links();
    co_return network;
  };
  CENTROID_ASSIGN(auto network, impl_->driver->run(join(impl_.get(), roster, deadline)));
  auto generation = std::make_shared<Generation>(std::move(network));
  generation->driver = impl_->driver;
  generation->nodes = roster.nodes;
  generation->nodes.resize(world);
  std::vector<std::uint32_t> members(world);
  for (std::uint32_t i = 0; i < world; ++i) members[i] = i;
  return make_group(std::move(generation), std::move(members), roster.rank);
}

void Mesh::interrupt(std::uint64_t generation, Error cause) {
  const auto refuse = [](Impl* impl, std::uint64_t number, Error why) -> Task<void> {
    impl->interrupted = number;
    impl->interrupted_by = why;
    if (impl->building_now != nullptr && impl->building_now->roster.generation == number)
      impl->building_now->refuse(std::move(why));
    co_return;
  };
  impl_->driver->run(refuse(impl_.get(), generation, std::move(cause)));
}

std::optional<std::uint32_t> Mesh::absent() const {
  const std::uint32_t rank = impl_->absent;
  if (rank == kNoRank) return std::nullopt;
  return rank;
}

Mesh::TransportFactory tcp_factory(transport::TransportOptions options) {
  if (options.congestion_control.empty()) options.congestion_control = "auto";
  options.stall_timeout = kNoStall;
  return [options](Executor executor) { return transport::make_tcp(executor, options); };
}

Mesh::TransportFactory inprocess_factory(std::shared_ptr<transport::InProcessHub> hub) {
  transport::TransportOptions options;
  options.stall_timeout = kNoStall;
  return [options, hub](Executor executor) {
    return transport::make_inprocess(executor, hub, options);
  };
}

}  // namespace centroid::collective
