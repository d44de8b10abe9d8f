#pragma once

#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "tests/support/certificates.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/in_process_transport.h"
#include "transport/session.h"

namespace centroid::transport {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

inline Deadline in(Duration time) { return std::chrono::steady_clock::now() + time; }

/// Run `task` on `thread` and wait for it; a hang stops the program with a message instead of the
/// test's time limit.
template <class T>
T within(IoThread& thread, Task<T> task, Duration limit = seconds(20)) {
  auto future = boost::asio::co_spawn(thread.context(), to_optional(std::move(task)),
                                      boost::asio::use_future);
  if (future.wait_for(limit) != std::future_status::ready) {
    std::cerr << "hang: a task did not end in time\n";
    std::abort();
  }
  if constexpr (std::is_void_v<T>)
    future.get();
  else
    return *future.get();
}

/// What the test peers understand.
enum TestKind : std::uint16_t {
  kEcho = 20,    ///< request: answered with its own head and payload
  kRefuse = 21,  ///< request: answered with not_found "no such chunk"
  kLater = 22,   ///< request: kept until kFlush
  kFlush = 23,   ///< answers everything kept
  kData = 24,    ///< one-way: payload held until released
  kDrop = 25,    ///< one-way: payload left to the session
  kStop = 26,    ///< one-way: the sink fails with aborted "round 7 has moved on"
  kThrow = 27,   ///< one-way: the sink throws
};

class TestSink final : public FrameSink {
 public:
  bool releases_at_once = true;
  std::uint64_t held = 0, max_held = 0, got = 0;
  std::size_t frames = 0;
  std::vector<std::uint64_t> sizes;
  std::vector<FrameHeader> kept;
  std::optional<Event> changed;

  Task<Status> on_frame(Session& session, InFrame frame) override {
    const auto kind = frame.header.kind;
    ++frames;
    if (changed) changed->notify_all();
    if (kind == kStop) co_return Error(ErrorCode::kAborted, "round 7 has moved on");
    if (kind == kThrow) throw std::runtime_error("thrown in a sink");
    if (kind == kDrop) co_return Status();
    std::vector<std::byte> payload(frame.header.payload_bytes);
    if (!payload.empty()) CENTROID_CO_TRY(co_await session.read_payload(payload));
    switch (kind) {
      case kEcho:
        co_return co_await session.respond(frame.header, frame.head, payload);
      case kRefuse: {
        Error why(ErrorCode::kNotFound, "no such chunk");
        co_return co_await session.respond_error(frame.header, std::move(why));
      }
      case kLater:
        kept.push_back(frame.header);
        co_return Status();
      case kFlush:
        for (const FrameHeader& header : kept)
          CENTROID_CO_TRY(
              co_await session.respond(header, as_bytes("late"), as_bytes("late payload")));
        kept.clear();
        co_return Status();
      default:
        break;
    }
    got += payload.size();
    held += payload.size();
    max_held = std::max(max_held, held);
    sizes.push_back(payload.size());
    if (releases_at_once) release(session, payload.size());
    co_return Status();
  }

