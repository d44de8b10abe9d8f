#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "worker/exchange/link_context.h"

namespace centroid::worker {

/// In place of a contribution's squares: its norm is not said.
inline constexpr double kNoNorm = std::numeric_limits<double>::infinity();

/// The round in progress: what the server said of it, what the loop has computed, what was sent and
/// which results came. Tells the loop what happens, in order. No I/O.
///
/// thread  the link's executor
class RoundState {
 public:
  explicit RoundState(LinkContext& link) : link_(link), changed_(link.executor) {}

  // from the server
  void joined();
  /// fails  aborted, invalid_argument: no such round can be opened, or closed, now
  Status open(proto::RoundOpen open);
  Status close(proto::RoundClosed closed);
  void disconnected();
  /// No round comes any more.
  void end();

  // from the loop; `serial` counts the rounds that it got, late calls are ignored
  /// It is in `next`, behind that many rounds: its memory is ours until it gets another.
  void loop_waits(std::uint64_t serial);
  /// Results of that many rounds have become its parameters.
  void applied(std::uint64_t serial);
  void ready(std::uint64_t serial, TensorId tensor);
  void finish(std::uint64_t serial, StepStats stats, LoopSeconds before);

  void notify() { changed_.notify_all(); }
  /// Wait until something changes. False: cancelled.
  Task<bool> changed() { return changed_.wait(TimePoint::max()); }
  /// Wait until the loop is in `next`, or `end`. False: cancelled.
  Task<bool> loop_in_next();
  /// The loop has made the results of every committed round its parameters.
  bool is_applied() const {
    return std::max(applied_serial_, waits_serial_.value_or(0)) >= committed_serial_;
  }
  /// Of the parameters, as far as the link knows.
  Version version() const { return version_; }
  /// A round closed without us, and the parameters may be written: the keys of Ready, once.
  std::optional<proto::Computed> take_computed();

  // for the sender
  /// The workers add the gradients of the open round.
  bool is_among_peers() const { return among_peers_; }
  /// The attempt whose contribution is to be sent.
  std::optional<proto::RoundOpen> begin_sending();
  /// fails  as open
  Status end_sending();
  bool is_current(const proto::RoundOpen& open) const;
  const std::vector<TensorId>& ready_tensors() const { return order_; }
  const std::optional<StepStats>& stats() const { return stats_; }
  /// Of our contribution in the mean; 0 with an empty share.
  double weight_of(const proto::RoundOpen& open) const;
  void set_nonfinite(std::string tensor) { nonfinite_tensor_ = std::move(tensor); }
  bool is_nonfinite() const { return !nonfinite_tensor_.empty(); }
  /// Nothing more is sent of this attempt.
  void set_sent() { is_sent_ = true; }
  /// The contribution is sent: the head of its PushEnd. `squares`: of its numbers; not finite: not
  /// known
  /// `squares`: of the contribution; kNoNorm: none is said.
  std::vector<std::byte> push_end(const proto::RoundOpen& open, double squares);

  // results
  /// False: the chunk is to be skipped.
  /// fails  invalid_argument: it was not expected
  Result<bool> expects(const proto::ResultChunk& head) const;
  /// False: the attempt is over.
  bool received(const proto::ResultChunk& head);
  bool is_open(Round round, std::uint32_t attempt) const {
    return open_ && round == open_->round && attempt == open_->attempt;
  }
  std::size_t missing_results() const {
    return open_ ? link_.model.fragment_of(*open_).chunks.size() - received_count_ : 0;
  }

 private:
  Status open_now(proto::RoundOpen open);
  void over(RoundEnd how);
  Status deliver_closed();
  void report_lost_rounds(const proto::RoundOpen& open);

  LinkContext& link_;
  Event changed_;
  bool is_ended_ = false;

  std::uint64_t serial_ = 0;                   // counts rounds handed to the loop
  std::optional<std::uint64_t> waits_serial_;  // the loop is in `next` behind it
  std::uint64_t applied_serial_ = 0;           // behind that many rounds they are its parameters
  std::uint64_t committed_serial_ = 0;         // of the last committed round
  Version version_;
  std::optional<Version> left_with_;  // of the server that was lost; until the next round

  std::optional<proto::RoundOpen> open_;
  bool among_peers_ = false;     // of the open round
  std::vector<TensorId> order_;  // tensors in the order they became ready
  std::optional<StepStats> stats_;
  LoopSeconds before_;  // of the round before
  bool is_sent_ = false, is_sending_ = false;
  std::string nonfinite_tensor_;
  std::vector<bool> received_;
  std::size_t received_count_ = 0;
  std::optional<proto::RoundClosed> undelivered_;
  std::optional<proto::RoundOpen> opened_meanwhile_;  // to follow `undelivered_`
  std::optional<proto::Computed> computed_;           // the round that closed without us
};

}  // namespace centroid::worker
