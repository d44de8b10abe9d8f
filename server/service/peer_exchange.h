#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/service/checkpointer.h"

namespace centroid::server {

/// Exchanges ring and hierarchical: the newest parameters and optimizer slots are with the workers,
/// all of which hold the same bits. The server fetches them between rounds, when a checkpoint, a
/// newcomer or the end needs them. Also what happens when workers cannot exchange. Of one thread.
class PeerExchange {
 public:
  PeerExchange(const ServerConfig& config, const Clock& clock, JobState& job, OpenRound& open,
               Members& members, const DataShares& data, const Checkpointer& checkpointer,
               StateLoader& loader, RoundControl& control, const StopRequest& stopping,
               FileThread& disk, StateUse& use, Probe& probe, EventLog& events, Waits& waits,
               Event& changed, Event& outgoing, TaskGroup& tasks)
      : config_(config),
        clock_(clock),
        job_(job),
        open_(open),
        members_(members),
        data_(data),
        checkpointer_(checkpointer),
        loader_(loader),
        control_(control),
        stopping_(stopping),
        disk_(disk),
        use_(use),
        probe_(probe),
        events_(events),
        waits_(waits),
        changed_(changed),
        outgoing_(outgoing),
        tasks_(tasks) {}

  bool holds_newest(const Link& link) const;
  bool state_is_wanted() const;
  /// Until the newest state is here, or the job has gone back to one that is.
  Task<Status> fetch_state();
  const std::optional<Upload>& upload() const { return upload_; }
  Task<Status> take_state_chunk(transport::Session& session, std::shared_ptr<Link> link,
                                proto::StateChunk head, std::uint64_t bytes);
  Status state_done(Link& link, const proto::StateMark& mark);

  void exchange_failed(Link& link, const proto::ExchangeFailed& failed);
  Status heed_failures();

 private:
  Task<Status> go_back();
  Task<void> hear_the_others(std::shared_ptr<Attempt> attempt, MemberId first, std::string why);
  void give_up_attempt(MemberId reporter, const std::string& why);

  const ServerConfig& config_;
  const Clock& clock_;
  JobState& job_;
  OpenRound& open_;
  Members& members_;
  const DataShares& data_;
  const Checkpointer& checkpointer_;
  StateLoader& loader_;
  RoundControl& control_;
  const StopRequest& stopping_;
  FileThread& disk_;
  StateUse& use_;
  Probe& probe_;
  EventLog& events_;
  Waits& waits_;
  Event& changed_;
  Event& outgoing_;
  TaskGroup& tasks_;
  std::optional<Upload> upload_;  ///< on its way from one worker
};

}  // namespace centroid::server
