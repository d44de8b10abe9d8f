#include <algorithm>
#include <cmath>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/checkpoint/fault_point.h"
#include "common/tensor/squares.h"
#include "transport/echo.h"
#include "worker/exchange/server_link.h"

/// The round's traffic of the star exchange: contributions out, state and results in.
namespace centroid::worker {

using proto::Kind;
using transport::InFrame;
using transport::Session;

namespace {

/// Rounds between looks at what error feedback has left to send: each is a pass over it.
constexpr std::uint64_t kResidualRounds = 16;

/// Checksum of the numbers' bytes, or nothing when one is not finite. In small pieces, so that the
/// second pass finds each in cache. Adds their squares to `squares`.
std::optional<std::uint32_t> checksum_of_finite(std::span<const float> values, double* squares) {
  constexpr std::size_t kPiece = 8192;
  std::uint32_t crc = 0;
  while (!values.empty()) {
    const auto piece = values.first(std::min(values.size(), kPiece));
    const double sum = squares_of(piece);
    if (!std::isfinite(sum)) return std::nullopt;  // no float's square is infinite in double
    *squares += sum;
    crc = crc32c(std::as_bytes(piece), crc);
    values = values.subspan(piece.size());
  }
  return crc;
}

}  // namespace

Task<Status> ServerLink::on_frame(Session& session, InFrame frame) {
  while (!is_joined_ && !session.is_closed())
    if (!co_await joined_.wait(TimePoint::max()))
      co_return Error(ErrorCode::kCancelled, "the session is over");
  const std::uint64_t bytes = frame.header.payload_bytes;
  const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
  if (frame.header.kind == transport::kEcho)  // an operator has the network measured
    co_return co_await transport::answer_echo(session, frame);
  CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(), bytes));
  if (frame.header.kind == static_cast<std::uint16_t>(proto::ServersKind::kRoute)) {
    CENTROID_CO_ASSIGN(auto route, proto::decode<proto::Route>(frame.head));
    co_return co_await route_told(session, std::move(route));
  }
  if (frame.header.kind == static_cast<std::uint16_t>(proto::AboutKind::kMeasure))
    co_return measure_asked(session, frame);
  switch (static_cast<Kind>(frame.header.kind)) {
    case Kind::kHeartbeat:
      co_return beat_answered(session, frame.head);
    case Kind::kInitRequest:
      initialize(session);
      co_return Status();
    case Kind::kStateChunk: {
      CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::StateChunk>(frame.head));
      co_return co_await take_state(session, head, bytes);
    }
    case Kind::kPeers: {
      CENTROID_CO_ASSIGN(auto peers, proto::decode<proto::Peers>(frame.head));
      co_return peers_told(std::move(peers));
    }
    case Kind::kStateRequest: {
      CENTROID_CO_ASSIGN(const auto mark, proto::decode<proto::StateMark>(frame.head));
      tasks_->spawn(send_state(session, mark.version));
      co_return Status();
    }
    case Kind::kRoundOpen: {
      CENTROID_CO_ASSIGN(const auto open, proto::decode<proto::RoundOpen>(frame.head));
      co_return round_told(open);
    }
    case Kind::kResult: {
      CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ResultChunk>(frame.head));
      co_return co_await take_result(session, head, bytes);
    }
    case Kind::kRoundClosed: {
      CENTROID_CO_ASSIGN(auto closed, proto::decode<proto::RoundClosed>(frame.head));
      CENTROID_CO_TRY(co_await await_results(session, closed));
      co_return round_closed(std::move(closed));
    }
    case Kind::kKeep: {
      CENTROID_CO_ASSIGN(const auto keep, proto::decode<proto::Keep>(frame.head));
      keep_asked(keep.round);
      if (terms_.local_steps > 1) mailbox_.push({keep});
      co_return Status();
    }
    case Kind::kWait: {
      CENTROID_CO_ASSIGN(const auto wait, proto::decode<proto::Wait>(frame.head));
      log::info("round.waits", {{"ms", wait.ms}, {"why", wait.what}});
      co_return Status();
    }
    case Kind::kFinish: {
      CENTROID_CO_ASSIGN(auto finish, proto::decode<proto::Finish>(frame.head));
      mailbox_.push({std::move(finish)});
      co_return Status();
    }
    default:
      co_return Error(
          ErrorCode::kInvalidArgument,
          "unexpected message kind " + std::to_string(frame.header.kind) + " from the server");
  }
}

