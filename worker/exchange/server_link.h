#pragma once

#include <memory>
#include <string>

#include "transport/connector.h"
#include "worker/exchange/peer_contribution.h"
#include "worker/exchange/shard_routes.h"
#include "worker/exchange/star_contribution.h"
#include "worker/exchange/state_transfer.h"

namespace centroid::worker {

/// The I/O half of a cluster's exchange: connects to the server that leads, joins, hands what comes
/// to the part that it belongs to, and leaves. Everything on one executor.
class ServerLink final : public transport::FrameSink {
 public:
  ServerLink(Executor executor, std::unique_ptr<transport::Transport> transport,
             ClusterOptions options, ExchangeMemory memory, Mailbox& mailbox,
             metrics::Registry& registry);

  /// Life of the link: connect, join, serve, again after a loss; ends after a final error or `end`.
  Task<void> run();

  // From the loop, posted to the executor; `serial` as in RoundState.
  void end(std::string reason);  ///< say goodbye; then `run` ends
  void loop_waits(std::uint64_t serial);
  void applied(std::uint64_t serial) { round_.applied(serial); }
  void ready(std::uint64_t serial, TensorId tensor) { round_.ready(serial, tensor); }
  void finish(std::uint64_t serial, StepStats stats, LoopSeconds before) {
    round_.finish(serial, std::move(stats), before);
  }
  void report(const Evaluation& evaluation);
  void local_saved(Round round, const Status& saved) { state_.local_saved(round, saved); }

  std::uint32_t compare_rounds() const { return link_.compare_rounds; }

  ModelPlanes& model() { return link_.model; }
  const ModelPlanes& model() const { return link_.model; }
  ExchangeCounters& counters() { return link_.counters; }
  CodecTotals codecs() const { return link_.counters.codecs(); }
  transport::TrafficCounters traffic() const;
  /// Results of the last round that was added among the workers, where they are sparse: nullptr
  /// when the plane of results holds all.
  const SparseMean* sparse_mean() const {
    return link_.peers() != nullptr ? link_.peers()->sparse_mean() : nullptr;
  }
  /// When `run` has ended: error feedback to disk.
  void save_feedback();

 private:
  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override;
  Task<Status> take_message(transport::Session& session, transport::InFrame frame);
  Task<Error> serve(transport::Session& session);
  Task<Status> join(transport::Session& session);
  Status accept_terms(proto::JoinReply terms);
  Status open_model(const proto::JoinReply& terms);
  Task<void> heartbeats(transport::Session& session);
  Task<void> send_contributions(transport::Session& session);
  Task<void> leave(transport::Session& session, std::string reason);

  LinkContext link_;
  RoundState round_;
  ShardRoutes routes_;
  StarContribution star_;
  PeerContribution peers_;
  StateTransfer state_;
  transport::Connector connector_;
  Event joined_;
  std::uint64_t term_ = 0;  ///< the highest that a server led in
  bool ending_ = false, is_joined_ = false, joined_once_ = false;
};

}  // namespace centroid::worker
