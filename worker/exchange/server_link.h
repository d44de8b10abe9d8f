#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/stage.h"
#include "common/base/thread.h"
#include "common/codec/codec.h"
#include "common/optim/optimizer.h"
#include "common/proto/about.h"
#include "common/proto/servers.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"
#include "common/tensor/fragments.h"
#include "transport/server_list.h"
#include "transport/session.h"
#include "worker/exchange/cluster_exchange.h"
#include "worker/exchange/link_feedback.h"
#include "worker/exchange/peer_reducer.h"

namespace centroid::worker {

/// What the I/O side tells the training loop, in order.
struct LinkEvent {
  struct Lost {
    Error cause;
  };
  std::variant<proto::RoundOpen, proto::RoundClosed, proto::Keep, proto::Finish, Lost, Error>
      what;  ///< Error: final
};

/// Of a contribution that came late: it counts in another round, or in none.
inline RoundEnd late_end(const proto::RoundClosed& closed) {
  return closed.outcome == proto::Outcome::kCarried ? RoundEnd::kPromised : RoundEnd::kSkipped;
}

/// What the loop's thread did beside computing, in one round.
struct LoopSeconds {
  double wait = 0;   ///< from the end of backward to the round's end
  double apply = 0;  ///< results becoming the parameters
};

/// Events from the I/O thread to the loop's thread.
class Mailbox {
 public:
  void push(LinkEvent event);
  void put_back(LinkEvent event);  ///< what was popped last
  /// The next event; nothing when a stop was requested.
  std::optional<LinkEvent> pop(bool heed_stop);
  /// The first reason stays. `at_once`: also those who do not heed a stop get nothing any more.
  void request_stop(const std::string& why, bool at_once = false);
  std::string stop_reason() const;

 private:
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<LinkEvent> events_;
  bool stop_ = false, at_once_ = false;
  std::string why_;
};

/// The I/O half of a cluster's exchange: connects, joins, sends and receives. Everything on one
/// executor. Files: server_link.cc (life), server_round.cc (star's rounds and the state),
/// server_keep.cc (what is kept with the server's checkpoints), server_route.cc (a model on several
/// servers), peer_round.cc (rounds whose gradients are added among the workers), peer_way.cc (the
/// way to another worker).
class ServerLink final : public transport::FrameSink {
 public:
  ServerLink(Executor executor, std::unique_ptr<transport::Transport> transport,
             ClusterOptions options, ExchangeMemory memory, Mailbox& mailbox,
             metrics::Registry& registry);

  /// Life of the link: connect, join, serve, again after a loss; ends after a final error or `end`.
  Task<void> run();

  // From the loop, posted to the executor; `serial` names the round they belong to, late ones are
  // ignored.
  void end(std::string reason);  ///< say goodbye; then `run` ends
  /// The loop is in `next`, behind that many rounds: its memory is ours until it gets another.
  void loop_waits(std::uint64_t serial);
  void begin(std::uint64_t serial);
  void ready(std::uint64_t serial, TensorId tensor);
  void finish(std::uint64_t serial, StepStats stats, LoopSeconds before);
  void report(Evaluation evaluation);
  void local_kept(Round round, const Status& kept);  ///< of a Keep that the loop has heard

  // Fixed after the first join; read by the loop when it has got its first RoundOpen.
  const proto::JoinReply& terms() const { return terms_; }
  const ChunkPlan& plan() const { return plan_; }
  const FragmentPlan& fragments() const { return fragments_; }
  /// The parameters, and the plane in which results arrive. The loop may let them change places
  /// between a round's end and its next `ready`.
  std::span<float> params() const { return params_; }
  std::span<float> results() const { return results_; }
  /// Results come through a codec: one chunk of them, decoded into `out` (chunk.elements).
  bool results_are_encoded() const { return codec_down_ != nullptr; }
  Status decode_result(const Chunk& chunk, std::span<float> out) const;
  /// Its numbers, when they are few (Codec::sparse).
  Result<std::optional<SparseNumbers>> sparse_result(const Chunk& chunk) const;
  /// Results that were added among the workers, where they are sparse: nullptr when `results` holds
  /// all.
  const SparseMean* sparse_mean() const {
    return options_.peers ? options_.peers->sparse_mean() : nullptr;
  }
  void swap_planes() { std::swap(params_, results_); }
  std::span<const std::vector<float>> slots() const { return slots_; }
  std::vector<std::vector<float>>& mutable_slots() { return slots_; }
  transport::TrafficCounters traffic() const;
  CodecTotals codecs() const;
  void decoded(double seconds);  ///< from the loop
  void look_at_residual();       ///< also when `run` has ended
  void leave_feedback();         ///< when `run` has ended: to disk