/// The parameters begin anew, at the values that the seed gives; the server is sent them.
void ServerLink::initialize(Session& session) {
  memory_.initialize(terms_.seed);
  if (params_.data() != memory_.params.data())  // the planes have changed places
    std::ranges::copy(memory_.params, params_.begin());
  for (auto& slot : slots_) std::fill(slot.begin(), slot.end(), 0.0f);
  tasks_->spawn(send_initial(session));
}

Task<void> ServerLink::send_initial(Session& session) {
  const auto kind = static_cast<std::uint16_t>(Kind::kInitChunk);
  for (const Chunk& chunk : plan_.chunks()) {
    proto::InitChunk message;
    message.chunk = chunk.id;
    const auto head = proto::encode(message);
    const Bytes values = std::as_bytes(params_.subspan(chunk.position, chunk.elements));
    const Status sent = co_await session.send(kind, head, values, TimePoint::max());
    if (!sent.ok()) co_return;
    fault::point("worker.parameters_sent");
  }
  const auto done = static_cast<std::uint16_t>(Kind::kInitDone);
  (void)co_await session.send(done, Bytes(), Bytes(), TimePoint::max());
}

Task<Status> ServerLink::take_state(Session& session, proto::StateChunk head, std::uint64_t bytes) {
  // Its memory is ours when the loop waits in `next`. It may still be applying the round before: a
  // server may send a newer state because the next round closed before this worker began it.
  while (!loop_waits() && !ending_)
    if (!co_await loop_ready_.wait(TimePoint::max()))
      co_return Error(ErrorCode::kCancelled, "the session is over");
  if (head.chunk.value >= plan_.chunks().size() || head.plane > slots_.size())
    co_return Error(ErrorCode::kInvalidArgument, "state chunk " + to_string(head.chunk) +
                                                     " of plane " + std::to_string(head.plane) +
                                                     " does not exist");
  const Chunk& chunk = plan_.chunk(head.chunk);
  const std::span<float> plane =
      head.plane == 0 ? params_ : std::span<float>(slots_[head.plane - 1u]);
  const auto into = std::as_writable_bytes(plane.subspan(chunk.position, chunk.elements));
  if (bytes != into.size())
    co_return Error(ErrorCode::kInvalidArgument, "state chunk " + to_string(head.chunk) + " has " +
                                                     std::to_string(bytes) + " bytes, expected " +
                                                     std::to_string(into.size()));
  bytes_in_.add(static_cast<double>(bytes));
  co_return co_await session.read_payload(into);
}

/// The server opens a round. The loop is to hear of the end of the round before first.
Status ServerLink::round_told(proto::RoundOpen open) {
  if (!undelivered_) return round_opened(open);
  if (opened_meanwhile_ && opened_meanwhile_->round == open.round) open.resend = false;
  opened_meanwhile_ = open;
  return {};
}

Status ServerLink::round_opened(proto::RoundOpen open) {
  const bool again = open.resend && open_ && open_->round == open.round;
  if (!again && open.resend)
    return Error(ErrorCode::kAborted, "the server wants round " + to_string(open.round) +
                                          " again, which we do not have");
  // A share may run into the next epoch.
  const std::uint64_t samples = options_.join.train_samples;
  if (open.end < open.begin || open.end > 2 * samples || open.end - open.begin > samples)
    return Error(ErrorCode::kInvalidArgument, "the share [" + std::to_string(open.begin) + ", " +
                                                  std::to_string(open.end) +
                                                  ") is outside the data");
  if (!again && open_) round_is_over(RoundEnd::kUndone);  // it was aborted and not opened again
  open_ = open;
  sent_end_ = false;
  have_.assign(plan_.chunks().size(), false);
  have_count_ = 0;
  tell_lost_rounds(open);
  held_ = open.version;
  feedback_.round_opened(open, again);
  if (!again) {
    ++serial_;
    order_.clear();
    stats_.reset();
    nonfinite_tensor_.clear();
    mailbox_.push({open});
  }
  wake_.notify_all();
  return {};
}

