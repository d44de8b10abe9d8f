#include "client/pull.h"

#include <algorithm>
#include <new>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>

#include "common/async/task_group.h"
#include "common/base/log.h"
#include "common/proto/pulls.h"
#include "transport/connector.h"
#include "transport/session.h"

namespace centroid::client {

using proto::PullKind;
using transport::Session;

namespace {

constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{400};
/// If another server may lead: time without a byte of the values; and while it copies them.
constexpr std::chrono::milliseconds kSilence{transport::kPulseOfSeveral.silence}, kCopy{30'000};
constexpr std::chrono::milliseconds kCheckInterval{500};
constexpr std::uint64_t kWindow = 16u << 20;

TimePoint in(std::chrono::milliseconds time) { return centroid::now() + time; }

/// Receives the frames after the answer.
class Receiver final : public transport::FrameSink {
 public:
  explicit Receiver(Executor executor) : changed(executor) {}

  Task<Status> on_frame(Session& session, transport::InFrame frame) override {
    if (frame.header.kind == static_cast<std::uint16_t>(proto::Kind::kWait)) {
      CENTROID_CO_ASSIGN(const auto wait, proto::decode<proto::Wait>(frame.head));
      log::info("pull.stalled", {{"ms", wait.ms}, {"why", wait.what}});
      co_return Status();
    }
    if (frame.header.kind != static_cast<std::uint16_t>(PullKind::kValues))
      co_return Error(ErrorCode::kInvalidArgument,
                      "the server sent kind " + std::to_string(frame.header.kind) + " to a reader");
    CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::Values>(frame.head));
    while (!is_open) {  // the answer is here; its reader has not run yet
      const bool goes_on = co_await changed.wait(in(kSilence));
      if (!goes_on && !is_open)
        co_return Error(ErrorCode::kInvalidArgument, "the server sent values before its answer");
    }
    const std::uint64_t bytes = frame.header.payload_bytes;
    const std::span<float> left = into.subspan(received);
    if (head.offset != received || bytes % sizeof(float) != 0 || bytes > left.size_bytes())
      co_return Error(ErrorCode::kInvalidArgument,
                      "the server sent " + std::to_string(bytes) + " bytes from value " +
                          std::to_string(head.offset) + " of " + std::to_string(into.size()) +
                          ", after " + std::to_string(received));
    const auto piece = std::as_writable_bytes(left).first(bytes);
    CENTROID_CO_TRY(co_await session.read_payload(piece));
    session.release_credit(bytes);
    received += bytes / sizeof(float);
    changed.notify_all();
    co_return Status();
  }

  bool is_complete() const { return is_open && received == into.size(); }

  Event changed;
  std::span<float> into;
  std::uint64_t received = 0;
  bool is_open = false;
  std::optional<Error> ended;
};

struct Puller {
  const PullOptions& options;
  std::vector<std::byte> request;
  TimePoint deadline;
  boost::asio::io_context context{1};
  std::optional<transport::Connector> connector{};
  std::unique_ptr<transport::Transport> transport;
  PulledTensors out;

  static Task<void> read(Session* session, Receiver* receiver) {
    receiver->ended = co_await session->run(*receiver);
    receiver->changed.notify_all();
  }

  Status take(Bytes head, Bytes payload) {
    CENTROID_ASSIGN(const auto reply, proto::decode<proto::PullReply>(head));
    out = PulledTensors();
    out.version = reply.version;
    CENTROID_ASSIGN(out.manifest, proto::decode_manifest(payload));
    CENTROID_TRY(validate(out.manifest));  // the sum cannot overflow
    std::uint64_t elements = 0;
    for (const TensorInfo& tensor : out.manifest) {
      out.begins.push_back(elements);
      elements += tensor.elements();
    }
    if (elements != reply.elements)
      return Error(ErrorCode::kInvalidArgument,
                   "the server announced " + std::to_string(reply.elements) +
                       " values, its tensors have " + std::to_string(elements));
    const std::uint64_t bytes = elements * sizeof(float);
    if (bytes > options.max_bytes)
      return Error(ErrorCode::kResourceExhausted,
                   "the tensors take " + std::to_string(bytes) + " bytes, at most " +
                       std::to_string(options.max_bytes) + " are taken (max_bytes)");
    try {
      out.values = Buffer(bytes);
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kResourceExhausted,
                   "no memory for tensors of " + std::to_string(bytes) + " bytes");
    }
    return {};
  }

