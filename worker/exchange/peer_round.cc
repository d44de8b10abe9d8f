#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "worker/exchange/server_link.h"

/// Rounds whose gradients are added among the workers: the server says who and when, and gets the
/// state when it needs it.
namespace centroid::worker {

using proto::Kind;
using transport::Session;

Status ServerLink::peers_told(proto::Peers peers) {
  if (!options_.peers)
    return Error(
        ErrorCode::kFailedPrecondition,
        "the server names peers, but this worker's exchange is '" + options_.join.exchange + "'");
  peers_ = std::move(peers);
  return {};
}

Result<collective::Roster> ServerLink::roster_of(const proto::RoundOpen& open) const {
  const std::string where =
      "round " + to_string(open.round) + " in generation " + to_string(open.generation);
  if (!peers_ || peers_->generation != open.generation)
    return Error(ErrorCode::kInvalidArgument, where + ": its peers were not told before it");
  if (peers_->ranks.size() != open.world || open.rank.value >= open.world)
    return Error(ErrorCode::kInvalidArgument, where + ": rank " + to_string(open.rank) + " of " +
                                                  std::to_string(open.world) + " does not fit " +
                                                  std::to_string(peers_->ranks.size()) + " peers");
  collective::Roster roster;
  roster.generation = open.generation.value;
  roster.rank = open.rank.value;
  for (const proto::Peer& peer : peers_->ranks) {
    CENTROID_ASSIGN(auto endpoint, transport::Endpoint::parse(peer.endpoint));
    roster.endpoints.push_back(std::move(endpoint));
    roster.nodes.push_back(peer.node);
  }
  return roster;
}

/// The whole of an attempt: begin the additions, pass on what becomes ready, and tell the server
/// how it ended.
Task<Status> ServerLink::add_with_peers(Session& session, proto::RoundOpen open) {
  // The reducer uses the gradients until it says so: whatever happens here, that is waited for.
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  auto roster = roster_of(open);
  if (!roster.ok()) co_return std::move(roster).error();
  // With an empty share results are written at once: not while the loop still applies the last
  // ones.
  while (!has_applied() && is_current(open) && !session.is_closed())
    co_await loop_ready_.wait(TimePoint::max());  // lint-ok: cancellation is off
  if (!is_current(open) || session.is_closed()) co_return Status();
  PeerReducer::Job job;
  job.roster = std::move(roster).value();
  job.round = open.round.value;
  job.fragment = fragments_.turn(open.optimizer_step);
  job.weight = weight_of(open);
  job.gradients = memory_.gradients;
  job.mean = results_;
  std::optional<PeerReducer::Outcome> outcome;
  const auto done = [this, &outcome](PeerReducer::Outcome ended) {
    auto take = [this, &outcome, ended = std::move(ended)]() mutable {
      outcome = std::move(ended);
      wake_.notify_all();
    };
    boost::asio::post(executor_, std::move(take));
  };
  const TimePoint begin = centroid::now();
  options_.peers->start(std::move(job), done);
  const auto kComputed = static_cast<std::uint16_t>(Kind::kComputed);
  std::size_t told = 0;
  bool said_computed = false;
  while (!outcome) {
    if (!is_current(open) || session.is_closed())
      options_.peers->abort(Error(ErrorCode::kAborted, "the server ended the attempt"));
    for (; is_current(open) && told < order_.size(); ++told) options_.peers->ready(order_[told]);
    if (is_current(open) && stats_ && !said_computed) {
      said_computed = true;
      proto::Computed computed;
      computed.generation = open.generation;
      computed.round = open.round;
      computed.attempt = open.attempt;
      const auto head = proto::encode(computed);
      (void)co_await session.send(kComputed, head, Bytes(), TimePoint::max());
      continue;  // what changed meanwhile was not heard
    }
    co_await wake_.wait(TimePoint::max());  // lint-ok: cancellation is off
  }
  addition_seconds_ += exchange_.ended(peers_lane_, begin, centroid::now(), open.round.value);
  count(outcome->stats, open.round);
  while (outcome->status.ok() && is_current(open) && !stats_ && !session.is_closed())
    co_await wake_.wait(TimePoint::max());  // lint-ok: cancellation is off
  if (!is_current(open) || session.is_closed()) co_return Status();
  nonfinite_tensor_ = outcome->nonfinite_tensor;
  if (outcome->status.ok()) co_return co_await send_end(session, open);

  log::warn("peers.failed", {{"round", open.round.value}, {"why", outcome->status.error()}});
  proto::ExchangeFailed failed;
  failed.generation = open.generation;
  failed.round = open.round;
  failed.attempt = open.attempt;
  failed.has_culprit = outcome->culprit.has_value();
  failed.culprit = Rank(outcome->culprit.value_or(0));
  failed.reason = outcome->status.error().message();
  sent_end_ = true;  // nothing more of this attempt
  const auto head = proto::encode(failed);
  const auto kind = static_cast<std::uint16_t>(Kind::kExchangeFailed);
  co_return co_await session.send(kind, head, Bytes(), TimePoint::max());
}

void ServerLink::count(const CodedStats& stats, Round round) {
  const std::lock_guard lock(traffic_mutex_);
  codecs_.raw_out += stats.raw_bytes;
  codecs_.encoded_out += stats.encoded_bytes;
  codecs_.chunks += stats.chunks;
  codecs_.dense_chunks += stats.dense_chunks;
  codecs_.encode_seconds += stats.encode_seconds;
  codecs_.decode_seconds += stats.decode_seconds;
  codecs_.raw_in += stats.raw_bytes_in;
  codecs_.encoded_in += stats.encoded_bytes_in;
  codecs_.residual_norm = stats.residual_norm;
  if (stats.chunks == 0) return;
  const TimePoint end = centroid::now();  // many pieces, told as one
  const auto spent = std::chrono::duration<double>(stats.encode_seconds);
  encode_stage_.ended(lane_, end - std::chrono::duration_cast<Duration>(spent), end, round.value);
}

/// Everything we hold of a version, plane by plane: it changes only when a round is committed.
Task<void> ServerLink::send_state(Session& session, Version version) {
  while (!has_applied() && !session.is_closed())
    if (!co_await loop_ready_.wait(TimePoint::max())) co_return;
  if (version != held_) {
    session.close(Error(ErrorCode::kInvalidArgument, "the server asks for the state of version " +
                                                         to_string(version) + ", we hold " +
                                                         to_string(held_)));
    co_return;
  }
  const auto kind = static_cast<std::uint16_t>(Kind::kStateChunk);
  for (std::size_t plane = 0; plane <= slots_.size(); ++plane) {
    const std::span<const float> from =
        plane == 0 ? std::span<const float>(params_) : std::span<const float>(slots_[plane - 1]);
    for (const Chunk& chunk : plan_.chunks()) {
      proto::StateChunk message;
      message.version = version;
      message.plane = static_cast<std::uint8_t>(plane);
      message.chunk = chunk.id;
      const auto head = proto::encode(message);
      const Bytes values = std::as_bytes(from.subspan(chunk.position, chunk.elements));
      const Status sent = co_await session.send(kind, head, values, TimePoint::max());
      if (!sent.ok()) co_return;
    }
  }
  proto::StateMark mark;
  mark.version = version;
  const auto head = proto::encode(mark);
  (void)co_await session.send(static_cast<std::uint16_t>(Kind::kStateDone), head, Bytes(),
                              TimePoint::max());
}

}  // namespace centroid::worker
