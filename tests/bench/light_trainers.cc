#include "tests/bench/light_trainers.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/proto/messages.h"
#include "tests/bench/star_process.h"
#include "transport/session.h"

namespace centroid::bench {

namespace {

using proto::Kind;
using transport::Session;

constexpr std::size_t kJoinsAtOnce = 32;
constexpr std::uint64_t kBatch = 8;
constexpr std::chrono::seconds kJoinTimeout{60}, kRoundsTimeout{600};

/// What the workers of one thread share.
struct Cohort {
  Cohort(Executor on, transport::Endpoint to)
      : executor(on), server(std::move(to)), transport(transport::make_tcp(on)), all_wait(on) {}

  Executor executor;
  const transport::Endpoint server;
  std::unique_ptr<transport::Transport> transport;
  Manifest manifest;
  std::vector<float> numbers;
  std::uint64_t last_round = 0;  ///< to which they contribute
  std::uint64_t count = 0, waiting = 0;
  Event all_wait;
  bool is_ending = false;
};

class Trainer final : public transport::FrameSink {
 public:
  Trainer(Cohort& cohort, std::size_t number)
      : cohort_(cohort), name_("light-" + std::to_string(number)), tasks_(cohort.executor) {}

  Task<void> join() {
    const TimePoint limit = std::chrono::steady_clock::now() + kJoinTimeout;
    transport::Greeting greeting;
    greeting.role = "worker";
    greeting.name = name_;
    auto opened =
        co_await transport::connect_session(*cohort_.transport, cohort_.server, greeting, limit);
    if (!opened.ok()) give_up(opened.error());
    session_ = std::move(opened).value();
    session_->accept_without_crc();
    tasks_.spawn(read());
    const proto::Join join = make_join();
    const auto head = proto::encode(join);
    const auto manifest = proto::encode_manifest(cohort_.manifest);
    const auto kind = static_cast<std::uint16_t>(Kind::kJoin);
    const auto reply = co_await session_->request(kind, head, manifest, limit);
    if (!reply.ok()) give_up(reply.error());
    const auto terms = proto::decode<proto::JoinReply>(reply->head);
    if (!terms.ok()) give_up(terms.error());
    if (terms->chunk_bytes < cohort_.numbers.size() * sizeof(float))
      fail("the model has more than one chunk");
    if (terms->no_payload_crc) session_->send_unsummed();
  }

  /// Contribute to the round that waits for it, if there is one and it is among those wanted.
  void go_on() {
    if (!open_ || open_->round.value > cohort_.last_round) return;
    --cohort_.waiting;
    tasks_.spawn(contribution_to(*std::exchange(open_, std::nullopt)));
  }

  void close() {
    if (session_) session_->close(Error(ErrorCode::kCancelled, "the benchmark ends"));
  }
  Task<void> closed() {
    co_await tasks_.join();
    session_.reset();
  }

 private:
  [[noreturn]] void give_up(const Error& why) const { fail(name_ + ": " + why.to_string()); }

  proto::Join make_join() const {
    proto::Join join;
    join.name = name_;
    join.exchange = "star";
    join.codec = "f32";
    join.node = transport::this_node();
    join.batch = kBatch;
    join.train_samples = std::uint64_t{1} << 40;
    join.model = "none";
    return join;
  }

  Task<void> read() {
    const Error why = co_await session_->run(*this);
    if (!cohort_.is_ending) give_up(why);
  }

  Task<Status> on_frame(Session& session, transport::InFrame frame) override {
    switch (static_cast<Kind>(frame.header.kind)) {
      case Kind::kInitRequest:
        tasks_.spawn(initialize());
        co_return Status();
      case Kind::kRoundOpen: {
        CENTROID_CO_ASSIGN(const auto open, proto::decode<proto::RoundOpen>(frame.head));
        if (!std::exchange(open_, open)) ++cohort_.waiting;
        go_on();
        if (cohort_.waiting == cohort_.count) cohort_.all_wait.notify_all();
        co_return Status();
      }
      case Kind::kRoundClosed: {
        CENTROID_CO_ASSIGN(const auto closed, proto::decode<proto::RoundClosed>(frame.head));
        if (closed.outcome != proto::Outcome::kCommitted)
          fail(name_ + ": a round was not committed: " + closed.reason);
        co_return Status();
      }
      case Kind::kFinish:
        fail(name_ + ": the job has ended");
      default:
        break;
    }
    const std::uint64_t bytes = frame.header.payload_bytes;
    if (bytes == 0) co_return Status();
    received_.resize(std::max<std::size_t>(received_.size(), static_cast<std::size_t>(bytes)));
    const auto into = MutableBytes(received_).first(static_cast<std::size_t>(bytes));
    CENTROID_CO_TRY(co_await session.read_payload(into));
    session.release_credit(bytes);
    co_return Status();
  }

