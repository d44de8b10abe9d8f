#pragma once

#include <future>
#include <limits>

#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <gmock/gmock.h>

#include "common/async/task_group.h"
#include "common/proto/about.h"
#include "common/proto/messages.h"
#include "tests/support/cluster.h"
#include "tests/support/faulty_transport.h"
#include "tests/unit/temporary_directory.h"
#include "transport/session.h"

namespace centroid::test {

using proto::Kind;
using testing::AllOf;
using testing::HasSubstr;
using transport::InFrame;
using transport::Session;

/// A client written from docs/reference/wire.md that says what the test tells it to say. It answers
/// nothing by itself but the wish for initial parameters.
class Client final : public transport::FrameSink {
 public:
  Client() {
    join.name = "w0";
    join.exchange = "star";
    join.codec = "f32";
    join.batch = 4;
    join.train_samples = 8;
    join.data_fingerprint = 1;
    join.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {4}}};
    greeting.role = "worker";
    greeting.name = "w0";
  }
  ~Client() override {
    run(stop(this));
    thread_.context().stop();
  }

  /// Connect and say Hello.
  Status open(const transport::Endpoint& server) { return run(open_session(this, server)); }
  /// The error of a refused request, or nothing.
  Result<proto::JoinReply> enter() { return run(enter_cluster(this)); }
  template <class M>
  Status send(Kind kind, const M& message, std::size_t payload = 0) {
    return run(send_head(this, kind, proto::encode(message), payload));
  }
  template <class M>
  Status ask(Kind kind, const M& message) {
    return run(ask_head(this, kind, proto::encode(message)));
  }
  /// The round that is open for us, from this number and attempt on.
  std::optional<proto::RoundOpen> round(Round from = Round(1), std::uint32_t attempt = 0) {
    return run(wait_open(this, from, attempt));
  }
  /// The newest round that was opened for us, if one was.
  std::optional<proto::RoundOpen> newest() { return run(look_open(this)); }
  /// Why it waits, as the server says.
  std::optional<proto::Wait> wait() { return run(wait_wait(this)); }
  /// The first reason with this text.
  std::optional<proto::Wait> wait_for_text(const std::string& text) {
    for (int i = 0; i < 30; ++i) {
      const auto told = wait();
      if (!told || told->what.find(text) != std::string::npos) return told;
      run(drop_wait(this));
    }
    return std::nullopt;
  }
  /// After which round it was to keep its state last.
  std::optional<Round> keep() { return run(look_keep(this)); }
  /// What the server takes, as it says in its answer to a Heartbeat.
  std::optional<proto::BeatReply> beat_reply() { return run(wait_beat(this)); }
  bool was_told() const { return wait_.has_value(); }  ///< when nothing comes any more
  /// Hear and say nothing until the handle is gone.
  std::shared_ptr<void> hold() {
    const auto end = std::make_shared<std::promise<void>>();
    std::promise<void> begun;
    boost::asio::post(thread_.context(), [&begun, over = end->get_future().share()] {
      begun.set_value();
      over.wait();
    });
    begun.get_future().wait();
    return {nullptr, [end](void*) { end->set_value(); }};
  }
  std::optional<proto::Finish> finish() { return run(wait_finish(this)); }
  /// From now on our payloads have no checksum, and the server's need none.
  void send_unsummed() { run(begin_unsummed(this)); }
  void accept_without_crc() { run(allow_without_crc(this)); }
  /// A bit of the next frame we write changes on the way.
  void damage_next_write() { *damage_.operations = 0; }
  /// The header of the first result.
  std::optional<transport::FrameHeader> result() { return run(wait_result(this)); }
  /// What the session ended with; the server's Goodbye when it said one.
  std::string ended() { return run(wait_end(this)); }

  /// The numbers of a contribution to `open`, without its end: chunks [from, to).
  void push(const proto::RoundOpen& open, std::size_t to = SIZE_MAX, std::uint32_t from = 0) {
    proto::Push head;
    head.generation = open.generation;
    head.round = open.round;
    head.attempt = open.attempt;
    head.weight = static_cast<double>(open.end - open.begin);
    for (std::uint32_t i = from; i < std::min(to, join.manifest.size()); ++i) {
      head.chunk = ChunkId(i);
      EXPECT_TRUE(send(Kind::kPush, head, join.manifest[i].bytes()).ok());
    }
  }
  /// A whole and right contribution to `open`.
  void contribute(const proto::RoundOpen& open) {
    push(open);
    EXPECT_TRUE(send(Kind::kPushEnd, end_of(open)).ok());
  }
  /// As `contribute`, and as `hold` from before this server can answer.
  std::shared_ptr<void> contribute_and_hold(const proto::RoundOpen& open, Executor server) {
    std::promise<void> is_held;
    boost::asio::post(server, [held = is_held.get_future().share()] { held.wait(); });
    contribute(open);
    auto end = hold();
    is_held.set_value();
    return end;
  }
  static proto::PushEnd end_of(const proto::RoundOpen& open) {
    proto::PushEnd end;
    end.generation = open.generation;
    end.round = open.round;
    end.attempt = open.attempt;
    end.weight = static_cast<double>(open.end - open.begin);
    end.samples = open.end - open.begin;
    return end;
  }

  proto::Join join;
  transport::Greeting greeting;
  bool says_ready = false;  ///< at once, when a round closed without it

 private:
  template <class T>
  T run(Task<T> task) {
    auto future = boost::asio::co_spawn(thread_.context(), to_optional(std::move(task)),
                                        boost::asio::use_future);
    if constexpr (std::is_void_v<T>)
      future.get();
    else
      return *future.get();
  }

  static Task<Status> open_session(Client* self, transport::Endpoint server) {
    auto session = co_await transport::connect_session(*self->transport_, std::move(server),
                                                       self->greeting, self->limit());
    if (!session.ok()) co_return session.error();
    self->session_ = std::move(session).value();
    self->tasks_.spawn(read(self));
    co_return Status();
  }
  static Task<void> read(Client* self) {
    self->cause_ = co_await self->session_->run(*self);
    self->changed_.notify_all();
  }
  static Task<void> begin_unsummed(Client* self) {
    self->session_->send_unsummed();
    co_return;
  }
  static Task<void> allow_without_crc(Client* self) {
    self->session_->accept_without_crc();
    co_return;
  }
  static transport::FaultPlan damage() {
    transport::FaultPlan plan;
    plan.action = transport::FaultPlan::Action::kCorrupt;
    plan.at_operation = 0;
    *plan.operations = std::uint64_t{1} << 40;  // not yet
    return plan;
  }
  static Task<Result<proto::JoinReply>> enter_cluster(Client* self) {
    const auto head = proto::encode(self->join);
    const auto manifest = proto::encode_manifest(self->join.manifest);
    auto reply = co_await self->session_->request(static_cast<std::uint16_t>(Kind::kJoin), head,
                                                  manifest, self->limit());
    if (!reply.ok()) co_return reply.error();
    co_return proto::decode<proto::JoinReply>(reply->head);
  }
  static Task<Status> send_head(Client* self, Kind kind, std::vector<std::byte> head,
                                std::size_t payload_bytes) {
    const std::vector<std::byte> payload(payload_bytes);
    co_return co_await self->session_->send(static_cast<std::uint16_t>(kind), head, payload,
                                            self->limit());
  }
  static Task<Status> ask_head(Client* self, Kind kind, std::vector<std::byte> head) {
    const auto reply = co_await self->session_->request(static_cast<std::uint16_t>(kind), head,
                                                        Bytes(), self->limit());
    co_return reply.ok() ? Status() : Status(reply.error());
  }
  static Task<std::optional<proto::RoundOpen>> wait_open(Client* self, Round from,
                                                         std::uint32_t attempt) {
    const TimePoint deadline = self->limit();
    const auto is_open = [self, from, attempt] {
      return self->open_ && (self->open_->round > from ||
                             (self->open_->round == from && self->open_->attempt >= attempt));
    };
    while (!is_open())
      if (!co_await self->changed_.wait(deadline)) co_return std::nullopt;
    co_return self->open_;
  }
  static Task<std::optional<proto::RoundOpen>> look_open(Client* self) { co_return self->open_; }
  static Task<std::optional<proto::Wait>> wait_wait(Client* self) {
    const TimePoint deadline = self->limit();
    while (!self->wait_)
      if (!co_await self->changed_.wait(deadline)) co_return std::nullopt;
    co_return self->wait_;
  }
  static Task<bool> drop_wait(Client* self) {
    self->wait_.reset();
    co_return true;
  }
  static Task<std::optional<Round>> look_keep(Client* self) { co_return self->keep_; }
  static Task<std::optional<proto::BeatReply>> wait_beat(Client* self) {
    const TimePoint deadline = self->limit();
    while (!self->beat_)
      if (!co_await self->changed_.wait(deadline)) co_return std::nullopt;
    co_return self->beat_;
  }
  static Task<std::optional<proto::Finish>> wait_finish(Client* self) {
    const TimePoint deadline = self->limit();
    while (!self->finish_)
      if (!co_await self->changed_.wait(deadline)) co_return std::nullopt;
    co_return self->finish_;
  }
  static Task<std::optional<transport::FrameHeader>> wait_result(Client* self) {
    const TimePoint deadline = self->limit();
    while (!self->result_)
      if (!co_await self->changed_.wait(deadline)) co_return std::nullopt;
    co_return self->result_;
  }
  static Task<std::string> wait_end(Client* self) {
    const TimePoint deadline = self->limit();
    while (!self->cause_)
      if (!co_await self->changed_.wait(deadline)) co_return "the session lives on";
    co_return self->cause_->to_string();
  }
  static Task<void> stop(Client* self) {
    if (self->session_) self->session_->close(Error(ErrorCode::kCancelled, "the test ends"));
    co_await self->tasks_.join();
    self->session_.reset();
  }
  static Task<void> initialize(Client* self) {
    proto::InitChunk chunk;
    for (std::uint32_t i = 0; i < self->join.manifest.size(); ++i) {
      chunk.chunk = ChunkId(i);
      const std::size_t bytes = self->join.manifest[i].bytes();
      (void)co_await send_head(self, Kind::kInitChunk, proto::encode(chunk), bytes);
    }
    const proto::Empty done;
    (void)co_await send_head(self, Kind::kInitDone, proto::encode(done), 0);
  }
  static Task<void> say_ready(Client* self, proto::Computed done) {
    (void)co_await send_head(self, Kind::kReady, proto::encode(done), 0);
  }
  Task<Status> on_frame(Session&, InFrame frame) override {
    switch (static_cast<Kind>(frame.header.kind)) {
      case Kind::kInitRequest:
        tasks_.spawn(initialize(this));
        break;
      case Kind::kRoundOpen: {
        CENTROID_CO_ASSIGN(const auto open, proto::decode<proto::RoundOpen>(frame.head));
        open_ = open;
        break;
      }
      case Kind::kRoundClosed: {
        CENTROID_CO_ASSIGN(const auto closed, proto::decode<proto::RoundClosed>(frame.head));
        const bool is_late =
            closed.outcome == proto::Outcome::kLate || closed.outcome == proto::Outcome::kCarried;
        if (!says_ready || !is_late) break;
        proto::Computed done;
        done.generation = open_->generation;
        done.round = open_->round;
        done.attempt = open_->attempt;
        tasks_.spawn(say_ready(this, done));
        break;
      }
      case Kind::kFinish: {
        CENTROID_CO_ASSIGN(const auto finish, proto::decode<proto::Finish>(frame.head));
        finish_ = finish;
        break;
      }
      case Kind::kWait: {
        CENTROID_CO_ASSIGN(const auto wait, proto::decode<proto::Wait>(frame.head));
        wait_ = wait;
        break;
      }
      case Kind::kKeep: {
        CENTROID_CO_ASSIGN(const auto keep, proto::decode<proto::Keep>(frame.head));
        keep_ = keep.round;
        break;
      }
      case Kind::kHeartbeat: {
        CENTROID_CO_ASSIGN(const auto beat, proto::decode<proto::BeatReply>(frame.head));
        beat_ = beat;
        break;
      }
      case Kind::kResult:
        if (!result_) result_ = frame.header;
        break;
      default:
        break;
    }
    changed_.notify_all();
    co_return Status();
  }
  TimePoint limit() const { return std::chrono::steady_clock::now() + std::chrono::minutes(2); }

  IoThread thread_{"test-client"};
  const transport::FaultPlan damage_ = damage();
  std::unique_ptr<transport::Transport> transport_ =
      transport::make_faulty(transport::make_tcp(thread_.executor()), damage_);
  TaskGroup tasks_{thread_.executor()};
  Event changed_{thread_.executor()};
  std::unique_ptr<Session> session_;
  std::optional<proto::RoundOpen> open_;
  std::optional<proto::Finish> finish_;
  std::optional<proto::Wait> wait_;
  std::optional<Round> keep_;
  std::optional<proto::BeatReply> beat_;
  std::optional<transport::FrameHeader> result_;
  std::optional<Error> cause_;
};

/// A server of a job of two epochs, one round each, and one client.
class ContractTest : public testing::Test {
 protected:
  explicit ContractTest(const std::string& payload_checksum = "auto")
      : server{config(directory.path(), payload_checksum),
               [](Executor executor) { return transport::make_tcp(executor); }} {}

  static server::ServerConfig config(const std::filesystem::path& folder,
                                     const std::string& payload_checksum) {
    server::ServerConfig c;
    c.transfer.checksum = payload_checksum;
    c.run_dir = folder;
    c.leaving.when_finished = true;
    c.goal.epochs = 2;
    c.timeouts.drain = std::chrono::seconds(2);
    return c;
  }
  void enter() {
    ASSERT_TRUE(client.open(server.endpoint()).ok());
    const auto reply = client.enter();
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  }
  void expect_ended(const std::string& text) {
    EXPECT_THAT(client.ended(), AllOf(HasSubstr("invalid_argument"), HasSubstr(text)));
    EXPECT_TRUE(server.wait_until([&](const auto&) { return server.present() == 0; }));
  }

  TemporaryDirectory directory;
  TestServer server;
  Client client;
};

}  // namespace centroid::test
