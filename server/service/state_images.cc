#include "server/service/state_images.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/service/waits.h"
#include "server/store/turns.h"

namespace centroid::server {

std::string state_on_its_way(Version version, std::size_t piece, std::size_t pieces) {
  return "the state of version " + to_string(version) + ", chunk " + std::to_string(piece) +
         " of " + std::to_string(pieces) + " is on its way";
}

/// At the end everybody is to hold the last parameters, also who was left out of the last round.
bool StateImages::needs_last_state(const WorkerSession& worker) const {
  if (!policy_.is_elastic() || !job_.shard || job_.store().version().value == 0) return false;
  const auto reason = worker.finish->reason;
  const bool is_end =
      reason == proto::FinishReason::kFinished || reason == proto::FinishReason::kStopped;
  return is_end && worker.version != job_.store().version();
}

/// What the member would make of the state before this attempt may still count.
bool StateImages::is_of_use(const WorkerSession& worker, const Attempt::Key& key) const {
  if (open_.attempt && open_.attempt->key() == key && !open_.attempt->closed &&
      open_.attempt->left_out.count(worker.id) == 0)
    return true;
  return worker.late && worker.late->key == key && !worker.late->outcome;
}

/// Copies of the state that are being sent or made.
std::size_t StateImages::count() {
  std::erase_if(copies_, [](const auto& image) { return image.expired(); });
  return copies_.size();
}

/// Of the present version; nullptr: there is none.
std::shared_ptr<const StateImage> StateImages::present_copy() const {
  auto newest = newest_.lock();
  if (newest && newest->version != job_.store().version()) newest.reset();
  return newest;
}

/// A copy of the present state, shared by all who need it: they may read it slowly while rounds
/// commit. Who finds as many as there is memory for waits until one has been sent; nullptr: its
/// attempt has closed meanwhile.
Task<Result<std::shared_ptr<const StateImage>>> StateImages::state_image(
    std::shared_ptr<WorkerSession> worker, std::optional<Attempt::Key> key) {
  const std::string waiter = "worker " + worker->join.name;
  const auto is_too_late = [this, worker, key] { return key && !is_of_use(*worker, *key); };
  const auto may_go_on = [this, is_too_late] {
    return is_too_late() || (!is_copying_ && (present_copy() || count() < limit_));
  };
  BlockedOn on{WaitCause::kState, waiter, kStateCopy, [this] {
                 return std::to_string(count()) + " of at most " + std::to_string(limit_) +
                        " copies are made, or sent to others";
               }};
  const bool goes_on = co_await until(may_go_on, std::move(on));
  if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  if (is_too_late()) co_return std::shared_ptr<const StateImage>();
  if (auto present = present_copy()) co_return present;
  const std::shared_ptr<StateImage> image(new StateImage, [this](const StateImage* sent) {
    delete sent;
    changed_.notify_all();  // there may be memory for another one
  });
  copies_.push_back(image);
  {
    const Raised imaging(is_copying_, changed_);
    const auto waits = waits_.begin(WaitCause::kState, waiter, kStateCopy, [this] {
      return "version " + to_string(job_.store().version()) + " is copied";
    });
    CENTROID_CO_TRY(co_await fill_image(*image));
  }
  newest_ = image;
  co_return std::shared_ptr<const StateImage>(image);
}

Task<Status> StateImages::until_copied() const {
  BlockedOn on{WaitCause::kState, present_round(job_), kStateCopy,
               [] { return "it is made for a reader or a worker, of one version"; }};
  const auto is_made = [this] { return !is_copying_; };
  const bool goes_on = co_await until(is_made, std::move(on));
  if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  co_return Status();
}

/// No round is merged meanwhile (`is_copying_`); one that was being merged when this began may
/// commit.
Task<Status> StateImages::fill_image(StateImage& image) {
  const std::size_t planes =
      1 + (config_.applies_on_worker() ? job_.store().optimizer().slots() : 0);
  const std::size_t elements = job_.store().plan().total_elements();
  try {
    image.planes.assign(planes, std::vector<float>());
    for (std::vector<float>& plane : image.planes) plane.resize(elements);
  } catch (const std::bad_alloc&) {
    co_return Error(ErrorCode::kResourceExhausted,
                    "no memory for a copy of the state, " +
                        std::to_string(planes * elements * sizeof(float)) + " bytes");
  }
  for (;;) {
    image.version = job_.store().version();
    const Status copied = co_await copy_image(image);
    if (copied.ok() && image.version == job_.store().version()) co_return Status();
    if (!copied.ok() && copied.error().code() != ErrorCode::kAborted) co_return copied;
    const auto is_committed = [this] { return !use_.is_merging; };
    const bool goes_on = co_await until(is_committed, kShownElsewhere);
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
}

Task<Status> StateImages::copy_image(StateImage& image) {
  CENTROID_CO_TRY(co_await servers_.fetch_image(image));
  std::size_t turn = 0;
  for (std::size_t plane = 0; plane < image.planes.size(); ++plane)
    for (const Chunk& chunk : job_.store().plan().chunks()) {
      if (!job_.store().is_here(chunk.id)) continue;
      const auto values = job_.store().values(plane, chunk);
      std::ranges::copy(values,
                        image.planes[plane].begin() + static_cast<std::ptrdiff_t>(chunk.position));
      if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
    }
  co_return Status();
}

/// Give a member the state that `attempt`, in which it has a seat, begins with. What has been begun
/// is ended though the round closes meanwhile, as long as a contribution made from it may count
/// late: else a link on which it takes longer than a round would never be done. False: it could not
/// count, the member is to have a newer state.
Task<Result<bool>> StateImages::transfer_state(std::shared_ptr<WorkerSession> worker,
                                               transport::Session& session, Attempt::Key key) {
  open_.machine.forgive(worker->id);  // it never began an earlier round that it owes
  CENTROID_CO_ASSIGN(const auto image, co_await state_image(worker, key));
  if (!image || !is_of_use(*worker, key)) co_return false;
  if (open_.machine.may_count_late(key.round)) worker->pace.opened = key;
  worker->pace.is_brought = worker->pace.opened == key;
  CENTROID_CO_ASSIGN(const bool is_there, co_await send_image(worker, session, image, key));
  worker->pace.is_brought = false;
  if (is_there || worker->is_gone) co_return is_there;
  worker->late.reset();
  open_.machine.forgive(worker->id);
  probe_.state_restarted();
  log::debug("member.state_restarted", {{"worker", worker->join.name},
                                        {"version", image->version.value},
                                        {"round", key.round.value},
                                        {"open", job_.round.value}});
  co_return false;
}

/// At the end of the job.
Task<Status> StateImages::transfer_last_state(std::shared_ptr<WorkerSession> worker,
                                              transport::Session& session) {
  CENTROID_CO_ASSIGN(const auto image, co_await state_image(worker, std::nullopt));
  const auto sent = co_await send_image(worker, session, image, std::nullopt);
  if (!sent.ok()) co_return sent.error();
  co_return Status();
}

/// False: it broke off, for the attempt for which it is closed and what is late does not count.
Task<Result<bool>> StateImages::send_image(std::shared_ptr<WorkerSession> worker,
                                           transport::Session& session,
                                           std::shared_ptr<const StateImage> image,
                                           std::optional<Attempt::Key> key) {
  worker->version = Version();  // it holds neither until all is there
  std::size_t piece = 0;
  const std::size_t pieces = image->planes.size() * job_.store().plan().chunks().size();
  const auto what = [&] { return state_on_its_way(image->version, piece, pieces); };
  const auto waits =
      waits_.begin(WaitCause::kState, "worker " + worker->join.name, "its connection", what);
  for (std::size_t plane = 0; plane < image->planes.size(); ++plane) {
    for (const Chunk& chunk : job_.store().plan().chunks()) {
      ++piece;
      const auto values =
          std::span<const float>(image->planes[plane]).subspan(chunk.position, chunk.elements);
      proto::StateChunk message;
      message.version = image->version;
      message.plane = static_cast<std::uint8_t>(plane);
      message.chunk = chunk.id;
      const auto head = proto::encode(message);
      const auto kind = static_cast<std::uint16_t>(proto::Kind::kStateChunk);
      CENTROID_CO_TRY(co_await session.send(kind, head, std::as_bytes(values),
                                            clock_.now() + config_.timeouts.stall));
      probe_.payload_sent(values.size_bytes());
      if (worker->is_gone || (key && !is_of_use(*worker, *key))) co_return false;
    }
  }
  state_sent(*worker, session, image->version, image->planes.size());
  co_return true;
}

void StateImages::state_sent(WorkerSession& worker, const transport::Session& session,
                             Version version, std::size_t planes) const {
  worker.version = version;
  if (const auto address = context_.strangers.arrival_line(session.peer().address))
    log::info("member.state_sent", {{"worker", worker.join.name},
                                    {"address", *address},
                                    {"version", version.value},
                                    {"planes", planes}});
}

}  // namespace centroid::server
