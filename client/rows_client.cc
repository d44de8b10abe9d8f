#include "client/rows_client.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>

#include "common/async/task_group.h"
#include "common/proto/rows.h"
#include "transport/session.h"

namespace centroid::client {

using transport::Reply;
using transport::Session;

namespace {

constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{1000};

std::uint64_t draw() {
  std::random_device device;
  // 0 is nobody.
  return ((std::uint64_t{device()} << 32) ^ device()) | 1;
}

TimePoint in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

}  // namespace

struct RowsClient::Impl final : transport::FrameSink {
  RowsClientOptions options;
  std::string table;
  const std::uint64_t client = draw();
  std::uint64_t sequence = 0;   ///< of the last push
  std::uint64_t answered = 0;   ///< highest sequence that was answered as applied
  std::uint64_t lost = 0;       ///< of those: not in the rows
  std::optional<Error> notice;  ///< of a loss, for the call that found it or the next
  std::optional<proto::RowsOpenReply> opened;  ///< the last
  std::vector<std::byte> payload;

  // Run by whoever calls: a thread of its own would cost each call two wake-ups.
  boost::asio::io_context context{1};
  std::mutex turn;  ///< who runs the context
  std::unique_ptr<transport::Transport> transport;
  TaskGroup tasks{context.get_executor()};
  std::unique_ptr<Session> session;

  // Says that this client lives, while nobody calls.
  std::thread keeper;
  std::condition_variable ended;
  bool is_ending = false;
  TimePoint last_call{};

  /// Run a coroutine to its end; the turn is the caller's.
  template <class T>
  T run(Task<T> task) {
    auto result =
        boost::asio::co_spawn(context, to_optional(std::move(task)), boost::asio::use_future);
    const std::chrono::seconds now{0};
    while (result.wait_for(now) != std::future_status::ready)
      if (context.run_one() == 0) context.restart();
    return *result.get();
  }

