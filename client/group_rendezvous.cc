#include "client/group_rendezvous.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>

#include "common/async/task_group.h"
#include "transport/handshake.h"

namespace centroid::client {

using transport::Connection;
using transport::Endpoint;
using transport::InFrame;
using transport::OutFrame;

namespace {

/// Kinds of frames; on the wire.
enum Kind : std::uint16_t { kArrive = 0x5201, kAddresses = 0x5202, kRefused = 0x5203 };

constexpr std::chrono::milliseconds kRetry{50};
constexpr std::string_view kMagic = "centroid group 1";

/// What a rank says: kMagic, rank, world, token and address, a line each.
struct Arrival {
  std::uint32_t rank = 0, world = 0;
  std::string token, address;
};

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (true) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

bool parse_number(const std::string& text, std::uint32_t& number) {
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, number).ptr == end && !text.empty();
}

std::optional<Arrival> parse_arrival(Bytes head) {
  const auto lines = lines_of(text_of(head));
  Arrival arrival;
  if (lines.size() != 5 || lines[0] != kMagic || !parse_number(lines[1], arrival.rank) ||
      !parse_number(lines[2], arrival.world))
    return std::nullopt;
  arrival.token = lines[3];
  arrival.address = lines[4];
  return arrival;
}

transport::TransportOptions transport_options() {
  transport::TransportOptions options;
  options.limits.max_head_bytes = transport::kMaxHeadBytes;
  return options;
}

Task<void> send(Connection& connection, Kind kind, std::string text) {
  const std::vector<std::byte> head = bytes_of(text);
  OutFrame frame;
  frame.kind = kind;
  frame.head = head;
  (void)co_await connection.write(frame);
}

/// Rank 0: waits until every rank has said its address.
class Collection {
 public:
  Collection(const PeerOptions& options, Executor executor, const std::string& address)
      : options_(options),
        transport_(transport::make_tcp(executor, transport_options())),
        changed_(executor),
        tasks_(executor),
        addresses_(options.world),
        connections_(options.world) {
    addresses_[0] = address;
  }

  static Task<Result<std::vector<std::string>>> run(Collection* self, Endpoint place,
                                                    TimePoint deadline) {
    CENTROID_CO_ASSIGN(const auto listener, self->transport_->listen(place));
    self->tasks_.spawn(accept(self, listener.get()));
    while (!self->missing().empty() && centroid::now() < deadline)
      (void)co_await self->changed_.wait(deadline);
    const std::string missing = self->missing();
    std::string all;
    for (const std::string& address : self->addresses_) all += (all.empty() ? "" : "\n") + address;
    const std::string why = missing + " did not come to " + place.to_string() + " within " +
                            std::to_string(self->options_.timeout.count()) + " ms";
    const Kind kind = missing.empty() ? kAddresses : kRefused;
    const std::string text = missing.empty() ? all : why;
    for (const auto& connection : self->connections_) {
      if (!connection) continue;
      co_await send(*connection, kind, text);
    }
    listener->close();
    self->tasks_.cancel();
    co_await self->tasks_.join();
    if (!missing.empty()) co_return Error(ErrorCode::kDeadlineExceeded, why);
    co_return self->addresses_;
  }

 private:
  static Task<void> accept(Collection* self, transport::Listener* listener) {
    while (true) {
      auto connection = co_await listener->accept();
      if (!connection.ok()) co_return;
      self->tasks_.spawn(answer(self, std::move(*connection)));
    }
  }

  static Task<void> answer(Collection* self, std::unique_ptr<Connection> connection) {
    const auto frame = co_await connection->read_header();
    if (!frame.ok() || frame->header.kind != kArrive || frame->header.payload_bytes != 0) co_return;
    const auto arrival = parse_arrival(frame->head);
    if (!arrival) co_return;
    const std::string refusal = self->refusal_of(*arrival);
    if (!refusal.empty()) {
      co_await send(*connection, kRefused, refusal);
      co_return;
    }
    self->addresses_[arrival->rank] = arrival->address;
    const auto before = std::exchange(self->connections_[arrival->rank], std::move(connection));
    self->changed_.notify_all();
    if (before)
      co_await send(*before, kRefused,
                    "another process came as rank " + std::to_string(arrival->rank));
  }

