#include "worker/exchange/peer_contribution.h"

#include <memory>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "transport/echo.h"
#include "worker/exchange/step_guard.h"

namespace centroid::worker {

using proto::Kind;
using transport::Session;

namespace {

constexpr std::chrono::seconds kReachTime{5};
/// Of many peers some: each one is tried by others, too.
constexpr std::size_t kMostReached = 64;

}  // namespace

Result<bool> PeerContribution::configure(std::string codec) {
  const proto::JoinReply& terms = link_.model.terms();
  peers_.reset();
  link_.peers_of.reset();
  ReduceTerms reduce;
  reduce.run_id = terms.run_id;
  reduce.algorithm = static_cast<collective::Algorithm>(terms.algorithm);
  reduce.bucket_bytes = terms.bucket_bytes;
  reduce.orders_by_bandwidth = terms.ring_by_bandwidth;
  reduce.timeout = std::chrono::milliseconds(terms.peer_timeout_ms);
  reduce.refuses_nonfinite = link_.model.checks_nonfinite();
  reduce.codec = std::move(codec);
  reduce.seed = terms.seed;
  reduce.fragments = terms.fragments;
  reduce.may_list = terms.optimizer.clip_norm == 0;  // whose norm is that of the plane
  return link_.peers()->configure(link_.model.plan(), std::move(reduce));
}

Status PeerContribution::set_peers(proto::Peers peers) {
  if (link_.peers() == nullptr)
    return Error(ErrorCode::kFailedPrecondition,
                 "the server names peers, but this worker's exchange is '" +
                     link_.options.join.exchange + "'");
  link_.peers_of = peers.generation;
  peers_ = std::move(peers);
  return {};
}

Result<PeerReducer::Job> PeerContribution::job_of(const proto::RoundOpen& open) const {
  const std::string where =
      "round " + to_string(open.round) + " in generation " + to_string(open.generation);
  if (!peers_ || peers_->generation != open.generation)
    return Error(ErrorCode::kInvalidArgument, where + ": its peers were not told before it");
  if (peers_->ranks.size() != open.world || open.rank.value >= open.world)
    return Error(ErrorCode::kInvalidArgument, where + ": rank " + to_string(open.rank) + " of " +
                                                  std::to_string(open.world) + " does not fit " +
                                                  std::to_string(peers_->ranks.size()) + " peers");
  PeerReducer::Job job;
  job.roster.generation = open.generation.value;
  job.roster.rank = open.rank.value;
  for (const proto::Peer& peer : peers_->ranks) {
    CENTROID_ASSIGN(auto endpoint, transport::Endpoint::parse(peer.endpoint));
    job.roster.endpoints.push_back(std::move(endpoint));
    job.roster.nodes.push_back(peer.node);
  }
  job.round = open.round.value;
  job.fragment = link_.model.fragments().turn(open.optimizer_step);
  job.weight = round_.weight_of(open);
  job.gradients = link_.model.memory().gradients;
  job.mean = link_.model.results();
  if (link_.model.terms().apply_on_worker) {
    auto guard = std::make_shared<StepGuard>(link_.model, open);
    job.refused_tensor = [guard](bool is_large, const SparseMean* listed) {
      return guard->refused_tensor(is_large, listed);
    };
    job.looks_at_mean = [guard] { return guard->looks_at_mean(); };
  }
  return job;
}

/// Peers that it has not reached before: an unreachable one is found now, not when the sum has
/// made no progress for long.
Task<std::optional<PeerReducer::Outcome>> PeerContribution::reach(
    const collective::Roster& roster) {
  for (std::uint32_t rank = 0; rank < roster.endpoints.size(); ++rank) {
    const transport::Endpoint& there = roster.endpoints[rank];
    if (rank == roster.rank || reached_.contains(there.to_string())) continue;
    if (reached_.size() >= kMostReached) break;
    const Status is_there = co_await link_.peers()->reach(there, kReachTime);
    if (!is_there.ok()) {
      PeerReducer::Outcome unreachable;
      unreachable.status = is_there;
      unreachable.culprit = rank;
      co_return unreachable;
    }
    reached_.insert(there.to_string());
  }
  co_return std::nullopt;
}

Task<Status> PeerContribution::add(Session& leader, proto::RoundOpen open) {
  // The reducer uses the gradients until it says so: whatever happens here, that is waited for.
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  const auto is_over = [&] { return !round_.is_current(open) || leader.is_closed(); };
  // With an empty share results are written at once: not while the loop still applies the last
  // ones.
  while (!round_.is_applied() && !is_over())
    co_await round_.changed();  // lint-ok: cancellation is off
  if (is_over()) co_return Status();
  auto job = job_of(open);
  if (!job.ok()) co_return std::move(job).error();
  std::optional<PeerReducer::Outcome> outcome = co_await reach(job->roster);
  if (is_over()) co_return Status();
  if (outcome) co_return co_await fail(leader, open, *outcome);
  const TimePoint begin = now();
  const auto take = [&](PeerReducer::Outcome ended) {
    auto post = [&, ended = std::move(ended)]() mutable {
      outcome = std::move(ended);
      round_.notify();
    };
    boost::asio::post(link_.executor, std::move(post));
  };
  link_.peers()->start(std::move(job).value(), take);
  std::size_t told = 0;
  bool said_computed = false;
  while (!outcome) {
    if (is_over()) link_.peers()->abort(Error(ErrorCode::kAborted, "the server ended the attempt"));
    const std::vector<TensorId>& ready = round_.ready_tensors();
    for (; round_.is_current(open) && told < ready.size(); ++told)
      link_.peers()->ready(ready[told]);
    if (round_.is_current(open) && round_.stats() && !said_computed) {
      said_computed = true;
      proto::Computed computed;
      computed.generation = open.generation;
      computed.round = open.round;
      computed.attempt = open.attempt;
      auto head = proto::encode(computed);
      (void)co_await LinkContext::send(leader, Kind::kComputed, std::move(head));
      continue;  // what changed meanwhile was not heard
    }
    co_await round_.changed();  // lint-ok: cancellation is off
  }
  count(outcome->stats, begin, open.round);
  while (outcome->status.ok() && !round_.stats() && !is_over())
    co_await round_.changed();  // lint-ok: cancellation is off
  if (is_over()) co_return Status();
  round_.set_nonfinite(outcome->nonfinite_tensor);
  if (outcome->status.ok()) {
    const double squares = outcome->norm < 0 ? kNoNorm : outcome->norm * outcome->norm;
    auto head = round_.push_end(open, squares);
    co_return co_await LinkContext::send(leader, Kind::kPushEnd, std::move(head));
  }
  co_return co_await fail(leader, open, *outcome);
}

Task<Status> PeerContribution::fail(Session& leader, const proto::RoundOpen& open,
                                    const PeerReducer::Outcome& outcome) {
  log::warn("peers.failed", {{"round", open.round.value}, {"why", outcome.status.error()}});
  proto::ExchangeFailed failed;
  failed.generation = open.generation;
  failed.round = open.round;
  failed.attempt = open.attempt;
  failed.has_culprit = outcome.culprit.has_value();
  failed.culprit = Rank(outcome.culprit.value_or(0));
  failed.reason = outcome.status.error().message();
  round_.set_sent();
  auto head = proto::encode(failed);
  co_return co_await LinkContext::send(leader, Kind::kExchangeFailed, std::move(head));
}

void PeerContribution::count(const CodedStats& stats, TimePoint begin, Round round) {
  ExchangeCounters& counters = link_.counters;
  const TimePoint end = now();
  counters.addition_seconds +=
      counters.exchange.ended(counters.peers_lane, begin, end, round.value);
  counters.update([&](CodecTotals& totals) {
    totals.raw_out += stats.raw_bytes;
    totals.encoded_out += stats.encoded_bytes;
    totals.chunks += stats.chunks;
    totals.dense_chunks += stats.dense_chunks;
    totals.encode_seconds += stats.encode_seconds;
    totals.decode_seconds += stats.decode_seconds;
    totals.raw_in += stats.raw_bytes_in;
    totals.encoded_in += stats.encoded_bytes_in;
    totals.residual_norm = stats.residual_norm;
  });
  if (stats.chunks == 0) return;
  const auto spent = std::chrono::duration<double>(stats.encode_seconds);  // of many pieces
  counters.encode.ended(counters.lane, end - std::chrono::duration_cast<Duration>(spent), end,
                        round.value);
}

Status PeerContribution::measure(const transport::InFrame& frame) {
  CENTROID_ASSIGN(auto measure, proto::decode<proto::Measure>(frame.head));
  auto asked = std::make_shared<const Measurement>(frame.header, std::move(measure));
  link_.tasks->spawn(measure_now(*link_.leader, std::move(asked)));
  return {};
}

Task<void> PeerContribution::measure_now(Session& leader,
                                         std::shared_ptr<const Measurement> asked) {
  const auto found = co_await measured(asked);
  if (found.ok()) {
    const auto head = proto::encode(*found);
    (void)co_await leader.respond(asked->first, head);
  } else {
    (void)co_await leader.respond_error(asked->first, found.error());
  }
}

Task<Result<proto::Measured>> PeerContribution::measured(std::shared_ptr<const Measurement> asked) {
  if (!link_.options.peers)
    co_return Error(ErrorCode::kFailedPrecondition,
                    "this worker meets no others: the exchange is " + link_.options.join.exchange);
  if (is_measuring_) co_return Error(ErrorCode::kAborted, "another way is being measured: repeat");
  CENTROID_CO_ASSIGN(const auto there, transport::Endpoint::parse(asked->second.endpoint));
  const std::chrono::milliseconds time(asked->second.ms);
  is_measuring_ = true;
  const auto report = co_await link_.options.peers->measure(there, link_.model.terms().run_id, time,
                                                            asked->second.bytes);
  is_measuring_ = false;
  if (!report.ok()) co_return report.error();
  proto::Measured out;
  out.round_trips = report->round_trips;
  out.median_seconds = report->median_seconds;
  out.p99_seconds = report->p99_seconds;
  out.bytes_per_second_out = report->bytes_per_second_out;
  out.bytes_per_second_in = report->bytes_per_second_in;
  co_return out;
}

}  // namespace centroid::worker