Task<Status> ServerLink::take_result(Session& session, proto::ResultChunk head,
                                     std::uint64_t bytes) {
  if (!open_ || head.round != open_->round || head.attempt != open_->attempt ||
      head.chunk.value >= plan_.chunks().size() || have_[head.chunk.value])
    co_return Error(ErrorCode::kInvalidArgument,
                    "result chunk " + to_string(head.chunk) + " of round " + to_string(head.round) +
                        " was not expected (twice, another round, or no such chunk)");
  // The loop has given nothing to this round: it may still read the results of the one before.
  // Another server sends such chunks when this process stood still and the round went on without.
  if (order_.empty() && !stats_) co_return Status();
  const Chunk& chunk = plan_.chunk(head.chunk);
  if (fragments_.number_of(chunk.tensor) != fragments_.turn(open_->optimizer_step))
    co_return Error(ErrorCode::kInvalidArgument, "result chunk " + to_string(head.chunk) +
                                                     " of round " + to_string(head.round) +
                                                     " is not of the round's fragment");
  const std::size_t limit =
      codec_down_ ? codec_down_->max_bytes(chunk.elements) : chunk.elements * sizeof(float);
  if (codec_down_ ? bytes > limit : bytes != limit)
    co_return Error(ErrorCode::kInvalidArgument, "result chunk " + to_string(head.chunk) + " has " +
                                                     std::to_string(bytes) + " bytes, expected " +
                                                     (codec_down_ ? "at most " : "") +
                                                     std::to_string(limit));
  MutableBytes into;
  if (codec_down_) {
    encoded_results_[head.chunk.value].resize(bytes);
    into = encoded_results_[head.chunk.value];
  } else {
    into = std::as_writable_bytes(results_.subspan(chunk.position, chunk.elements));
  }
  CENTROID_CO_TRY(co_await session.read_payload(into));
  bytes_in_.add(static_cast<double>(bytes));
  if (!open_ || head.round != open_->round || head.attempt != open_->attempt)
    co_return Status();  // another server's; the leader has given the attempt up meanwhile
  {
    const std::lock_guard lock(traffic_mutex_);
    codecs_.raw_in += chunk.elements * sizeof(float);
    codecs_.encoded_in += bytes;
  }
  have_[head.chunk.value] = true;
  ++have_count_;
  co_return Status();
}

Status ServerLink::decode_result(const Chunk& chunk, std::span<float> out) const {
  const Status decoded = codec_down_->decode(encoded_results_[chunk.id.value], out);
  if (decoded.ok()) return {};
  return decoded.error().with_context("result chunk " + to_string(chunk.id));
}

Result<std::optional<SparseNumbers>> ServerLink::sparse_result(const Chunk& chunk) const {
  auto numbers = codec_down_->sparse(encoded_results_[chunk.id.value], chunk.elements);
  if (numbers.ok()) return numbers;
  return numbers.error().with_context("result chunk " + to_string(chunk.id));
}

/// A server that was killed comes back with what it had kept: the rounds since are trained again.
void ServerLink::tell_lost_rounds(const proto::RoundOpen& open) {
  const auto before = std::exchange(left_with_, std::nullopt);
  if (!before || open.version >= *before || open.round.value == 1) return;  // job.begun_again
  log::warn("rounds.lost", {{"from", before->value},
                            {"to", open.version.value},
                            {"why", "the server came back with an older state"},
                            {"action", "journal.mode on keeps every round"}});
}