  /// From one server, over one session.
  static Task<Status> ask(Puller* self, Session* session, Receiver* receiver) {
    const auto kind = static_cast<std::uint16_t>(PullKind::kPull);
    // It is silent while it copies: another may lead by then.
    TimePoint limit = self->deadline;
    if (self->connector->is_several()) limit = std::min(limit, in(kCopy));
    const auto answer = co_await session->request(kind, self->request, Bytes(), limit);
    if (!answer.ok()) co_return answer.error();
    CENTROID_CO_TRY(self->take(answer->head, answer->payload));
    receiver->into = self->out.values.as<float>();
    receiver->is_open = true;
    receiver->changed.notify_all();
    while (!receiver->is_complete()) {
      if (receiver->ended) co_return *receiver->ended;
      if (in(std::chrono::milliseconds(0)) >= self->deadline)
        co_return Error(ErrorCode::kDeadlineExceeded, std::to_string(receiver->received) + " of " +
                                                          std::to_string(receiver->into.size()) +
                                                          " values arrived in time");
      const bool is_silent = session->connection().last_received() < in(-kSilence);
      if (is_silent && self->connector->is_several())
        co_return Error(ErrorCode::kDeadlineExceeded, "the server fell silent");
      (void)co_await receiver->changed.wait(std::min(self->deadline, in(kCheckInterval)));
    }
    co_return Status();
  }

  static Task<Status> try_once(Puller* self) {
    transport::Greeting greeting;
    greeting.role = "client";
    greeting.name = self->options.name;
    greeting.token = self->options.token;
    greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
    greeting.limits.max_payload_bytes = std::max<std::uint64_t>(kWindow, proto::kMaxManifestBytes);
    greeting.credit_bytes = kWindow;
    auto made = co_await self->connector->connect(*self->transport, greeting, self->deadline);
    if (!made.ok()) co_return made.error();
    const auto session = std::move(made).value();
    Receiver receiver(self->context.get_executor());
    TaskGroup tasks(self->context.get_executor());
    tasks.spawn(read(session.get(), &receiver));
    const Status asked = co_await ask(self, session.get(), &receiver);
    session->close(Error(ErrorCode::kCancelled, "the client has all values"));
    tasks.cancel();
    co_await tasks.join();
    co_return asked;
  }

  static Task<Status> pull(Puller* self) {
    for (;;) {
      const Status tried = co_await try_once(self);
      if (tried.ok()) co_return tried;
      const Error& why = tried.error();
      const bool is_worth_another = why.code() == ErrorCode::kUnavailable ||
                                    why.code() == ErrorCode::kDeadlineExceeded ||
                                    why.code() == ErrorCode::kResourceExhausted;
      if (!is_worth_another) co_return tried;
      const Status again = co_await self->connector->retry(why, self->deadline);
      if (!again.ok()) co_return tried;
    }
  }
};

}  // namespace

Result<PulledTensors> pull_tensors(const PullOptions& options,
                                   const std::vector<std::string>& names) {
  proto::Pull requested;
  for (const std::string& name : names) requested.names.push_back({name});
  CENTROID_ASSIGN(auto servers, transport::ServerList::parse(options.servers));
  Puller puller{.options = options,
                .request = proto::encode(requested),
                .deadline = in(options.timeout),
                .transport = nullptr,
                .out = {}};
  if (puller.request.size() > transport::kMaxHeadBytes)
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(names.size()) + " names take " +
                     std::to_string(puller.request.size()) + " bytes, a request has room for " +
                     std::to_string(transport::kMaxHeadBytes) + ": name none for all tensors");
  transport::TransportOptions how;
  how.limits.max_head_bytes = transport::kMaxHeadBytes;
  how.limits.max_payload_bytes = std::max<std::uint64_t>(kWindow, proto::kMaxManifestBytes);
  if (options.tls) {
    CENTROID_ASSIGN(how.layer, transport::make_tls(*options.tls));
  }
  transport::Connector::Options connect;
  connect.servers = std::move(servers);
  connect.first_pause = kFirstPause;
  connect.longest_pause = kLongestPause;
  connect.logs_pauses = false;
  puller.connector.emplace(puller.context.get_executor(), std::move(connect));
  puller.transport = transport::make_tcp(puller.context.get_executor(), how);
  auto result = boost::asio::co_spawn(puller.context, to_optional(Puller::pull(&puller)),
                                      boost::asio::use_future);
  puller.context.run();
  const auto pulled = result.get();
  CENTROID_TRY(*pulled);
  return std::move(puller.out);
}

}  // namespace centroid::client