  void release(Session& session, std::uint64_t bytes) {
    held -= bytes;
    session.release_credit(bytes);
  }
};

/// One end: a thread, a transport, a session with its sink. Used on its thread only.
struct Node {
  explicit Node(std::shared_ptr<IoThread> t) : thread(std::move(t)), group(thread->executor()) {
    sink.changed.emplace(thread->executor());
    done.emplace(thread->executor());
  }
  std::shared_ptr<IoThread> thread;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Listener> listener;
  TaskGroup group;
  TestSink sink;
  std::unique_ptr<Session> session;
  std::optional<Error> failed;  ///< why no session came to be
  std::optional<Error> ended;   ///< what run returned
  std::optional<Event> done;    ///< notified when failed or ended
};

inline Task<void> run_session(Node& node) {
  Error why = co_await node.session->run(node.sink);
  node.ended.emplace(std::move(why));
  node.done->notify_all();
}

inline Task<void> serve(Node& node, Greeting greeting, Deadline deadline) {
  auto connection = co_await node.listener->accept();
  if (!connection.ok()) {
    node.failed.emplace(connection.error());
    node.done->notify_all();
    co_return;
  }
  auto session =
      co_await Session::accept(std::move(connection).value(), std::move(greeting), deadline);
  if (!session.ok()) {
    node.failed.emplace(session.error());
  } else {
    node.session = std::move(session).value();
    node.group.spawn(run_session(node));
  }
  node.done->notify_all();
}

inline Task<Result<Endpoint>> start_server(Node& node, Endpoint endpoint, Greeting greeting,
                                           Deadline deadline) {
  auto listener = node.transport->listen(endpoint);
  if (!listener.ok()) co_return listener.error();
  node.listener = std::move(listener).value();
  node.group.spawn(serve(node, std::move(greeting), deadline));
  co_return node.listener->endpoint();
}

inline Task<Status> start_client(Node& node, Endpoint endpoint, Greeting greeting,
                                 Deadline deadline) {
  auto session =
      co_await connect_session(*node.transport, std::move(endpoint), std::move(greeting), deadline);
  if (!session.ok()) {
    node.failed.emplace(session.error());
    co_return session.error();
  }
  node.session = std::move(session).value();
  node.group.spawn(run_session(node));
  co_return Status();
}

/// Until the node has a session, or an error instead.
inline Task<bool> until_started(Node& node) {
  const Deadline limit = in(seconds(10));
  while (!node.session && !node.failed)
    if (!co_await node.done->wait(limit)) co_return false;
  co_return true;
}

inline Task<bool> until_ended(Node& node) {
  const Deadline limit = in(seconds(10));
  while (!node.ended && !node.failed)
    if (!co_await node.done->wait(limit)) co_return false;
  co_return true;
}

inline Task<bool> until_frames(Node& node, std::size_t count) {
  const Deadline limit = in(seconds(10));
  while (node.sink.frames < count)
    if (!co_await node.sink.changed->wait(limit)) co_return false;
  co_return true;
}

/// End of a test: whatever is open closes, everything is joined and destroyed on its own thread.
inline Task<void> stop(Node& node) {
  Error why(ErrorCode::kCancelled, "the test ends");
  if (node.session) node.session->close(std::move(why));
  node.group.cancel();  // an accept that still waits
  co_await node.group.join();
  node.session.reset();
  node.listener.reset();
}

struct World {
  std::string transport;  ///< "inprocess", "tcp" or "tls"
  bool has_two_threads = false;
};

inline std::vector<World> worlds() {
  std::vector<World> out;
  for (const char* const transport : {"inprocess", "tcp", "tls"}) {
    out.push_back({.transport = transport, .has_two_threads = false});
    out.push_back({.transport = transport, .has_two_threads = true});
  }
  return out;
}

inline std::string world_name(const ::testing::TestParamInfo<World>& info) {
  return info.param.transport + (info.param.has_two_threads ? "_two_threads" : "_one_thread");
}

/// A server and a client on every kind of transport.
class SessionWorld {
 public:
  explicit SessionWorld(const World& world, FaultPlan client_faults = {})
      : world_(world),
        server(std::make_shared<IoThread>("server")),
        client(world.has_two_threads ? std::make_shared<IoThread>("client") : server.thread) {
    auto hub = make_inprocess_hub();
    server.transport = make(server, hub);
    client.transport = make_faulty(make(client, hub), std::move(client_faults));
  }
  ~SessionWorld() {
    within(*client.thread, stop(client));
    within(*server.thread, stop(server));
  }

  /// Handshake and run on both ends; false when one failed (see Node::failed).
  bool start(Greeting server_greeting, Greeting client_greeting, Duration limit = minutes(1)) {
    listen(std::move(server_greeting), limit);
    const Status opened = within(
        *client.thread, start_client(client, endpoint, std::move(client_greeting), in(limit)));
    EXPECT_TRUE(within(*server.thread, until_started(server)));
    return opened.ok() && server.session;
  }
  void listen(Greeting greeting, Duration limit = minutes(1)) {
    Endpoint wanted;
    if (world_.transport == "inprocess") wanted.host = "server";
    auto made =
        within(*server.thread, start_server(server, wanted, std::move(greeting), in(limit)));
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    endpoint = *made;
  }

  static Greeting greeting(std::string role, std::string name) {
    Greeting out;
    out.role = std::move(role);
    out.name = std::move(name);
    return out;
  }

 private:
  std::unique_ptr<Transport> make(Node& node, const std::shared_ptr<InProcessHub>& hub) {
    TransportOptions options;
    if (world_.transport == "tls") options.layer = test::mutual_tls();
    if (world_.transport != "inprocess") return make_tcp(node.thread->executor(), options);
    return make_inprocess(node.thread->executor(), hub);
  }

  World world_;

 public:
  Endpoint endpoint;
  Node server;
  Node client;
};

}  // namespace centroid::transport