Status ServerLink::round_closed(proto::RoundClosed closed) {
  const bool is_given_up = opened_meanwhile_ && closed.round == opened_meanwhile_->round &&
                           closed.outcome == proto::Outcome::kAborted;
  if (is_given_up) return {};  // before we have begun it: another attempt comes
  if (!open_ || closed.round != open_->round || closed.attempt != open_->attempt)
    return Error(ErrorCode::kInvalidArgument,
                 "round " + to_string(closed.round) + " was closed, which is not the open one");
  if (closed.outcome == proto::Outcome::kCommitted) held_ = closed.version;
  const std::size_t wanted = fragment_of(*open_).chunks.size();
  if (closed.outcome == proto::Outcome::kCommitted && !options_.peers && have_count_ != wanted)
    return Error(ErrorCode::kInvalidArgument, "round " + to_string(closed.round) +
                                                  " was committed, but only " +
                                                  std::to_string(have_count_) + " of " +
                                                  std::to_string(wanted) + " result chunks came");
  if (closed.outcome == proto::Outcome::kAborted) {
    open_->attempt = ~std::uint32_t{0};  // nothing more is sent until the next RoundOpen
    return {};
  }
  if (proto::is_late(closed.outcome)) {
    behind_ = {open_->generation, open_->round, open_->attempt};
    open_->attempt = ~std::uint32_t{0};
  } else {
    const bool is_committed = closed.outcome == proto::Outcome::kCommitted;
    round_is_over(is_committed ? RoundEnd::kCommitted : RoundEnd::kSkipped);
    open_.reset();
  }
  undelivered_ = std::move(closed);
  wake_.notify_all();
  deliver_closed();
  return {};
}

/// What was sent is in the sum, is to be sent again in a later round, or never was.
void ServerLink::round_is_over(RoundEnd end) {
  feedback_.round_over(end, open_->round);
  if (open_->round.value % kResidualRounds == 1) look_at_residual();
  feedback_.keep_closed(end, open_->round);
}

/// The loop may touch its gradients again once it hears of the end, so it hears of it when nothing
/// is being sent any more.
void ServerLink::deliver_closed() {
  if (!undelivered_ || is_sending_) return;
  if (proto::is_late(undelivered_->outcome)) {  // it may have come in the middle of our sending
    round_is_over(late_end(*undelivered_));
    open_.reset();
  }
  if (undelivered_->outcome == proto::Outcome::kCommitted) committed_serial_ = serial_;
  mailbox_.push({*std::exchange(undelivered_, std::nullopt)});
  if (!opened_meanwhile_) return;
  const Status opened = round_opened(*std::exchange(opened_meanwhile_, std::nullopt));
  if (!opened.ok() && session_ != nullptr) session_->close(opened.error());
}

/// A round closed without us: once the loop has ended its work on it, so that the parameters may be
/// written, the server may send the state and open another round.
void ServerLink::say_ready() {
  if (!behind_ || undelivered_ || !loop_waits() || session_ == nullptr) return;
  const proto::Computed behind = *std::exchange(behind_, std::nullopt);
  tasks_->spawn(send_ready(*session_, behind));
}

Task<void> ServerLink::send_ready(Session& session, proto::Computed behind) {
  const auto head = proto::encode(behind);
  const auto kind = static_cast<std::uint16_t>(Kind::kReady);
  (void)co_await session.send(kind, head, Bytes(), TimePoint::max());
}

bool ServerLink::is_current(const proto::RoundOpen& open) const {
  return open_ && open_->round == open.round && open_->attempt == open.attempt &&
         open_->generation == open.generation;
}

