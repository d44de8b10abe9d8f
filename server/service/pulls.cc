#include "server/service/pulls.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <unordered_map>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "server/service/chunk_fetcher.h"
#include "server/service/waits.h"
#include "server/store/turns.h"

namespace centroid::server {

using proto::PullKind;
using transport::Session;

namespace {
constexpr std::uint64_t kPieceBytes = 1u << 20;
/// For the client to close its session.
constexpr std::chrono::seconds kParting{10};
/// A test removes a file to go on.
constexpr std::chrono::milliseconds kSuspended{5};
}  // namespace

struct Pulls::Copy {
  Version version;
  std::uint64_t plan_hash = 0;
  Manifest manifest;  ///< of what was asked for, in its order
  struct Place {
    Chunk chunk;
    std::uint64_t at = 0;  ///< element
  };
  std::vector<Place> places;
  std::uint64_t elements = 0;
  Buffer values;
};

/// Of a reader and the bytes of its copy.
class Pulls::Seat {
 public:
  Seat(Pulls& pulls, std::uint64_t bytes) : pulls_(pulls), bytes_(bytes) {
    ++pulls_.readers_;
    pulls_.taken_ += bytes_;
  }
  ~Seat() {
    --pulls_.readers_;
    pulls_.taken_ -= bytes_;
  }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

 private:
  Pulls& pulls_;
  const std::uint64_t bytes_;
};

Task<void> Pulls::serve(Session& session, TaskGroup& tasks, std::shared_ptr<Request> request) {
  const Status served = co_await answer(session, tasks, request);
  if (!served.ok())
    if (const auto client = context_.strangers.member_line(session.peer().name))
      log::warn("tensors.send_failed",
                {{"client", *client}, {"peer", session.peer().address}, {"why", served.error()}});
  const bool goes_on = co_await sleep_until(clock_.now() + kParting);  // lint-ok: a deadline
  if (!goes_on || session.is_closed()) co_return;
  const Error over(ErrorCode::kDeadlineExceeded, "the pull was over 10 s ago");
  co_await session.goodbye(over);
}

/// The store has the values of a version, and keeps them while no round is merged.
Status Pulls::may_copy() const {
  if (use_.is_loading || replay_ || spread_.lost_since || servers_.has_lost_server())
    return Error(ErrorCode::kUnavailable,
                 "the state is being brought back: `centroidctl waits` (GET /v1/waits)");
  if (!job_.shard || job_.store().version().value == 0)
    return Error(ErrorCode::kUnavailable, "there are no tensors yet: no worker has brought them");
  return {};
}

/// What is asked for, looked at before memory is taken.
Result<std::shared_ptr<Pulls::Copy>> Pulls::make(const std::vector<proto::TensorName>& names) {
  CENTROID_TRY(may_copy());
  const ParameterStore* const store = &job_.store();
  auto copy = std::make_shared<Copy>();
  const Manifest& manifest = store->plan().manifest();
  std::unordered_map<std::string_view, std::size_t> wanted;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!wanted.emplace(names[i].name, i).second)
      return Error(ErrorCode::kInvalidArgument, "tensor '" + names[i].name + "' is named twice");
  std::vector<std::optional<std::size_t>> found(names.size());  // by name: its tensor
  for (std::size_t tensor = 0; tensor < manifest.size(); ++tensor) {
    if (names.empty()) found.emplace_back(tensor);
    const auto name = wanted.find(manifest[tensor].name);
    if (name != wanted.end()) found[name->second] = tensor;
  }
  std::vector<std::uint64_t> begins(manifest.size(), ~std::uint64_t{0});
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i])
      return Error(ErrorCode::kNotFound, "the model has no tensor '" + names[i].name + "'");
    begins[*found[i]] = copy->elements;
    copy->manifest.push_back(manifest[*found[i]]);
    copy->elements += manifest[*found[i]].elements();
  }
  const std::uint64_t bytes = copy->elements * sizeof(float);
  const std::string need = "the tensors take " + std::to_string(bytes) + " bytes, ";
  if (bytes > loader_.readers_room())
    return Error(ErrorCode::kResourceExhausted,
                 need + "copies for readers may take " + std::to_string(loader_.readers_room()) +
                     ": a quarter of what is free (memory_limit). Pull fewer at once");
  if (readers_ >= kReaders || taken_ + bytes > loader_.readers_room())
    return Error(ErrorCode::kUnavailable,
                 need + std::to_string(readers_) + " of " + std::to_string(kReaders) +
                     " readers hold " + std::to_string(taken_) + " of " +
                     std::to_string(loader_.readers_room()) + ": try again");
  for (const Chunk& chunk : store->plan().chunks())
    if (const std::uint64_t begin = begins[chunk.tensor.value]; begin != ~std::uint64_t{0})
      copy->places.push_back({chunk, begin + chunk.offset});
  copy->plan_hash = store->plan().hash();
  try {
    copy->values = Buffer(std::max<std::size_t>(bytes, 1));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "no memory for a copy: " + need + "now");
  }
  return copy;
}

