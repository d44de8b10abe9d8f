// The server's resident memory with a large model: 0.84 billion parameters, plain mean, 6 workers,
// as rounds go by. The workers hold no model: every chunk of every contribution is the same
// megabyte.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/log.h"
#include "common/proto/messages.h"
#include "common/tensor/chunk_plan.h"
#include "tests/bench/bench_run.h"
#include "tests/support/http_client.h"
#include "transport/session.h"

namespace centroid::bench {
namespace {

namespace fs = std::filesystem;
using proto::Kind;
using transport::Session;

constexpr double kGB = 1e9;

struct Options {
  std::uint64_t workers = 6, parameters = 840'000'000, tensors = 100, rounds = 100;
  std::uint64_t seconds = 60;
  double bar_gb = 0;
};

Manifest make_manifest(const Options& options) {
  Manifest manifest;
  for (std::uint64_t t = 0; t < options.tensors; ++t) {
    TensorInfo tensor;
    tensor.name = "layer" + std::to_string(t);
    tensor.shape = {part_of(options.parameters, options.tensors, t).size()};
    manifest.push_back(std::move(tensor));
  }
  return manifest;
}

/// A worker without a model.
class LeanMember final : public transport::FrameSink {
 public:
  LeanMember(Executor executor, const Options& options, std::size_t number)
      : executor_(executor),
        number_(number),
        manifest_(make_manifest(options)),
        numbers_(std::size_t{1} << 18, 1e-3f),
        scratch_(std::size_t{2} << 20) {}

  Task<void> live(transport::Endpoint server) {
    transport::TransportOptions how;
    how.limits.max_head_bytes = transport::kMaxHeadBytes;
    how.limits.max_payload_bytes = 256u << 20;
    const auto transport = transport::make_tcp(executor_, how);
    const TimePoint limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    transport::Greeting greeting;
    greeting.role = "worker";
    greeting.name = "lean-" + std::to_string(number_);
    greeting.limits = how.limits;
    auto session = co_await transport::connect_session(*transport, server, greeting, limit);
    if (!session.ok()) fail(session.error().message());
    TaskGroup children(executor_);
    children_ = &children;
    children.spawn(enter(*session.value()));
    const Error end = co_await session.value()->run(*this);
    session.value()->close(end);
    children.cancel();
    co_await children.join();
  }

 private:
  Task<void> enter(Session& session) {
    proto::Join join;
    join.name = "lean-" + std::to_string(number_);
    join.exchange = "star";
    join.codec = "f32";
    join.node = transport::this_node();
    join.batch = 8;
    join.train_samples = std::uint64_t{1} << 40;
    join.model = "none";
    const auto head = proto::encode(join);
    const auto manifest = proto::encode_manifest(manifest_);
    session.accept_without_crc();
    const auto kind = static_cast<std::uint16_t>(Kind::kJoin);
    const TimePoint limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const auto reply = co_await session.request(kind, head, manifest, limit);
    if (!reply.ok()) fail(reply.error().message());
    const auto terms = proto::decode<proto::JoinReply>(reply->head);
    if (!terms.ok()) fail(terms.error().message());
    if (terms->no_payload_crc) session.send_unsummed();
    plan_ = ChunkPlan::make(manifest_, terms->chunk_bytes).value();
  }

  Task<Status> on_frame(Session& session, transport::InFrame frame) override {
    const std::uint64_t bytes = frame.header.payload_bytes;
    switch (static_cast<Kind>(frame.header.kind)) {
      case Kind::kInitRequest:
        children_->spawn(send_initial(session));
        co_return Status();
      case Kind::kRoundOpen: {
        CENTROID_CO_ASSIGN(const auto open, proto::decode<proto::RoundOpen>(frame.head));
        children_->spawn(contribute(session, open));
        co_return Status();
      }
      default:
        break;
    }
    if (bytes == 0) co_return Status();
    const MutableBytes into = MutableBytes(scratch_).first(static_cast<std::size_t>(bytes));
    CENTROID_CO_TRY(co_await session.read_payload(into));
    session.release_credit(bytes);
    co_return Status();
  }

  Bytes numbers_of(const Chunk& chunk) const {
    return std::as_bytes(std::span(numbers_).first(static_cast<std::size_t>(chunk.elements)));
  }

  Task<void> send_initial(Session& session) {
    for (const Chunk& chunk : plan_.chunks()) {
      proto::InitChunk message;
      message.chunk = chunk.id;
      const auto head = proto::encode(message);
      const auto kind = static_cast<std::uint16_t>(Kind::kInitChunk);
      const Status sent = co_await session.send(kind, head, numbers_of(chunk), TimePoint::max());
      if (!sent.ok()) co_return;
    }
    const proto::Empty nothing;
    const auto head = proto::encode(nothing);
    const auto kind = static_cast<std::uint16_t>(Kind::kInitDone);
    (void)co_await session.send(kind, head, Bytes(), TimePoint::max());
  }