 private:
  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override;
  Task<Result<std::unique_ptr<transport::Session>>> connect(Deadline deadline);
  Task<Status> enter(transport::Session& session);
  Task<void> say_goodbye(transport::Session& session, std::string reason);
  Task<Error> serve(transport::Session& session);
  Status accept_terms(proto::JoinReply reply);
  Status take_first_terms(const proto::JoinReply& reply, ChunkPlan plan);
  Status open_results(const proto::JoinReply& reply);
  Status meet_peers();
  Status begin_local(const proto::JoinReply& reply);
  Task<void> heartbeats(transport::Session& session);
  struct AskedWay {
    transport::FrameHeader request;
    proto::Measure measure;
  };
  Status measure_asked(transport::Session& session, const transport::InFrame& frame);
  Task<void> measure_way(transport::Session& session, std::shared_ptr<const AskedWay> asked);
  void initialize(transport::Session& session);
  Task<void> send_initial(transport::Session& session);
  Task<void> sender(transport::Session& session);
  Task<Status> send_contribution(transport::Session& session, proto::RoundOpen open);
  Task<Status> add_with_peers(transport::Session& session, proto::RoundOpen open);
  Status peers_told(proto::Peers peers);
  Result<collective::Roster> roster_of(const proto::RoundOpen& open) const;
  Task<void> send_state(transport::Session& session, Version version);
  void count(const CodedStats& stats, Round round);
  Task<void> send_ready(transport::Session& session, proto::Computed behind);
  void say_ready();
  Task<Status> send_chunk(transport::Session& session, const Chunk& chunk,
                          const proto::RoundOpen& open);
  Result<Bytes> encode(const Chunk& chunk, const proto::RoundOpen& open);
  void round_is_over(RoundEnd end);
  void tell_of_writes();
  Status beat_answered(transport::Session& session, Bytes head);
  void keep_asked(Round round);
  void feedback_written(Round round, const Status& written);
  void say_kept();
  Task<void> tell_kept(transport::Session& session, std::vector<std::byte> head);
  Task<Status> send_end(transport::Session& session, const proto::RoundOpen& open);
  bool is_current(const proto::RoundOpen& open) const;
  double weight_of(const proto::RoundOpen& open) const;
  const FragmentPlan::Fragment& fragment_of(const proto::RoundOpen& open) const {
    return fragments_[fragments_.turn(open.optimizer_step)];
  }
  Task<Status> take_result(transport::Session& session, proto::ResultChunk head,
                           std::uint64_t bytes);
  Task<Status> take_state(transport::Session& session, proto::StateChunk head, std::uint64_t bytes);
  class ShardSink;
  friend class ShardSink;
  struct ShardLink {
    proto::RouteServer server;
    transport::Session* session = nullptr;  // once it let us in
    bool is_dropped = false;
  };
  transport::Session* session_for(ChunkId chunk, transport::Session& leader) const;
  Task<Status> route_told(transport::Session& leader, proto::Route route);
  Task<Status> enter_shard(transport::Session& session, std::shared_ptr<ShardLink> shard,
                           std::uint64_t route);
  Task<Error> run_shard(std::shared_ptr<ShardLink> shard, std::uint64_t route);
  Task<void> serve_shard(transport::Session& leader, std::shared_ptr<ShardLink> shard,
                         std::uint64_t route);
  Task<Status> await_results(transport::Session& leader, proto::RoundClosed closed);
  Status round_told(proto::RoundOpen open);
  Status round_opened(proto::RoundOpen open);
  void tell_lost_rounds(const proto::RoundOpen& open);
  Status round_closed(proto::RoundClosed closed);
  void deliver_closed();