  /// An error is the session's, which `read` sees.
  Task<void> send(Kind kind, std::vector<std::byte> head, Bytes payload) {
    (void)co_await session_->send(static_cast<std::uint16_t>(kind), head, payload,
                                  TimePoint::max());
  }

  Bytes numbers() const { return std::as_bytes(std::span(cohort_.numbers)); }

  Task<void> initialize() {
    const proto::InitChunk chunk;
    const proto::Empty done;
    co_await send(Kind::kInitChunk, proto::encode(chunk), numbers());
    co_await send(Kind::kInitDone, proto::encode(done), Bytes());
  }

  Task<void> contribute(std::vector<std::byte> push, std::vector<std::byte> end) {
    co_await send(Kind::kPush, std::move(push), numbers());
    co_await send(Kind::kPushEnd, std::move(end), Bytes());
  }
  Task<void> contribution_to(const proto::RoundOpen& open) {
    proto::Push push;
    push.generation = open.generation;
    push.round = open.round;
    push.attempt = open.attempt;
    push.weight = static_cast<double>(open.end - open.begin);
    proto::PushEnd end;
    end.generation = open.generation;
    end.round = open.round;
    end.attempt = open.attempt;
    end.weight = push.weight;
    end.samples = open.end - open.begin;
    return contribute(proto::encode(push), proto::encode(end));
  }

  Cohort& cohort_;
  const std::string name_;
  TaskGroup tasks_;
  std::unique_ptr<Session> session_;
  std::optional<proto::RoundOpen> open_;  ///< waits until it is wanted
  std::vector<std::byte> received_;
};

}  // namespace

struct LightTrainers::Impl {
  explicit Impl(const transport::Endpoint& server) : cohort(thread.executor(), server) {}

  IoThread thread{"light"};
  Cohort cohort;
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::size_t next = 0;  ///< of those that join

  Task<void> join_some() {
    while (next < trainers.size()) {
      Trainer& trainer = *trainers[next++];
      co_await trainer.join();
    }
  }

  Task<void> join_all() {
    TaskGroup joining(thread.executor());
    for (std::size_t i = 0; i < kJoinsAtOnce; ++i) joining.spawn(join_some());
    co_await joining.join();
    co_await until_all_wait();
  }

  Task<void> until_all_wait() {
    const TimePoint limit = std::chrono::steady_clock::now() + kRoundsTimeout;
    while (cohort.waiting < cohort.count) {
      const bool is_in_time = co_await cohort.all_wait.wait(limit);
      if (!is_in_time)
        fail("a round is open for " + std::to_string(cohort.waiting) + " of " +
             std::to_string(cohort.count) + " workers only");
    }
  }

  Task<void> run(std::uint64_t rounds) {
    cohort.last_round += rounds;
    for (const auto& trainer : trainers) trainer->go_on();
    co_await until_all_wait();
  }

  Task<void> end() {
    cohort.is_ending = true;
    for (const auto& trainer : trainers) trainer->close();
    for (const auto& trainer : trainers) co_await trainer->closed();
  }
};

LightTrainers::LightTrainers(const transport::Endpoint& server, std::uint64_t count,
                             std::uint64_t parameters)
    : impl_(std::make_unique<Impl>(server)) {
  TensorInfo tensor;
  tensor.name = "layer";
  tensor.shape = {parameters};
  impl_->cohort.manifest = {tensor};
  impl_->cohort.numbers.assign(static_cast<std::size_t>(parameters), 1e-3f);
  impl_->cohort.count = count;
  for (std::uint64_t i = 0; i < count; ++i)
    impl_->trainers.push_back(std::make_unique<Trainer>(impl_->cohort, i));
  impl_->thread.wait(impl_->join_all());
}

LightTrainers::~LightTrainers() { impl_->thread.wait(impl_->end()); }

void LightTrainers::run(std::uint64_t rounds) { impl_->thread.wait(impl_->run(rounds)); }

void raise_file_limit(std::uint64_t files) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) fail("the limit of open files is not known");
  limit.rlim_cur = limit.rlim_max;
  if (limit.rlim_max < files || ::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    fail(std::to_string(files) + " open files are needed and the limit of this system is " +
         std::to_string(limit.rlim_max) +
         " (RLIMIT_NOFILE): raise it (ulimit -Hn), or ask for fewer --workers");
}

}  // namespace centroid::bench
