#include "worker/exchange/round_state.h"

#include <cmath>
#include <utility>

#include "common/base/log.h"

namespace centroid::worker {

namespace {

/// Rounds between measurements of what error feedback has left to send: each is a pass over it.
constexpr std::uint64_t kRoundsPerMeasure = 16;
/// Of an attempt that has ended: nothing more is sent until the next RoundOpen.
constexpr std::uint32_t kNoAttempt = ~std::uint32_t{0};

/// Of a contribution that came late: it counts in another round, or in none.
RoundEnd late_end(const proto::RoundClosed& closed) {
  return closed.outcome == proto::Outcome::kCarried ? RoundEnd::kPromised : RoundEnd::kSkipped;
}

}  // namespace

void RoundState::joined() {
  received_.assign(link_.model.plan().chunks().size(), false);
  if (version_ != Version()) left_with_ = version_;
  version_ = Version();
}

/// The loop hears first of the end of the round before.
Status RoundState::open(proto::RoundOpen open) {
  if (!undelivered_) return open_now(open);
  if (opened_meanwhile_ && opened_meanwhile_->round == open.round) open.resend = false;
  opened_meanwhile_ = open;
  return {};
}

Status RoundState::open_now(proto::RoundOpen open) {
  const bool again = open.resend && open_ && open_->round == open.round;
  if (!again && open.resend)
    return Error(ErrorCode::kAborted, "the server wants round " + to_string(open.round) +
                                          " again, which we do not have");
  // A share may run into the next epoch.
  const std::uint64_t samples = link_.options.join.train_samples;
  if (open.end < open.begin || open.end > 2 * samples || open.end - open.begin > samples)
    return Error(ErrorCode::kInvalidArgument, "the share [" + std::to_string(open.begin) + ", " +
                                                  std::to_string(open.end) +
                                                  ") is outside the data");
  if (!again && open_) over(RoundEnd::kUndone);  // it was aborted and not opened again
  open_ = open;
  is_sent_ = false;
  received_.assign(link_.model.plan().chunks().size(), false);
  received_count_ = 0;
  report_lost_rounds(open);
  version_ = open.version;
  among_peers_ = link_.peers() != nullptr && link_.peers_of == open.generation;
  CENTROID_TRY(link_.feedback.round_opened(open, again, among_peers_));
  if (!again) {
    ++serial_;
    order_.clear();
    stats_.reset();
    nonfinite_tensor_.clear();
    link_.mailbox.push({open});
  }
  changed_.notify_all();
  return {};
}

/// A server that was killed comes back with what it has saved: the rounds since are trained again.
void RoundState::report_lost_rounds(const proto::RoundOpen& open) {
  const auto before = std::exchange(left_with_, std::nullopt);
  if (!before || open.version >= *before || open.round.value == 1) return;  // job.restarted
  log::warn("rounds.lost", {{"from", before->value},
                            {"to", open.version.value},
                            {"why", "the server came back with an older state"},
                            {"action", "journal.mode on keeps every round"}});
}

Status RoundState::close(proto::RoundClosed closed) {
  const bool is_aborted = closed.outcome == proto::Outcome::kAborted;
  const bool is_committed = closed.outcome == proto::Outcome::kCommitted;
  if (is_aborted && opened_meanwhile_ && closed.round == opened_meanwhile_->round)
    return {};  // before we have begun it: another attempt comes
  if (!is_open(closed.round, closed.attempt))
    return Error(ErrorCode::kInvalidArgument,
                 "round " + to_string(closed.round) + " was closed, which is not the open one");
  if (is_committed) version_ = closed.version;
  if (is_committed && !among_peers_ && missing_results() > 0)
    return Error(ErrorCode::kInvalidArgument,
                 "round " + to_string(closed.round) + " was committed, but only " +
                     std::to_string(received_count_) + " of " +
                     std::to_string(received_count_ + missing_results()) + " result chunks came");
  if (is_aborted) {
    open_->attempt = kNoAttempt;
    return {};
  }
  if (proto::is_late(closed.outcome)) {
    computed_ = {open_->generation, open_->round, open_->attempt};
    open_->attempt = kNoAttempt;
  } else {
    over(is_committed ? RoundEnd::kCommitted : RoundEnd::kSkipped);
    open_.reset();
  }
  undelivered_ = std::move(closed);
  changed_.notify_all();
  return deliver_closed();
}

/// What was sent is in the sum, is to be sent again in a later round, or never was.
void RoundState::over(RoundEnd how) {
  link_.feedback.round_over(how, open_->round);
  if (open_->round.value % kRoundsPerMeasure == 1) link_.feedback.measure_residual();
  link_.feedback.keep_closed(how, open_->round);
}

/// The loop may touch its gradients again once it hears of the end, so it hears of it when nothing
/// is being sent any more.
Status RoundState::deliver_closed() {
  if (!undelivered_ || is_sending_) return {};
  if (proto::is_late(undelivered_->outcome)) {  // it may have come in the middle of our sending
    over(late_end(*undelivered_));
    open_.reset();
  }
  if (undelivered_->outcome == proto::Outcome::kCommitted) committed_serial_ = serial_;
  link_.mailbox.push({*std::exchange(undelivered_, std::nullopt), among_peers_});
  if (!opened_meanwhile_) return {};
  return open_now(*std::exchange(opened_meanwhile_, std::nullopt));
}

/// Whether a whole contribution was taken is for the server to say (JoinReply.counted). What was
/// not is computed again, here or by others.
void RoundState::disconnected() {
  if (open_ && undelivered_)  // it was late, and we were still sending
    over(late_end(*undelivered_));
  else if (open_ && link_.feedback.is_any() && is_sent_ && open_->attempt != kNoAttempt)
    link_.feedback.leave_open(open_->round);
  else if (open_)
    over(RoundEnd::kUndone);
  open_.reset();
  undelivered_.reset();
  opened_meanwhile_.reset();
  computed_.reset();
  changed_.notify_all();
}

void RoundState::end() {
  is_ended_ = true;
  changed_.notify_all();
}

void RoundState::loop_waits(std::uint64_t serial) {
  waits_serial_ = serial;
  changed_.notify_all();
}

void RoundState::applied(std::uint64_t serial) {
  applied_serial_ = serial;
  changed_.notify_all();
}

void RoundState::ready(std::uint64_t serial, TensorId tensor) {
  if (serial != serial_) return;
  order_.push_back(tensor);
  changed_.notify_all();
}

void RoundState::finish(std::uint64_t serial, StepStats stats, LoopSeconds before) {
  if (serial != serial_) return;
  stats_ = std::move(stats);
  before_ = before;
  changed_.notify_all();
}

Task<bool> RoundState::loop_in_next() {
  bool goes_on = true;
  while (waits_serial_ != serial_ && !is_ended_ && goes_on) goes_on = co_await changed();
  co_return goes_on;
}

std::optional<proto::Computed> RoundState::take_computed() {
  if (undelivered_ || waits_serial_ != serial_) return std::nullopt;
  return std::exchange(computed_, std::nullopt);
}

std::optional<proto::RoundOpen> RoundState::begin_sending() {
  is_sending_ = open_ && !is_sent_ && open_->attempt != kNoAttempt;
  return is_sending_ ? open_ : std::nullopt;
}

Status RoundState::end_sending() {
  is_sending_ = false;
  return deliver_closed();
}

bool RoundState::is_current(const proto::RoundOpen& open) const {
  return is_open(open.round, open.attempt) && open_->generation == open.generation;
}

double RoundState::weight_of(const proto::RoundOpen& open) const {
  const std::uint64_t samples = open.end - open.begin, batch = link_.options.join.batch;
  if (samples == 0) return 0;
  switch (link_.model.terms().weight_by) {
    case proto::WeightBy::kSteps:
      return static_cast<double>(samples / batch + (samples % batch > 0 ? 1 : 0));
    case proto::WeightBy::kEqual:
      return 1;
    case proto::WeightBy::kTokens:
      return stats_ ? static_cast<double>(std::max<std::uint64_t>(stats_->tokens, 1)) : 0;
    case proto::WeightBy::kSamples:
      break;
  }
  return static_cast<double>(samples);
}

std::vector<std::byte> RoundState::push_end(const proto::RoundOpen& open, double squares) {
  proto::PushEnd end;
  end.generation = open.generation;
  end.round = open.round;
  end.attempt = open.attempt;
  end.weight = weight_of(open);
  end.samples = stats_->samples;
  end.correct = stats_->correct;
  end.loss_sum = proto::wire_loss(stats_->loss_sum);
  end.compute_seconds = stats_->compute_seconds;
  end.wait_seconds = before_.wait;
  end.apply_seconds = std::exchange(before_.apply, 0);
  end.exchange_seconds = stats_->exchange_seconds;
  end.divergence = stats_->divergence;
  // Parameters that blew up have no norm.
  end.parameter_norm = std::isfinite(stats_->parameter_norm) ? stats_->parameter_norm : -1;
  end.scalars = proto::to_wire(stats_->scalars);
  end.fingerprint = before_.fingerprint;
  end.nonfinite = is_nonfinite();
  end.nonfinite_tensor = nonfinite_tensor_;
  if (link_.model.checks_nonfinite() && std::isfinite(squares)) end.norm = std::sqrt(squares);
  link_.counters.fill(end);
  set_sent();
  return proto::encode(end);
}

Result<bool> RoundState::expects(const proto::ResultChunk& head) const {
  const std::size_t chunk = head.chunk.value;
  const std::string what =
      "result chunk " + to_string(head.chunk) + " of round " + to_string(head.round);
  if (!is_open(head.round, head.attempt) || chunk >= received_.size() || received_[chunk])
    return Error(ErrorCode::kInvalidArgument,
                 what + " was not expected (twice, another round, or no such chunk)");
  // The loop has given nothing to this round: it may still read the results of the one before.
  // Another server sends such chunks when this process stood still and the round went on without.
  if (order_.empty() && !stats_) return false;
  const FragmentPlan& fragments = link_.model.fragments();
  const TensorId tensor = link_.model.plan().chunk(head.chunk).tensor;
  if (fragments.number_of(tensor) == fragments.turn(open_->optimizer_step)) return true;
  return Error(ErrorCode::kInvalidArgument, what + " is not of the round's fragment");
}

bool RoundState::received(const proto::ResultChunk& head) {
  if (!is_open(head.round, head.attempt)) return false;
  received_[head.chunk.value] = true;
  ++received_count_;
  return true;
}

}  // namespace centroid::worker
