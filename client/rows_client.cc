#include "client/rows_client.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "common/async/io_thread.h"
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
  std::uint64_t sequence = 0;
  std::optional<proto::RowsOpenReply> opened;  ///< the last
  std::vector<std::byte> payload;

  IoThread thread{"rows"};
  std::unique_ptr<transport::Transport> transport = transport::make_tcp(thread.executor());
  TaskGroup tasks{thread.executor()};
  std::unique_ptr<Session> session;

  Task<Status> on_frame(Session&, transport::InFrame frame) override {
    co_return Error(ErrorCode::kInvalidArgument, "the server sent kind " +
                                                     std::to_string(frame.header.kind) +
                                                     " to a client of rows, unasked");
  }

  static Task<void> read(Impl* self) { (void)co_await self->session->run(*self); }

  static Task<void> drop(Impl* self) {
    if (!self->session) co_return;
    self->session->close(Error(ErrorCode::kCancelled, "the client closes"));
    co_await self->tasks.join();
    self->session.reset();
  }

  static Task<Status> connect(Impl* self, TimePoint deadline) {
    co_await drop(self);
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
    self->opened = reply;
    co_return Status();
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
    std::optional<std::uint64_t> sent_to;
    for (;;) {
      CENTROID_CO_TRY(co_await ensure(self, deadline));
      const std::uint64_t incarnation = self->opened->incarnation;
      const bool is_push = kind == proto::RowsKind::kPush;
      if (is_push && sent_to && *sent_to != incarnation)
        co_return Error(ErrorCode::kAborted, "the server of table '" + self->table +
                                                 "' began anew while a push had no answer: "
                                                 "whether it counts is not known");
      sent_to = incarnation;
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
    return thread.wait(ask(this, kind, static_cast<std::uint32_t>(keys.size()), deadline));
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

RowsClient::~RowsClient() { impl_->thread.wait(Impl::drop(impl_.get())); }

Result<std::unique_ptr<RowsClient>> RowsClient::open(RowsClientOptions options, std::string table) {
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->table = std::move(table);
  const TimePoint deadline = in(impl->options.timeout);
  std::unique_ptr<RowsClient> client(new RowsClient(std::move(impl)));
  Impl& self = *client->impl_;
  CENTROID_TRY(self.thread.wait(Impl::ensure(&self, deadline)));
  return client;
}

std::uint32_t RowsClient::dim() const { return impl_->opened->dim; }
std::uint32_t RowsClient::max_rows() const { return impl_->opened->max_rows; }

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
    keys = keys.subspan(n);
    gradients = gradients.subspan(n * dim());
  }
  return {};
}

}  // namespace centroid::client