Task<Status> Pulls::answer(Session& session, TaskGroup& tasks, std::shared_ptr<Request> request) {
  auto made = make(request->pull.names);
  // Nobody counts their memory, and this may wait.
  std::vector<proto::TensorName>().swap(request->pull.names);
  if (!made.ok()) co_return co_await session.respond_error(request->header, made.error());
  const auto copy = std::move(made).value();
  const Seat seat(*this, copy->elements * sizeof(float));
  const std::string waiter = "reader " + session.peer().name;
  const auto is_over = std::make_shared<bool>(false);
  tasks.spawn(tell(session, is_over, waiter));
  const Status filled = co_await fill(copy, tasks, waiter);
  *is_over = true;
  if (!filled.ok()) co_return co_await session.respond_error(request->header, filled.error());
  proto::PullReply reply;
  reply.version = copy->version;
  reply.elements = copy->elements;
  const auto head = proto::encode(reply);
  const auto manifest = proto::encode_manifest(copy->manifest);
  const auto waits = waits_.begin(WaitCause::kState, waiter, "its connection",
                                  "tensors of one version are on their way to it");
  CENTROID_CO_TRY(co_await session.respond(request->header, head, manifest));
  co_return co_await send(session, copy);
}

/// Why a reader has no answer yet, every two seconds.
Task<void> Pulls::tell(Session& session, std::shared_ptr<const bool> is_over, std::string waiter) {
  constexpr std::chrono::seconds kEvery{2};
  for (;;) {
    const bool goes_on = co_await sleep_until(clock_.now() + kEvery);  // lint-ok: a tick
    if (!goes_on || *is_over || session.is_closed()) co_return;
    std::vector<WaitView> waits;
    waits_.list(waits);
    const auto mine = std::ranges::find(waits, waiter, &WaitView::waiter);
    if (mine == waits.end()) continue;
    proto::Wait wait;
    wait.ms = static_cast<std::uint32_t>(1000 * std::min(mine->seconds, 4e6));
    wait.what = waiter + " waits for " + mine->waits_for + ": " + mine->what;
    const auto head = proto::encode(wait);
    const auto kind = static_cast<std::uint16_t>(proto::Kind::kWait);
    const TimePoint limit = clock_.now() + config_.timeouts.stall;
    const Status sent = co_await session.send(kind, head, Bytes(), limit);
    if (!sent.ok()) co_return;
  }
}

