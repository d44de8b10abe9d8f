#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/api/view.h"
#include "server/coordinate/coordinator.h"
#include "server/events/event_log.h"
#include "server/service/job_part.h"

namespace centroid::server {

/// Who trains which samples: each round's are taken in the order of the epoch and divided among its
/// members by their speed; those of lost workers go to others. An epoch ends when all its samples
/// count, and nobody may run more than one ahead of it. Of one thread.
class DataShares : private JobPart {
 public:
  explicit DataShares(JobContext& context)
      : JobPart(context), coordinator_(config_.coordination()) {}
  Coordinator& coordinator() { return coordinator_; }

  bool goal_reached() const;
  /// The open round reaches the goal when it is committed.
  bool is_last_round() const;
  DataPosition next_position() const;

  // at a round's begin
  std::optional<std::size_t> evaluator(std::span<const MemberId> members) const;
  std::vector<std::uint64_t> wanted_samples(std::span<const MemberId> members);
  std::uint64_t round_room(std::span<const MemberId> members);
  std::vector<proto::RoundOpen> make_shares(const std::vector<MemberId>& members);
  void take_part(proto::RoundOpen& open, std::uint64_t samples);
  void hand_out(WorkerSession& worker, const proto::RoundOpen& open) const;
  void skip_empty_epoch_end();

  // while it is open, and at its end
  void part_lost(WorkerSession& worker);
  void return_part(const DataPart& part, Round of);
  std::string untrained(bool is_over) const;
  void count_reported(ReportedShare told);
  void coordinate();

  // epochs
  std::uint64_t oldest_epoch(MemberId* whose = nullptr) const;
  void end_epochs(bool are_all = false);
  bool is_epoch_ahead() const;
  void epoch_waits(std::vector<WaitView>& views) const;

 private:
  void fit_to_epoch(std::vector<std::uint64_t>& wanted) const;
  std::uint64_t samples_left() const;

  Coordinator coordinator_;
  std::optional<Overshoot> overshoot_;
};

}  // namespace centroid::server
