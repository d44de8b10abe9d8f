#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/service/checkpointer.h"
#include "server/service/job_part.h"

namespace centroid::server {

/// Exchanges ring and hierarchical: the newest parameters and optimizer slots are with the workers,
/// all of which hold the same bits. The server fetches them between rounds, when a checkpoint, a
/// newcomer or the end needs them. Also what happens when workers cannot exchange. Of one thread.
class PeerExchange : private JobPart {
 public:
  PeerExchange(JobContext& context, const DataShares& data, const Checkpointer& checkpointer,
               StateLoader& loader, RoundControl& control)
      : JobPart(context),
        data_(data),
        checkpointer_(checkpointer),
        loader_(loader),
        control_(control) {}

  bool holds_newest(const WorkerSession& worker) const;
  bool state_is_wanted() const;
  /// Until the newest state is here, or the job has gone back to one that is.
  Task<Status> fetch_state();
  const std::optional<Upload>& upload() const { return upload_; }
  Task<Status> take_state_chunk(transport::Session& session, std::shared_ptr<WorkerSession> worker,
                                proto::StateChunk head, std::uint64_t bytes);
  Status state_done(WorkerSession& worker, const proto::StateMark& mark);

  void exchange_failed(WorkerSession& worker, const proto::ExchangeFailed& failed);
  Status evict_unreachable();

 private:
  Task<Status> go_back();
  Task<void> await_other_reports(std::weak_ptr<const Attempt> of, MemberId first, std::string why);
  void give_up_attempt(MemberId reporter, const std::string& why);

  const DataShares& data_;
  const Checkpointer& checkpointer_;
  StateLoader& loader_;
  RoundControl& control_;
  std::optional<Upload> upload_;  ///< on its way from one worker
};

}  // namespace centroid::server
