#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/proto/about.h"
#include "worker/exchange/peer_reducer.h"
#include "worker/exchange/round_state.h"

namespace centroid::worker {

/// The contribution of exchanges ring and hierarchical: the workers add their gradients among
/// themselves. The server says who and when.
///
/// thread  the link's executor
class PeerContribution {
 public:
  PeerContribution(LinkContext& link, RoundState& round) : link_(link), round_(round) {}

  /// After a join. False: error feedback was begun anew.
  Result<bool> configure(std::string codec);
  /// Who they are in the generation that comes.
  Status set_peers(proto::Peers peers);
  /// The whole of an attempt: begin the additions, pass on what becomes ready, and report how it
  /// ended.
  Task<Status> add(transport::Session& leader, proto::RoundOpen open);
  /// Measure the way to another worker, and answer.
  Status measure(const transport::InFrame& frame);

 private:
  Task<std::optional<PeerReducer::Outcome>> reach(const collective::Roster& roster);
  Task<Status> fail(transport::Session& leader, const proto::RoundOpen& open,
                    const PeerReducer::Outcome& outcome);
  using Measurement = std::pair<transport::FrameHeader, proto::Measure>;
  Result<PeerReducer::Job> job_of(const proto::RoundOpen& open) const;
  void count(const CodedStats& stats, TimePoint begin, Round round);
  Task<void> measure_now(transport::Session& leader, std::shared_ptr<const Measurement> asked);
  Task<Result<proto::Measured>> measured(std::shared_ptr<const Measurement> asked);

  LinkContext& link_;
  RoundState& round_;
  std::optional<proto::Peers> peers_;  // of the generation that was named last
  std::set<std::string> reached_;      // addresses of peers
  bool is_measuring_ = false;
};

}  // namespace centroid::worker