/// Of our contribution in the mean; 0 with an empty share.
double ServerLink::weight_of(const proto::RoundOpen& open) const {
  const std::uint64_t samples = open.end - open.begin, batch = options_.join.batch;
  if (samples == 0) return 0;
  switch (terms_.weight_by) {
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

Task<void> ServerLink::sender(Session& session) {
  while (!session.is_closed()) {
    if (open_ && !sent_end_ && open_->attempt != ~std::uint32_t{0}) {
      is_sending_ = true;
      Status sent;
      if (options_.peers)
        sent = co_await add_with_peers(session, *open_);
      else
        sent = co_await send_contribution(session, *open_);
      is_sending_ = false;
      deliver_closed();
      if (!sent.ok()) {
        session.close(sent.error());
        co_return;
      }
    } else {
      const bool goes_on = co_await wake_.wait(TimePoint::max());
      if (!goes_on) co_return;
    }
  }
}

/// How often it is looked whether a GPU has selected; heartbeats and results go on meanwhile.
constexpr std::chrono::microseconds kLook{100};

/// Send tensors as they become ready, then the end; returns early when the attempt changes.
Task<Status> ServerLink::send_contribution(Session& session, proto::RoundOpen open) {
  const bool has_share = open.end > open.begin;
  const std::size_t tensors = fragment_of(open).tensors.size();
  std::size_t next = 0;
  squares_ = 0;
  while (is_current(open) && !session.is_closed()) {
    bool waits_for_all = feedback_.own() && feedback_.own()->needs_all() && order_.size() < tensors;
    if (terms_.weight_by == proto::WeightBy::kTokens && !stats_) waits_for_all = true;
    if (has_share && !waits_for_all && next < order_.size() && nonfinite_tensor_.empty()) {
      for (const Chunk& chunk : plan_.chunks_of(order_[next])) {
        Session* const owner = session_for(chunk.id, session);
        while (owner == nullptr && !session.is_closed())  // its loss ends the leader's session too
          co_await arrived_.wait(now() + std::chrono::milliseconds(100));
        if (owner == nullptr) co_return Status();
        CENTROID_CO_TRY(co_await send_chunk(*owner, chunk, open));
        if (!is_current(open) || !nonfinite_tensor_.empty()) break;
      }
      ++next;
    } else if (stats_ && (!has_share || next == tensors || !nonfinite_tensor_.empty())) {
      co_return co_await send_end(session, open);
    } else if (!co_await wake_.wait(TimePoint::max())) {
      co_return Status();
    }
  }
  co_return Status();
}

Task<Status> ServerLink::send_chunk(Session& session, const Chunk& chunk,
                                    const proto::RoundOpen& open) {
  const auto values = memory_.gradients.subspan(chunk.position, chunk.elements);
  const bool is_plain = options_.join.codec == "f32";
  const bool looks = terms_.nonfinite != static_cast<std::uint8_t>(proto::NonFinite::kPropagate);
  std::optional<std::uint32_t> crc;
  if (is_plain && looks) {
    const bool needs_sum = !session.sends_unsummed();
    double sum = 0;
    if (needs_sum)
      crc = checksum_of_finite(values, &sum);
    else
      sum = squares_of(values);
    squares_ += sum;
    if (needs_sum ? !crc : !std::isfinite(sum)) {
      nonfinite_tensor_ = plan_.manifest()[chunk.tensor.value].name;
      co_return Status();
    }
  }
  Bytes payload = std::as_bytes(values);
  if (!is_plain) {
    const TimePoint begin = now();
    while (feedback_.own() &&
           !feedback_.own()->prepare(chunk.id, open.round.value)) {  // a GPU is at it
      const TimePoint soon = now() + kLook;
      const bool goes_on = co_await sleep_until(soon);
      // What was begun may have been taken back meanwhile.
      if (!goes_on || session.is_closed() || !is_current(open)) co_return Status();
    }
    auto encoded = encode(chunk, open);
    // A GPU that fails is no gradient that is not finite: this worker ends, and not the job.
    if (!encoded.ok() && encoded.error().code() == ErrorCode::kInternal)
      co_return std::move(encoded).error();
    if (!encoded.ok()) {  // e.g. what was left out so far and this gradient are infinite together
      log::warn("codec.refused", {{"round", open.round.value}, {"why", encoded.error()}});
      nonfinite_tensor_ = plan_.manifest()[chunk.tensor.value].name;
      co_return Status();
    }
    payload = *encoded;
    double squares = 0;
    if (looks) squares = codec_->squares(payload, chunk.elements);  // as the server will
    squares_ += squares;
    // bf16 rounds the very largest numbers to infinity. Error feedback has looked while it added.
    if (!feedback_.own() && !std::isfinite(squares)) {
      nonfinite_tensor_ = plan_.manifest()[chunk.tensor.value].name;
      co_return Status();
    }
    const double seconds = encode_stage_.ended(lane_, begin, now(), open.round.value);
    const std::lock_guard lock(traffic_mutex_);
    codecs_.encode_seconds += seconds;
    if (!is_current(open) || session.is_closed()) co_return Status();  // meanwhile
  }
  proto::Push push;
  push.generation = open.generation;
  push.round = open.round;
  push.attempt = open.attempt;
  push.chunk = chunk.id;
  push.weight = weight_of(open);
  const auto head = proto::encode(push);
  const auto kind = static_cast<std::uint16_t>(Kind::kPush);
  const TimePoint begin = now();
  const Status sent = co_await session.send(kind, head, payload, TimePoint::max(), crc);
  send_seconds_ += send_.ended(lane_, begin, now(), open.round.value);
  bytes_out_.add(static_cast<double>(payload.size()));
  {
    const std::lock_guard lock(traffic_mutex_);
    codecs_.raw_out += values.size_bytes();
    codecs_.encoded_out += payload.size();
    ++codecs_.chunks;
    if (feedback_.own()) codecs_.dense_chunks = feedback_.own()->totals().dense_chunks;
  }
  co_return sent;
}

/// The chunk as it goes on the wire; the same bytes in every attempt of the round.
Result<Bytes> ServerLink::encode(const Chunk& chunk, const proto::RoundOpen& open) {
  if (feedback_.own())
    return feedback_.own()->encode(chunk.id, memory_.gradients, open.round.value);
  const std::uint64_t stream =
      mix64(mix64(terms_.seed, open.round.value), mix64(open.begin, chunk.id.value));
  const auto values = memory_.gradients.subspan(chunk.position, chunk.elements);
  CENTROID_ASSIGN(const auto bytes, codec_->encode(values, encoded_, stream));
  return Bytes(encoded_).first(bytes);
}

Task<Status> ServerLink::send_end(Session& session, const proto::RoundOpen& open) {
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
  end.send_seconds = std::exchange(send_seconds_, 0);
  end.addition_seconds = std::exchange(addition_seconds_, 0);
  end.exchange_seconds = stats_->exchange_seconds;
  end.divergence = stats_->divergence;
  // Parameters that blew up have no norm that could be told.
  end.parameter_norm = std::isfinite(stats_->parameter_norm) ? stats_->parameter_norm : -1;
  end.scalars = proto::to_wire(stats_->scalars);
  end.nonfinite = !nonfinite_tensor_.empty();
  end.nonfinite_tensor = nonfinite_tensor_;
  const bool looks = terms_.nonfinite != static_cast<std::uint8_t>(proto::NonFinite::kPropagate);
  if (!options_.peers && looks && !end.nonfinite && std::isfinite(squares_))
    end.norm = std::sqrt(squares_);
  const CodecTotals totals = codecs();
  end.encode_seconds = totals.encode_seconds - codecs_before_.encode_seconds;
  end.decode_seconds = totals.decode_seconds - codecs_before_.decode_seconds;
  if (end.decode_seconds > 0) decode_stage_.took(end.decode_seconds);
  end.residual_norm = totals.residual_norm;
  end.raw_bytes = totals.raw_out - codecs_before_.raw_out;
  end.encoded_bytes = totals.encoded_out - codecs_before_.encoded_out;
  end.chunks = static_cast<std::uint32_t>(totals.chunks - codecs_before_.chunks);
  end.dense_chunks = std::min(
      end.chunks, static_cast<std::uint32_t>(totals.dense_chunks - codecs_before_.dense_chunks));
  codecs_before_ = totals;
  sent_end_ = true;
  const auto head = proto::encode(end);
  const auto kind = static_cast<std::uint16_t>(Kind::kPushEnd);
  co_return co_await session.send(kind, head, Bytes(), TimePoint::max());
}

void ServerLink::ready(std::uint64_t serial, TensorId tensor) {
  if (serial != serial_) return;
  order_.push_back(tensor);
  wake_.notify_all();
}

void ServerLink::finish(std::uint64_t serial, StepStats stats, LoopSeconds before) {
  if (serial != serial_) return;
  stats_ = std::move(stats);
  before_ = before;
  wake_.notify_all();
}

void ServerLink::report(Evaluation evaluation) {
  if (session_ == nullptr || tasks_ == nullptr) return;
  auto send = [](Session* session, Evaluation e) -> Task<void> {
    proto::Report report;
    report.version = e.version;
    report.samples = e.samples;
    report.correct = e.correct;
    report.loss_sum = proto::wire_loss(e.loss_sum);
    const auto head = proto::encode(report);
    const auto kind = static_cast<std::uint16_t>(Kind::kReport);
    (void)co_await session->send(kind, head, Bytes(), TimePoint::max());
  };
  tasks_->spawn(send(session_, evaluation));
}

}  // namespace centroid::worker
