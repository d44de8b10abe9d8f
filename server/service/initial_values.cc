#include "server/service/initial_values.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/tensor/finite.h"

namespace centroid::server {

Task<Result<Buffer>> read_numbers(transport::Session& session, const Probe& probe,
                                  std::string where, std::uint64_t elements, std::uint64_t bytes) {
  if (bytes != elements * sizeof(float))
    co_return Error(ErrorCode::kInvalidArgument, where + ": " + std::to_string(bytes) +
                                                     " bytes, expected " +
                                                     std::to_string(elements * sizeof(float)));
  Buffer buffer(bytes);
  CENTROID_CO_TRY(co_await session.read_payload(buffer.bytes().first(bytes)));
  session.release_credit(bytes);
  probe.payload_received(bytes);
  co_return std::move(buffer);
}

/// A worker that was asked and sends nothing more for `stall_timeout` does not block those that
/// could: the next one is asked. What the first sends later is skipped.
Task<bool> InitialValues::initialize() {
  phase_.set(Phase::kInitializing, "the first worker sends the initial parameters");
  std::set<MemberId> asked;
  for (bool is_over = false; !is_over;) {
    members_.roster.form(true);
    const auto ranked = members_.roster.ranked();
    if (ranked.empty() && !initial_) co_return false;
    const auto is_new = [&asked](MemberId one) { return !asked.contains(one); };
    const auto next = std::ranges::find_if(ranked, is_new);
    if (next != ranked.end()) {
      ask(*next);
      asked.insert(*next);
    }
    is_over = co_await await_progress();
  }
  initial_.reset();
  co_return job_.shard&& job_.store().version().value != 0;
}

void InitialValues::ask(MemberId member) {
  if (initial_)
    log::warn("store.initial_values_stalled",
              {{"worker", members_.name_of(initial_->from)}, {"next", members_.name_of(member)}});
  const auto worker = members_.find(member);
  worker->init_requested = worker->sends_init = true;
  initial_.emplace();
  initial_->from = member;
  initial_->is_here.resize(job_.store().plan().chunks().size());
  worker->wake.notify_all();
}

/// False: nothing came for too long.
Task<bool> InitialValues::await_progress() {
  const MemberId from = initial_->from;
  // The store goes with its last member, when another one comes.
  const auto is_over = [this, from] {
    return !job_.shard || job_.store().version().value != 0 || !members_.find(from) ||
           stopping_.is_requested || gate_.is_deposed();
  };
  std::size_t received = 0;
  do {
    received = initial_->received;
    BlockedOn on{WaitCause::kState, "job", members_.name_of(from),
                 [] { return "the initial values, which it was asked for"; }};
    const TimePoint limit = clock_.now() + config_.timeouts.stall;
    const bool ends = co_await until(is_over, std::move(on), limit);
    if (ends || clock_.now() < limit) co_return true;  // or the server stops
  } while (initial_->received != received);
  co_return false;
}

/// It was asked for its initial values, and they are not all here.
bool InitialValues::is_initial_from(const WorkerSession& worker) const {
  return initial_ && initial_->from == worker.id && !worker.is_gone && job_.shard &&
         job_.store().version().value == 0;
}

Task<Status> InitialValues::take_init_chunk(transport::Session& session,
                                            std::shared_ptr<WorkerSession> worker,
                                            proto::InitChunk head, std::uint64_t bytes) {
  const std::string where = "initial chunk " + to_string(head.chunk) + " of " + worker->join.name;
  if (!is_initial_from(*worker) && !worker->sends_init)
    co_return Error(ErrorCode::kFailedPrecondition, where + ": nobody asked for it");
  if (!is_initial_from(*worker))  // the job stops or moves: another message says so
    co_return co_await session.skip_payload();
  if (head.chunk.value >= job_.store().plan().chunks().size())
    co_return Error(ErrorCode::kInvalidArgument,
                    where + ": the plan has " +
                        std::to_string(job_.store().plan().chunks().size()) + " chunks");
  const Chunk chunk = job_.store().plan().chunk(head.chunk);
  if (initial_->is_here[head.chunk.value])
    co_return Error(ErrorCode::kInvalidArgument, where + ": it was sent twice");
  CENTROID_CO_ASSIGN(const Buffer buffer,
                     co_await read_numbers(session, probe_, where, chunk.elements, bytes));
  if (!is_initial_from(*worker)) co_return Status();  // the store may be another one, or in use
  const std::span<const float> values = buffer.as<float>().first(chunk.elements);
  if (policy_.nonfinite != NonFinitePolicy::kPropagate && !is_finite(values))
    co_return Error(ErrorCode::kInvalidArgument,
                    where + ": a number of tensor " +
                        job_.store().plan().manifest()[chunk.tensor.value].name + " is not finite");
  std::ranges::copy(values, job_.store().initial(chunk).begin());
  if (!initial_->is_here[head.chunk.value]) ++initial_->received;
  initial_->is_here[head.chunk.value] = true;
  co_return Status();
}

Status InitialValues::init_done(WorkerSession& worker) {
  const bool was_asked = std::exchange(worker.sends_init, false);
  if (!is_initial_from(worker) && was_asked) return {};
  if (!is_initial_from(worker))
    return Error(ErrorCode::kFailedPrecondition,
                 "InitDone of " + worker.join.name + ": nobody asked for it");
  if (initial_->received < initial_->is_here.size())
    return Error(ErrorCode::kInvalidArgument,
                 "InitDone of " + worker.join.name + ": " + std::to_string(initial_->received) +
                     " of " + std::to_string(initial_->is_here.size()) + " initial chunks came");
  job_.store().initialize();
  worker.version = job_.store().version();
  log::info("store.initialised", {{"from", worker.join.name}});
  changed_.notify_all();
  return {};
}

}  // namespace centroid::server