  Task<Status> on_frame(Session&, transport::InFrame frame) override {
    if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kHeartbeat))
      co_return Status();
    co_return Error(ErrorCode::kInvalidArgument, "the server sent kind " +
                                                     std::to_string(frame.header.kind) +
                                                     " to a client of rows, unasked");
  }

  static Task<void> read(Impl* self) { (void)co_await self->session->run(*self); }

  void keep(std::chrono::milliseconds every) {
    std::unique_lock lock(turn);
    while (!is_ending) {
      ended.wait_for(lock, every);
      const bool is_idle = session && !session->is_closed() && in(-every) >= last_call;
      if (is_ending || !is_idle) continue;
      (void)run(beat(this, in(every)));
      context.poll();  // what has come meanwhile
    }
  }
  static Task<Status> beat(Impl* self, TimePoint deadline) {
    const auto kind = static_cast<std::uint16_t>(proto::Kind::kHeartbeat);
    co_return co_await self->session->send(kind, Bytes(), Bytes(), deadline);
  }

  static Task<Status> drop(Impl* self) {
    if (!self->session) co_return Status();
    self->session->close(Error(ErrorCode::kCancelled, "the client closes"));
    self->tasks.cancel();
    co_await self->tasks.join();
    self->session.reset();
    co_return Status();
  }

  static Task<Status> connect(Impl* self, TimePoint deadline) {
    CENTROID_CO_TRY(co_await drop(self));
    transport::Greeting greeting;
    greeting.role = "client";
    greeting.name = self->options.name;
    greeting.token = self->options.token;
    auto made = co_await transport::connect_session(*self->transport, self->options.server,
                                                    greeting, deadline);
    if (!made.ok()) co_return made.error();
    self->session = std::move(made).value();
    self->tasks.spawn(read(self));
    proto::RowsOpen open;
    open.client = self->client;
    open.table = self->table;
    const auto head = proto::encode(open);
    const auto answer = co_await self->session->request(
        static_cast<std::uint16_t>(proto::RowsKind::kOpen), head, Bytes(), deadline);
    if (!answer.ok()) co_return answer.error();
    CENTROID_CO_ASSIGN(const auto reply, proto::decode<proto::RowsOpenReply>(answer->head));
    if (self->opened && self->opened->dim != reply.dim)
      co_return Error(ErrorCode::kFailedPrecondition,
                      "table '" + self->table + "' has dim " + std::to_string(reply.dim) +
                          " now, it had " + std::to_string(self->opened->dim));
    if (self->opened && self->opened->incarnation != reply.incarnation) self->compare(reply);
    self->opened = reply;
    co_return Status();
  }

  /// With a server that began anew: what it has of our pushes.
  void compare(const proto::RowsOpenReply& reply) {
    if (reply.newest >= answered) return;
    lost += answered - reply.newest;
    notice = Error(
        ErrorCode::kAborted,
        "the server of table '" + table + "' began anew " +
            (reply.restored_from.empty() ? std::string("with empty tables")
                                         : "from " + reply.restored_from) +
            ": its rows hold the pushes of this client up to number " +
            std::to_string(reply.newest) + " of the " + std::to_string(answered) +
            " that were answered. Nothing of this call was done; the next one goes on from there");
    answered = reply.newest;
  }

  /// Connect unless connected, again and again until the deadline.
  static Task<Status> ensure(Impl* self, TimePoint deadline) {
    std::chrono::milliseconds pause = kFirstPause;
    for (;;) {
      if (self->session && !self->session->is_closed()) co_return Status();
      Status connected = co_await connect(self, deadline);
      if (connected.ok() || connected.error().code() != ErrorCode::kUnavailable)
        co_return connected;
      const TimePoint again = in(pause);
      if (again >= deadline) co_return connected;
      co_await sleep_until(again);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  /// One request with `payload`, sent again after a lost connection.
  static Task<Result<Reply>> ask(Impl* self, proto::RowsKind kind, std::uint32_t rows,
                                 TimePoint deadline) {
    const bool is_push = kind == proto::RowsKind::kPush;
    for (;;) {
      CENTROID_CO_TRY(co_await ensure(self, deadline));
      if (self->notice) {
        const Error notice = *std::exchange(self->notice, std::nullopt);
        co_return notice;
      }
      proto::RowsPull pull;
      pull.table = self->opened->table;
      pull.rows = rows;
      proto::RowsPush push;
      push.table = self->opened->table;
      push.rows = rows;
      push.sequence = self->sequence;
      std::vector<std::byte> head;
      if (is_push)
        head = proto::encode(push);
      else
        head = proto::encode(pull);
      auto reply = co_await self->session->request(static_cast<std::uint16_t>(kind), head,
                                                   self->payload, deadline);
      if (reply.ok() || reply.error().code() != ErrorCode::kUnavailable) co_return reply;
      if (std::chrono::steady_clock::now() >= deadline) co_return reply;
    }
  }

  Result<Reply> call(proto::RowsKind kind, std::span<const std::uint64_t> keys,
                     std::span<const float> gradients, TimePoint deadline) {
    payload.resize(keys.size_bytes() + gradients.size_bytes());
    std::memcpy(payload.data(), keys.data(), keys.size_bytes());
    if (!gradients.empty())
      std::memcpy(payload.data() + keys.size_bytes(), gradients.data(), gradients.size_bytes());
    const std::lock_guard lock(turn);
    Result<Reply> reply = run(ask(this, kind, static_cast<std::uint32_t>(keys.size()), deadline));
    last_call = std::chrono::steady_clock::now();
    return reply;
  }

  Status check_size(std::size_t keys, std::size_t floats) const {
    if (floats == keys * opened->dim) return {};
    return Error(ErrorCode::kInvalidArgument,
                 "table '" + table + "' has dim " + std::to_string(opened->dim) + ": " +
                     std::to_string(keys) + " keys need " + std::to_string(keys * opened->dim) +
                     " floats, not " + std::to_string(floats));
  }
};

RowsClient::RowsClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RowsClient::~RowsClient() {
  {
    const std::lock_guard lock(impl_->turn);
    impl_->is_ending = true;
  }
  impl_->ended.notify_all();
  if (impl_->keeper.joinable()) impl_->keeper.join();
  (void)impl_->run(Impl::drop(impl_.get()));
}

Result<std::unique_ptr<RowsClient>> RowsClient::open(RowsClientOptions options, std::string table) {
  if (options.timeout >= proto::kRowsClientKept)
    return Error(ErrorCode::kInvalidArgument,
                 "timeout is " + std::to_string(options.timeout.count()) +
                     " ms, it must be below 10 minutes: the server forgets then what was pushed");
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->table = std::move(table);
  transport::TransportOptions how;
  if (impl->options.tls) {
    CENTROID_ASSIGN(how.layer, transport::make_tls(*impl->options.tls));
  }
  impl->transport = transport::make_tcp(impl->context.get_executor(), how);
  const TimePoint deadline = in(impl->options.timeout);
  std::unique_ptr<RowsClient> client(new RowsClient(std::move(impl)));
  Impl& self = *client->impl_;
  CENTROID_TRY(self.run(Impl::ensure(&self, deadline)));
  const std::chrono::milliseconds every(std::max(self.opened->lease_ms / 4, 10u));
  self.keeper = std::thread([&self, every] { self.keep(every); });
  return client;
}

std::uint32_t RowsClient::dim() const { return impl_->opened->dim; }
std::uint32_t RowsClient::max_rows() const { return impl_->opened->max_rows; }
std::uint64_t RowsClient::pushed() const { return impl_->answered; }
std::uint64_t RowsClient::lost() const { return impl_->lost; }

Status RowsClient::pull(std::span<const std::uint64_t> keys, std::span<float> out) {
  CENTROID_TRY(impl_->check_size(keys.size(), out.size()));
  const TimePoint deadline = in(impl_->options.timeout);
  while (!keys.empty()) {
    const std::size_t n = std::min<std::size_t>(keys.size(), max_rows());
    CENTROID_ASSIGN(const Reply reply,
                    impl_->call(proto::RowsKind::kPull, keys.first(n), {}, deadline));
    const std::size_t floats = n * dim();
    if (reply.payload.size() != floats * sizeof(float))
      return Error(ErrorCode::kDataLoss, "table '" + impl_->table + "': " + std::to_string(n) +
                                             " rows came as " +
                                             std::to_string(reply.payload.size()) + " bytes");
    std::memcpy(out.data(), reply.payload.data(), reply.payload.size());
    keys = keys.subspan(n);
    out = out.subspan(floats);
  }
  return {};
}

Status RowsClient::push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
  CENTROID_TRY(impl_->check_size(keys.size(), gradients.size()));
  const TimePoint deadline = in(impl_->options.timeout);
  while (!keys.empty()) {
    const std::size_t n = std::min<std::size_t>(keys.size(), max_rows());
    ++impl_->sequence;
    CENTROID_ASSIGN(const Reply reply, impl_->call(proto::RowsKind::kPush, keys.first(n),
                                                   gradients.first(n * dim()), deadline));
    CENTROID_TRY(proto::decode<proto::RowsPushReply>(reply.head));
    impl_->answered = impl_->sequence;
    keys = keys.subspan(n);
    gradients = gradients.subspan(n * dim());
  }
  return {};
}

}  // namespace centroid::client
