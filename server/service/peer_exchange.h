#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "server/service/checkpointer.h"
#include "server/service/job_part.h"

namespace centroid::server {

struct ExchangeChoice;

/// Exchanges ring and hierarchical: the newest parameters and optimizer slots are with the workers,
/// all of which hold the same bits. The server fetches them between rounds, when a checkpoint, a
/// newcomer or the end needs them. Also what happens when workers cannot exchange. With exchange
/// auto it chooses for each round who adds the gradients. Of one thread.
class PeerExchange : private JobPart {
 public:
  PeerExchange(JobContext& context, const DataShares& data, const Checkpointer& checkpointer,
               StateLoader& loader, RoundControl& control)
      : JobPart(context),
        data_(data),
        checkpointer_(checkpointer),
        loader_(loader),
        control_(control) {}

  /// Before an attempt: whether the workers add its gradients (`OpenRound::among_peers`). False:
  /// the server is to add them, and the newest state must be fetched first.
  bool choose();

  bool holds_newest(const WorkerSession& worker) const;
  bool state_is_wanted() const;
  /// Until the newest state is here, or the job has gone back to one that is.
  Task<Status> fetch_state();
  /// Who leaves may be the last that holds it.
  bool is_last_holder(const WorkerSession& worker) const;
  /// Until its state is here, but not long: the round that it leaves is aborted.
  Task<void> take_over(std::shared_ptr<WorkerSession> worker);
  const std::optional<Upload>& upload() const { return upload_; }
  Task<Status> take_state_chunk(transport::Session& session, std::shared_ptr<WorkerSession> worker,
                                proto::StateChunk head, std::uint64_t bytes);
  Status state_done(WorkerSession& worker, const proto::StateMark& mark);

  void exchange_failed(WorkerSession& worker, const proto::ExchangeFailed& failed);
  /// Before the next attempt: longer after each failure, so that a network that is gone for a
  /// moment costs nobody its place.
  Task<void> pause_after_failure();
  Status evict_unreachable();

 private:
  Task<Status> go_back();
  ExchangeChoice choice() const;
  void note_failure();
  Task<void> await_other_reports(std::weak_ptr<const Attempt> of, MemberId first, std::string why);
  void give_up_attempt(MemberId reporter, const std::string& why);

  const DataShares& data_;
  const Checkpointer& checkpointer_;
  StateLoader& loader_;
  RoundControl& control_;
  std::optional<Upload> upload_;  ///< on its way from one worker
  // exchange auto
  TimePoint copy_due_;  ///< the next copy of the state, so that little is lost with all workers
  std::optional<bool> chosen_;  ///< among peers; none: not yet
  std::set<MemberId> met_;      ///< who have added gradients among themselves
  struct Failure {
    std::set<MemberId> members;  ///< as long as all of them are here
    std::string why;
  } failure_;
};

}  // namespace centroid::server
