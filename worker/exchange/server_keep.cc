#include <utility>

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "worker/exchange/server_link.h"

/// What the worker keeps on disk when the server saves its state, and telling it what became of it.
namespace centroid::worker {

using transport::Session;

/// The thread that writes tells this one, which may be over by then.
void ServerLink::tell_of_writes() {
  const std::weak_ptr<ServerLink*> here = here_;
  feedback_.keeper()->tell([here, executor = executor_](Round round, const Status& written) {
    boost::asio::post(executor, [here, round, written] {
      if (const auto link = here.lock()) (*link)->feedback_written(round, written);
    });
  });
}

void ServerLink::feedback_written(Round round, const Status& written) {
  written_.emplace(round, written);
  if (!keeping_ || !keeping_->awaits_feedback || keeping_->round != round) return;
  keeping_->awaits_feedback = false;
  if (keeping_->kept.ok()) keeping_->kept = written;
  say_kept();
}

void ServerLink::local_kept(Round round, const Status& kept) {
  if (!keeping_ || !keeping_->awaits_loop || keeping_->round != round) return;
  keeping_->awaits_loop = false;
  if (keeping_->kept.ok()) keeping_->kept = kept;
  say_kept();
}

void ServerLink::keep_asked(Round round) {
  Keeping keeping;
  keeping.round = round;
  keeping.awaits_loop = terms_.local_steps > 1 && memory_.keep_local != nullptr;
  if (FeedbackKeeper* const keeper = feedback_.keeper()) {
    const auto is_wanted = keeper->is_wanted(round);
    if (!is_wanted.ok()) {
      log::warn("feedback.not_saved", {{"round", round.value}, {"why", is_wanted.error()}});
      keeping.kept = is_wanted.error();
    } else if (*is_wanted) {
      keeping.kept = feedback_.save();
      keeping.awaits_feedback = keeping.kept.ok();
    } else if (written_ && written_->first == round) {
      keeping.kept = written_->second;
    } else {
      keeping.awaits_feedback = keeper->is_writing();
    }
  }
  keeping_ = std::move(keeping);
  say_kept();
}

/// Answers Keep when both halves are known.
void ServerLink::say_kept() {
  if (!keeping_ || keeping_->awaits_feedback || keeping_->awaits_loop) return;
  const Keeping done = std::move(*keeping_);
  keeping_.reset();
  if (!tells_kept_ || session_ == nullptr) return;
  proto::Kept kept;
  kept.round = done.round;
  kept.state = done.kept.ok() ? proto::KeptState::kKept : proto::KeptState::kNotKept;
  if (!done.kept.ok()) kept.why = done.kept.error().message();
  tasks_->spawn(tell_kept(*session_, proto::encode(kept)));
}

/// A server that takes answers to Keep hears that they will come; an older one knows no such
/// message.
Status ServerLink::beat_answered(Session& session, Bytes head) {
  if (head.empty()) return {};
  CENTROID_ASSIGN(const auto reply, proto::decode<proto::BeatReply>(head));
  const bool keeps = feedback_.keeper() || (terms_.local_steps > 1 && memory_.keep_local);
  if (!keeps || tells_kept_ || (reply.takes & proto::BeatReply::kTakesKept) == 0) return {};
  tells_kept_ = true;
  tasks_->spawn(tell_kept(session, proto::encode(proto::Kept())));
  return {};
}

Task<void> ServerLink::tell_kept(Session& session, std::vector<std::byte> head) {
  const auto kind = static_cast<std::uint16_t>(proto::AboutKind::kKept);
  (void)co_await session.send(kind, head, Bytes(), TimePoint::max());
}

}  // namespace centroid::worker