  Executor executor_;
  std::unique_ptr<transport::Transport> transport_;
  ClusterOptions options_;
  ExchangeMemory memory_;
  Mailbox& mailbox_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<Codec> codec_down_;                    // nullptr: results are floats
  std::vector<std::vector<std::byte>> encoded_results_;  // per chunk
  LinkFeedback feedback_;
  /// A Keep that is not answered yet.
  struct Keeping {
    Round round;
    bool awaits_feedback = false, awaits_loop = false;
    Status kept;
  };
  std::optional<Keeping> keeping_;
  bool tells_kept_ = false;                          // the server takes answers to Keep
  std::optional<std::pair<Round, Status>> written_;  // by the keeper, last
  /// What other threads post is for this, until `end`.
  std::shared_ptr<ServerLink*> here_ = std::make_shared<ServerLink*>(this);
  Event wake_;  // sender
  Event loop_ready_, joined_;
  Event arrived_;  // a result, or a session with another server
  bool loop_waits() const { return waits_serial_ == serial_; }
  /// The loop has made the results of every committed round its parameters.
  bool has_applied() const { return waits_serial_.value_or(0) >= committed_serial_; }
  std::optional<std::uint64_t> waits_serial_;
  std::uint64_t committed_serial_ = 0;    // of the last committed round
  TimePoint give_up_ = TimePoint::max();  ///< when the join timeout is over
  transport::ServerList servers_;
  std::uint64_t term_ = 0;  ///< the highest that a server led in
  bool ending_ = false, is_joined_ = false, joined_once_ = false, is_measuring_ = false;
  transport::Session* session_ = nullptr;
  TaskGroup* tasks_ = nullptr;  // of the session

  proto::JoinReply terms_;
  ChunkPlan plan_;
  FragmentPlan fragments_;
  Buffer second_plane_;
  std::span<float> params_, results_;
  std::vector<std::vector<float>> slots_;
  std::vector<std::byte> encoded_;

  // several servers
  proto::Route route_;                              // no owners: all chunks are the leader's
  std::vector<std::shared_ptr<ShardLink>> shards_;  // by server of the route; the first is nullptr

  // the open round
  std::optional<proto::RoundOpen> open_;
  std::uint64_t serial_ = 0;     // counts rounds handed to the loop
  std::vector<TensorId> order_;  // tensors in the order they became ready
  std::optional<StepStats> stats_;
  LoopSeconds before_;                              // of the round before
  double send_seconds_ = 0, addition_seconds_ = 0;  // since the last PushEnd
  bool sent_end_ = false, is_sending_ = false;
  std::string nonfinite_tensor_;
  double squares_ = 0;                 ///< of the numbers sent in this attempt, as they are decoded
  std::optional<proto::Peers> peers_;  // of the generation that was told last
  Version held_;                       // of the parameters, as far as the link knows
  std::optional<Version> left_with_;   // what the server had that is gone; until the next round
  std::vector<bool> have_;
  std::size_t have_count_ = 0;
  std::optional<proto::RoundClosed> undelivered_;
  std::optional<proto::RoundOpen> opened_meanwhile_;  ///< to follow `undelivered_`
  std::optional<proto::Computed> behind_;             // the round that closed without us

  transport::TrafficCounters closed_traffic_, live_traffic_;
  CodecTotals codecs_, codecs_before_;  // the second: what earlier PushEnds have told
  mutable Mutex traffic_mutex_;         // for all traffic and codecs_
  metrics::Counter reconnects_, bytes_out_, bytes_in_;
  trace::StageProbe send_, encode_stage_, decode_stage_, exchange_;
  const trace::Lane lane_{"server"}, peers_lane_{"peers"};
};

}  // namespace centroid::worker
