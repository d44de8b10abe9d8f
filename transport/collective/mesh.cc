#include "transport/collective/mesh.h"

#include <algorithm>

#include "common/base/thread.h"
#include "transport/collective/group_core.h"

namespace centroid::collective {

using transport::Endpoint;

namespace {

// Operations have deadlines, and peers may compute for minutes between them.
constexpr std::chrono::hours kNoStallLimit{1};

Status check(const Roster& roster) {
  const std::size_t world = roster.endpoints.size();
  if (roster.rank >= world) {
    return Error(ErrorCode::kInvalidArgument, "roster: rank " + std::to_string(roster.rank) +
                                                  " of " + std::to_string(world) + " endpoints");
  }
  if (!roster.nodes.empty() && roster.nodes.size() != world) {
    return Error(ErrorCode::kInvalidArgument, "roster: " + std::to_string(roster.nodes.size()) +
                                                  " nodes of " + std::to_string(world) +
                                                  " endpoints");
  }
  return {};
}

}  // namespace

struct Mesh::Impl {
  std::shared_ptr<Station> station;
  std::weak_ptr<Network> last;  ///< of the generation that is answered; on the driver

  /// One generation at a time is answered.
  Task<void> hand_over(std::shared_ptr<Network> network) {
    if (const auto before = last.lock()) co_await before->stop_answering();
    last = network;
    network->open();
  }
};

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Mesh::~Mesh() {
  const auto stop = [](Station* station) -> Task<void> {
    station->listener->close();
    if (station->shared_listener) station->shared_listener->close();
    co_return;
  };
  impl_->station->driver->run(stop(impl_->station.get()));
}

Endpoint Mesh::endpoint() const { return impl_->station->listener->endpoint(); }

Result<std::unique_ptr<Mesh>> Mesh::open(const TransportFactory& make_transport,
                                         const Endpoint& listen, MeshOptions options) {
  auto station = std::make_shared<Station>();
  station->driver = std::make_shared<Driver>(options.thread_name, options.spin);
  station->options = std::move(options);
  station->transport = make_transport(station->driver->executor());
  CENTROID_ASSIGN(station->listener, station->transport->listen(listen));
  station->listen_near();
  auto impl = std::make_unique<Impl>();
  impl->station = std::move(station);
  return std::unique_ptr<Mesh>(new Mesh(std::move(impl)));
}

Result<Group> Mesh::join(const Roster& roster) {
  CENTROID_TRY(check(roster));
  const auto world = static_cast<std::uint32_t>(roster.endpoints.size());
  const auto is_near = [&](const std::string& node) {
    return !node.empty() && node == roster.nodes[roster.rank];
  };
  const auto near = std::count_if(roster.nodes.begin(), roster.nodes.end(), is_near);
  const std::shared_ptr<Driver>& driver = impl_->station->driver;
  driver->set_has_cores(near <= core_count());
  auto network = std::make_shared<Network>(impl_->station, roster);
  driver->run(impl_->hand_over(network));
  auto generation = std::make_shared<Generation>(std::move(network));
  generation->driver = driver;
  generation->nodes = roster.nodes;
  generation->nodes.resize(world);
  std::vector<std::uint32_t> members(world);
  for (std::uint32_t i = 0; i < world; ++i) members[i] = i;
  return make_group(std::move(generation), std::move(members), roster.rank);
}

namespace {

// On the driver. Their frames may end behind what awaits them: they own no station, which would
// end on its own thread.
Task<std::optional<Result<transport::EchoReport>>> measure_there(Station* station,
                                                                 Endpoint endpoint,
                                                                 std::string run_id,
                                                                 std::chrono::milliseconds time,
                                                                 std::uint32_t bytes) {
  constexpr std::chrono::seconds kConnectTime{3};
  transport::Greeting greeting;
  greeting.role = kMeasurer;
  greeting.name = "a measurement";
  greeting.run_id = run_id.empty() ? station->options.run_id : run_id;
  greeting.token = station->options.token;
  greeting.manifest_hash = station->options.manifest_hash;
  const TimePoint connected_by = centroid::now() + kConnectTime;
  auto report = co_await transport::measure_way(*station->transport, endpoint, greeting,
                                                connected_by, time, bytes);
  co_return std::make_optional(std::move(report));
}

Task<std::optional<Status>> reach_there(Station* station, Endpoint endpoint, TimePoint limit) {
  const auto connection = co_await station->transport->connect(std::move(endpoint), limit);
  co_return connection.ok() ? Status() : Status(connection.error());
}

/// On the driver's executor. No slot, as in run_on: it ends by its own deadlines.
template <class T>
Task<T> run_there(Station& station, Task<std::optional<T>> work) {
  const Driver::Work awake(*station.driver);  // otherwise its thread may sleep
  auto token = boost::asio::bind_cancellation_slot(boost::asio::cancellation_slot(),
                                                   boost::asio::use_awaitable);
  auto outcome =
      co_await boost::asio::co_spawn(station.driver->executor(), std::move(work), std::move(token));
  co_return std::move(*outcome);
}

}  // namespace

Task<Status> Mesh::reach(Endpoint endpoint, std::chrono::milliseconds time) {
  auto there = reach_there(impl_->station.get(), std::move(endpoint), centroid::now() + time);
  co_return co_await run_there(*impl_->station, std::move(there));
}

Status Mesh::reach_now(const Endpoint& endpoint, std::chrono::milliseconds time) {
  auto there = reach_there(impl_->station.get(), endpoint, centroid::now() + time);
  return *impl_->station->driver->run(std::move(there));
}

Task<Result<transport::EchoReport>> Mesh::measure(Endpoint endpoint, std::string run_id,
                                                  std::chrono::milliseconds time,
                                                  std::uint32_t bytes) {
  auto there = measure_there(impl_->station.get(), endpoint, run_id, time, bytes);
  co_return co_await run_there(*impl_->station, std::move(there));
}

Mesh::TransportFactory tcp_factory(transport::TransportOptions options, transport::Factory make) {
  if (options.congestion_control.empty()) options.congestion_control = "auto";
  options.stall_timeout = kNoStallLimit;
  return [options, make = std::move(make)](Executor executor) { return make(executor, options); };
}

}  // namespace centroid::collective