  Task<void> contribute(Session& session, const proto::RoundOpen open) {
    const auto weight = static_cast<double>(open.end - open.begin);
    for (const Chunk& chunk : plan_.chunks()) {
      proto::Push push;
      push.generation = open.generation;
      push.round = open.round;
      push.attempt = open.attempt;
      push.chunk = chunk.id;
      push.weight = weight;
      const auto head = proto::encode(push);
      const auto kind = static_cast<std::uint16_t>(Kind::kPush);
      const Status sent = co_await session.send(kind, head, numbers_of(chunk), TimePoint::max());
      if (!sent.ok()) co_return;
    }
    proto::PushEnd end;
    end.generation = open.generation;
    end.round = open.round;
    end.attempt = open.attempt;
    end.weight = weight;
    end.samples = open.end - open.begin;
    const auto head = proto::encode(end);
    const auto kind = static_cast<std::uint16_t>(Kind::kPushEnd);
    (void)co_await session.send(kind, head, Bytes(), TimePoint::max());
  }

  const Executor executor_;
  const std::size_t number_;
  const Manifest manifest_;
  const std::vector<float> numbers_;
  std::vector<std::byte> scratch_;
  ChunkPlan plan_;
  TaskGroup* children_ = nullptr;
};

void run_lean(const Options& options, std::size_t number, transport::Endpoint server) {
  (void)log::configure(log::Level::kWarn, log::Format::kText);
  IoThread io("io");
  LeanMember member(io.executor(), options, number);
  io.wait(member.live(std::move(server)));
  std::_Exit(0);
}

/// Rounds committed so far, from the server's log.
std::uint64_t rounds_in(const fs::path& log_file) {
  std::ifstream in(log_file);
  std::uint64_t rounds = 0;
  for (std::string line; std::getline(in, line);)
    rounds += line.find("round.committed") != std::string::npos ? 1 : 0;
  return rounds;
}

int run(const Options& options) {
  const Folder folder;
  const fs::path log_file = folder.path() / "log";
  const ServerProcess started =
      start_server(folder.path(),
                   {"--log.level", "debug", "--optimizer", "mean", "--lease", "120s",
                    "--stall-timeout", "120s", "--min-workers", std::to_string(options.workers)},
                   "127.0.0.1", "", log_file);
  const Child& server = started.child;
  // These workers do not try again: a server that begins would send them away.
  test::HttpClient client(started.api.port);
  while (client.request("GET", "/readyz").status != 200)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // lint-ok: no test
  std::vector<Child> members;
  for (std::size_t m = 0; m < options.workers; ++m)
    members.push_back(Child::forked([&] { run_lean(options, m, started.data); }));

  std::printf("%llu workers, %llu parameters, plain mean\nrounds  seconds  resident GB\n",
              static_cast<unsigned long long>(options.workers),
              static_cast<unsigned long long>(options.parameters));
  const auto begin = std::chrono::steady_clock::now();
  double first = 0, least = 0, most = 0;
  std::uint64_t shown = 0;
  while (shown < options.rounds) {
    if (!server.is_alive()) fail("the server has ended: " + log_file.string());
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (options.seconds > 0 && elapsed > static_cast<double>(options.seconds)) break;
    const std::uint64_t rounds = rounds_in(log_file);
    if (rounds == shown) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lint-ok: no test
      continue;
    }
    shown = rounds;
    const auto resident = static_cast<double>(server.status_bytes("VmRSS")) / kGB;
    if (first == 0) first = least = most = resident;
    least = std::min(least, resident);
    most = std::max(most, resident);
    if (rounds <= 3 || rounds % std::max<std::uint64_t>(options.rounds / 10, 1) == 0)
      std::printf("%6llu  %7.1f  %.3f\n", static_cast<unsigned long long>(rounds), elapsed,
                  resident);
    std::fflush(stdout);
  }
  std::printf(
      "after %llu rounds: from %.3f to %.3f GB resident (%+.2f %% of the first), peak %.3f GB\n",
      static_cast<unsigned long long>(shown), least, most, 100 * (most / first - 1),
      static_cast<double>(server.status_bytes("VmHWM")) / kGB);
  if (options.bar_gb == 0) return 0;
  const bool is_met = shown >= options.rounds && most <= options.bar_gb && most <= 1.01 * first &&
                      least >= 0.99 * first;
  std::printf("bar: %llu rounds, at most %.2f GB, within 1 %% of the first: %s\n",
              static_cast<unsigned long long>(options.rounds), options.bar_gb,
              is_met ? "met" : "missed");
  return is_met ? 0 : 1;
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("workers", &options.workers,
               {.text = "worker processes", .unit = "workers", .min = 1, .max = 64});
  schema.field("parameters", &options.parameters, {.text = "float32 parameters of the model"});
  schema.field("tensors", &options.tensors, {.text = "tensors they are in", .min = 1});
  schema.field("rounds", &options.rounds,
               {.text = "rounds to look at", .unit = "rounds", .min = 1});
  schema.field("seconds", &options.seconds,
               {.text = "end earlier, after so many seconds; 0: do not"});
  schema.field("bar", &options.bar_gb,
               {.text = "status 1 when more is resident, or it changes by more than 1 %; 0: no bar",
                .unit = "GB",
                .min = 0});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(argc, argv, "centroid-bench-memory",
                             "The server's resident memory with a large model, as rounds go by.",
                             add_fields, run);
}