/// No round is merged meanwhile (`begin_copy`); one that was being merged when this began may
/// commit.
Task<Status> Pulls::fill(std::shared_ptr<Copy> copy, TaskGroup& tasks, std::string waiter) {
  const TimePoint limit = clock_.now() + config_.timeouts.stall;
  const WantsState wants(use_);
  const auto is_here = [this] { return !job_.shard || job_.store().is_current(); };
  for (;;) {
    BlockedOn on{WaitCause::kState, waiter, kStateCopy, [is_here] {
                   return is_here() ? "another one is made" : "a worker is to send the newest one";
                 }};
    const auto is_free = [this, is_here] { return !images_.is_copying() && is_here(); };
    bool goes_on = co_await until(is_free, std::move(on), limit);
    if (!goes_on && clock_.now() >= limit)
      co_return Error(ErrorCode::kUnavailable,
                      "no copy of the state could be made for all of stall_timeout: try "
                      "again, `centroidctl waits` (GET /v1/waits) says what it waits for");
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
    const auto waits =
        waits_.begin(WaitCause::kState, waiter, kStateCopy, "its tensors are copied");
    Status copied;
    {
      const Raised imaging = images_.begin_copy();
      copied = co_await fill_once(copy, tasks);
    }
    const bool may_repair = !copied.ok() && copied.error().code() == ErrorCode::kAborted;
    if (!may_repair || clock_.now() >= limit) co_return copied;
    const auto is_committed = [this] { return !use_.is_merging; };
    goes_on = co_await until(is_committed, kShownElsewhere, limit);
    if (!goes_on && clock_.now() >= limit) co_return copied;
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
}

/// fails aborted: another version came meanwhile.
Task<Status> Pulls::fill_once(std::shared_ptr<Copy> copy, TaskGroup& tasks) {
  const auto state = [this, &copy]() -> Status {
    CENTROID_TRY(may_copy());
    if (job_.store().plan().hash() != copy->plan_hash)
      return Error(ErrorCode::kUnavailable,
                   "the model was replaced while it was copied: try again");
    if (job_.store().version() != copy->version)
      return Error(ErrorCode::kAborted, "another version came while the tensors were copied");
    return {};
  };
  if (job_.shard) copy->version = job_.store().version();
  CENTROID_CO_TRY(state());
  std::vector<ChunkFetcher::Wanted> wanted;
  for (const Copy::Place& place : copy->places) {
    if (job_.store().is_here(place.chunk.id)) continue;
    ChunkFetcher::Wanted& one = wanted.emplace_back();
    one.head.version = copy->version;
    one.head.chunk = place.chunk.id;
    one.bytes = place.chunk.elements * sizeof(float);
  }
  const auto fetch = [this](proto::ServerChunk head) { return servers_.fetch_chunk(head); };
  ChunkFetcher elsewhere(executor_, tasks, fetch, std::move(wanted));
  const std::span<float> into = copy->values.as<float>();
  std::size_t turn = 0;
  for (const Copy::Place& place : copy->places) {
    float* const to = into.data() + place.at;
    if (elsewhere.is_next(0, place.chunk.id)) {
      CENTROID_CO_ASSIGN(const auto values, co_await elsewhere.next());
      CENTROID_CO_TRY(state());
      std::memcpy(to, values.data(), values.size());
      continue;
    }
    std::ranges::copy(job_.store().params(place.chunk), to);
    if (++turn % kChunksPerTurn != 0) continue;
    co_await yield(executor_);
    bool goes_on = true;
    while (goes_on && fault::is_held("pulls.copying"))
      goes_on = co_await sleep_until(clock_.now() + kSuspended);  // lint-ok: a file of a test
    CENTROID_CO_TRY(state());
  }
  co_return Status();
}

/// Each piece within `stall_timeout`: who reads no more is no reader.
Task<Status> Pulls::send(Session& session, std::shared_ptr<const Copy> copy) {
  const auto& peer = session.peer();
  const std::uint64_t piece =
      std::min({kPieceBytes, peer.limits.max_payload_bytes, peer.credit_bytes}) / sizeof(float);
  if (piece == 0)
    co_return Error(ErrorCode::kInvalidArgument,
                    "the client takes no payloads, or gives no credit");
  const std::span<const float> values = copy->values.as<float>().first(copy->elements);
  for (std::uint64_t offset = 0; offset < values.size(); offset += piece) {
    const auto part = values.subspan(offset, std::min(piece, values.size() - offset));
    proto::Values message;
    message.offset = offset;
    const auto head = proto::encode(message);
    const auto kind = static_cast<std::uint16_t>(PullKind::kValues);
    const TimePoint limit = clock_.now() + config_.timeouts.stall;
    CENTROID_CO_TRY(co_await session.send(kind, head, std::as_bytes(part), limit));
    probe_.payload_sent(part.size_bytes());
  }
  if (const auto client = context_.strangers.member_line(peer.name))
    log::info("tensors.sent", {{"client", *client},
                               {"version", copy->version.value},
                               {"tensors", copy->manifest.size()},
                               {"bytes", values.size_bytes()}});
  co_return Status();
}

}  // namespace centroid::server
