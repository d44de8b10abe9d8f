#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "common/proto/about.h"
#include "worker/exchange/round_state.h"

namespace centroid::worker {

/// The job's state between this worker and the server, and the worker's own state on disk when the
/// server saves the job's: error feedback, written by its keeper, and local steps, written by the
/// loop. Answers Keep when both are done.
///
/// thread  the link's executor
class StateTransfer {
 public:
  StateTransfer(LinkContext& link, RoundState& round) : link_(link), round_(round) {}

  /// A chunk of a plane, into it.
  Task<Status> receive(transport::Session& session, proto::StateChunk head, std::uint64_t bytes);
  /// The initial parameters.
  Task<void> send_initial(transport::Session& session);
  /// All planes of a version: they change only when a round is committed.
  Task<void> send(transport::Session& session, Version version);

  /// Error feedback has a keeper.
  void opened();
  /// Keep came.
  void save(Round round);
  void local_saved(Round round, const Status& saved);
  /// What the server takes that earlier ones do not know: fingerprints, and answers to Keep, of
  /// which it hears that they will come.
  Status beat_answered(Bytes head);
  void disconnected();
  /// No write is awaited any more.
  void end() { here_.reset(); }

 private:
  struct Saving {
    Round round;
    bool awaits_feedback = false, awaits_loop = false;
    Status saved;
  };
  bool saves_local() const {
    return link_.model.terms().local_steps > 1 && link_.model.memory().save_local;
  }
  void feedback_saved(Round round, const Status& saved);
  void answer();

  LinkContext& link_;
  RoundState& round_;
  std::optional<Saving> saving_;                   // a Keep that is not answered yet
  std::optional<std::pair<Round, Status>> saved_;  // by the keeper, last
  bool answers_ = false;                           // the server takes answers to Keep
  /// What the writing thread posts is for this, until `end`.
  std::shared_ptr<StateTransfer*> here_ = std::make_shared<StateTransfer*>(this);
};

}  // namespace centroid::worker