  std::string refusal_of(const Arrival& arrival) const {
    if (!transport::is_same_secret(options_.token, arrival.token)) return "the token is refused";
    if (arrival.world != options_.world)
      return "rank " + std::to_string(arrival.rank) + " has world " +
             std::to_string(arrival.world) + ", rank 0 has " + std::to_string(options_.world);
    if (arrival.rank == 0 || arrival.rank >= options_.world)
      return "rank " + std::to_string(arrival.rank) + " is taken or not below the world of " +
             std::to_string(options_.world);
    return "";
  }

  /// "ranks 2, 5"; empty: none.
  std::string missing() const {
    std::string text;
    for (std::size_t rank = 0; rank < addresses_.size(); ++rank)
      if (addresses_[rank].empty()) text += (text.empty() ? "rank " : ", ") + std::to_string(rank);
    return text;
  }

  const PeerOptions& options_;
  const std::unique_ptr<transport::Transport> transport_;
  Event changed_;
  TaskGroup tasks_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

/// The other ranks: call rank 0 until it answers.
class Caller {
 public:
  Caller(const PeerOptions& options, Executor executor)
      : options_(options),
        executor_(executor),
        transport_(transport::make_tcp(executor, transport_options())) {}

  static Task<Result<std::vector<std::string>>> run(Caller* self, Endpoint place,
                                                    std::string address, TimePoint deadline) {
    while (true) {
      auto tried = co_await try_once(self, place, address, deadline);
      if (tried.ok() || tried.error().code() != ErrorCode::kUnavailable) co_return tried;
      if (centroid::now() + kRetry >= deadline) {
        co_return Error(ErrorCode::kDeadlineExceeded,
                        "rank 0 did not answer at " + place.to_string() + " within " +
                            std::to_string(self->options_.timeout.count()) +
                            " ms: " + tried.error().message());
      }
      Event pause(self->executor_);
      (void)co_await pause.wait(centroid::now() + kRetry);
    }
  }

 private:
  static Task<Result<std::vector<std::string>>> try_once(Caller* self, Endpoint place,
                                                         std::string address, TimePoint deadline) {
    CENTROID_CO_ASSIGN(const auto connection, co_await self->transport_->connect(place, deadline));
    Timer timer(self->executor_, deadline + kRetry);
    const auto is_over = std::make_shared<bool>(false);
    timer.async_wait([&connection, is_over](const boost::system::error_code& error) {
      if (error || *is_over) return;
      connection->close(Error(ErrorCode::kDeadlineExceeded, "rank 0 sent nothing"));
    });
    std::string hello(kMagic);
    hello += "\n" + std::to_string(self->options_.rank) + "\n";
    hello += std::to_string(self->options_.world) + "\n" + self->options_.token + "\n" + address;
    co_await send(*connection, kArrive, std::move(hello));
    const auto frame = co_await connection->read_header();
    *is_over = true;
    timer.cancel();
    if (!frame.ok()) co_return frame.error();
    const std::string text = text_of(frame->head);
    if (frame->header.kind == kRefused)
      co_return Error(ErrorCode::kFailedPrecondition, place.to_string() + " refuses: " + text);
    const auto addresses = lines_of(text);
    if (frame->header.kind != kAddresses || addresses.size() != self->options_.world)
      co_return Error(ErrorCode::kFailedPrecondition,
                      place.to_string() + " is no rank 0 of a Centroid group");
    co_return addresses;
  }

  const PeerOptions& options_;
  const Executor executor_;
  const std::unique_ptr<transport::Transport> transport_;
};

}  // namespace

std::string listening_host(const Endpoint& place) {
  if (place.is_loopback()) return place.host;
  return place.host.find(':') == std::string::npos ? "0.0.0.0" : "::";
}

Result<std::vector<std::string>> exchange_addresses(const PeerOptions& options,
                                                    const Endpoint& place,
                                                    const std::string& address) {
  if (options.token.find('\n') != std::string::npos)
    return Error(ErrorCode::kInvalidArgument, "the token has a line break");
  if (options.world == 1) return std::vector<std::string>{address};
  boost::asio::io_context context{1};
  const TimePoint deadline = centroid::now() + options.timeout;
  const auto run = [&context](Task<Result<std::vector<std::string>>> task) {
    auto found =
        boost::asio::co_spawn(context, to_optional(std::move(task)), boost::asio::use_future);
    context.run();
    return std::move(*found.get());
  };
  if (options.rank == 0) {
    Endpoint here = place;
    here.host = listening_host(place);
    Collection collection(options, context.get_executor(), address);
    return run(Collection::run(&collection, here, deadline));
  }
  Caller caller(options, context.get_executor());
  return run(Caller::run(&caller, place, address, deadline));
}

}  // namespace centroid::client
