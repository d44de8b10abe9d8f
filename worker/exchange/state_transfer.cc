#include "worker/exchange/state_transfer.h"

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::worker {

using proto::Kind;
using transport::Session;

Task<Status> StateTransfer::receive(Session& session, proto::StateChunk head, std::uint64_t bytes) {
  // The loop may still be applying the round before: a server may send a newer state because the
  // next round closed before this worker began it.
  const bool is_ours = co_await round_.loop_in_next();
  if (!is_ours) co_return Error(ErrorCode::kCancelled, "the session is over");
  CENTROID_CO_ASSIGN(const auto memory, link_.model.plane_memory(head, bytes));
  link_.counters.bytes_in.add(static_cast<double>(bytes));
  co_return co_await session.read_payload(memory);
}

Task<void> StateTransfer::send_initial(Session& session) {
  for (const Chunk& chunk : link_.model.plan().chunks()) {
    proto::InitChunk message;
    message.chunk = chunk.id;
    auto head = proto::encode(message);
    const Bytes values =
        std::as_bytes(link_.model.params().subspan(chunk.position, chunk.elements));
    const Status sent =
        co_await LinkContext::send(session, Kind::kInitChunk, std::move(head), values);
    if (!sent.ok()) co_return;
    fault::point("worker.parameters_sent");
  }
  std::vector<std::byte> none;
  (void)co_await LinkContext::send(session, Kind::kInitDone, std::move(none));
}

Task<void> StateTransfer::send(Session& session, Version version) {
  while (!round_.is_applied() && !session.is_closed())
    if (!co_await round_.changed()) co_return;
  if (version != round_.version())
    co_return session.close(Error(ErrorCode::kInvalidArgument,
                                  "the server asks for the state of version " + to_string(version) +
                                      ", we hold " + to_string(round_.version())));
  for (std::size_t number = 0; number < link_.model.planes(); ++number) {
    const std::span<const float> plane = link_.model.plane(number);
    for (const Chunk& chunk : link_.model.plan().chunks()) {
      proto::StateChunk message;
      message.version = version;
      message.plane = static_cast<std::uint8_t>(number);
      message.chunk = chunk.id;
      auto head = proto::encode(message);
      const Bytes values = std::as_bytes(plane.subspan(chunk.position, chunk.elements));
      const Status sent =
          co_await LinkContext::send(session, Kind::kStateChunk, std::move(head), values);
      if (!sent.ok()) co_return;
    }
  }
  proto::StateMark mark;
  mark.version = version;
  auto head = proto::encode(mark);
  (void)co_await LinkContext::send(session, Kind::kStateDone, std::move(head));
}

/// The thread that writes calls this one, which may be over by then.
void StateTransfer::opened() {
  const std::weak_ptr<StateTransfer*> here = here_;
  link_.feedback.keeper()->tell(
      [here, executor = link_.executor](Round round, const Status& saved) {
        boost::asio::post(executor, [here, round, saved] {
          if (const auto self = here.lock()) (*self)->feedback_saved(round, saved);
        });
      });
}

void StateTransfer::feedback_saved(Round round, const Status& saved) {
  saved_.emplace(round, saved);
  if (!saving_ || !saving_->awaits_feedback || saving_->round != round) return;
  saving_->awaits_feedback = false;
  if (saving_->saved.ok()) saving_->saved = saved;
  answer();
}

void StateTransfer::local_saved(Round round, const Status& saved) {
  if (!saving_ || !saving_->awaits_loop || saving_->round != round) return;
  saving_->awaits_loop = false;
  if (saving_->saved.ok()) saving_->saved = saved;
  answer();
}

void StateTransfer::save(Round round) {
  Saving saving;
  saving.round = round;
  saving.awaits_loop = saves_local();
  if (FeedbackKeeper* const keeper = link_.feedback.keeper()) {
    const auto is_wanted = keeper->is_wanted(round);
    if (!is_wanted.ok()) {
      log::warn("feedback.save_failed", {{"round", round.value}, {"why", is_wanted.error()}});
      saving.saved = is_wanted.error();
    } else if (*is_wanted) {
      saving.saved = link_.feedback.save();
      saving.awaits_feedback = saving.saved.ok();
    } else if (saved_ && saved_->first == round) {
      saving.saved = saved_->second;
    } else {
      saving.awaits_feedback = keeper->is_writing();
    }
  }
  saving_ = std::move(saving);
  answer();
}

void StateTransfer::answer() {
  if (!saving_ || saving_->awaits_feedback || saving_->awaits_loop) return;
  const Saving done = *std::exchange(saving_, std::nullopt);
  if (!answers_) return;
  proto::Kept kept;
  kept.round = done.round;
  kept.state = done.saved.ok() ? proto::SavedState::kKept : proto::SavedState::kNotSaved;
  if (!done.saved.ok()) kept.why = done.saved.error().message();
  link_.post(proto::AboutKind::kKept, proto::encode(kept));
}

Status StateTransfer::beat_answered(Bytes head) {
  if (head.empty()) return {};
  CENTROID_ASSIGN(const auto reply, proto::decode<proto::BeatReply>(head));
  link_.compare_rounds = reply.compare_rounds();
  const bool takes = (reply.takes & proto::BeatReply::kAcceptsSaved) != 0;
  if (answers_ || !takes || (!link_.feedback.keeper() && !saves_local())) return {};
  answers_ = true;
  link_.post(proto::AboutKind::kKept, proto::encode(proto::Kept()));
  return {};
}

void StateTransfer::disconnected() {
  saving_.reset();
  answers_ = false;
  link_.compare_rounds = 0;
}

}  // namespace centroid::worker
