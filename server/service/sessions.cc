#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/proto/about.h"
#include "common/proto/standby.h"
#include "server/service/buffers.h"
#include "server/service/cluster.h"
#include "server/service/kept.h"
#include "server/service/pulls.h"
#include "server/shard/read_manifest.h"
#include "transport/echo.h"

namespace centroid::server {

using proto::Kind;
using transport::InFrame;
using transport::Session;

namespace {
constexpr std::chrono::seconds kJoinTimeout{10};
constexpr auto kServerJoin = static_cast<std::uint16_t>(proto::ServersKind::kServerJoin);

/// Numbers of docs/algorithms.md.
std::uint8_t algorithm_of(const ServerConfig& config) {
  if (config.exchange == "hierarchical") return 4;
  if (config.reduce_algorithm == "ring") return 1;
  if (config.reduce_algorithm == "recursive-doubling") return 2;
  return config.reduce_algorithm == "chain" ? 3 : 0;
}

bool carries_momentum(const OptimizerConfig& config) {
  const auto optimizer = make_optimizer(config);
  if (!optimizer.ok()) return false;
  const auto slots = optimizer.value()->slot_names();
  return std::ranges::any_of(
      slots, [](const auto& name) { return name == "momentum_buffer" || name == "exp_avg"; });
}
}  // namespace

/// Frames of one session, from Join to its end.
class Cluster::MemberSink final : public transport::FrameSink {
 public:
  MemberSink(Cluster& cluster, TaskGroup& tasks) : cluster_(cluster), tasks_(tasks) {}

  Task<Status> on_frame(Session& session, InFrame frame) override {
    const auto kind = static_cast<Kind>(frame.header.kind);
    const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
    // Whoever passed the handshake may measure the way here; without Join it ends after 10 s.
    if (!link_ && !rows_ && frame.header.kind == transport::kEcho)
      co_return co_await transport::answer_echo(session, frame);
    const Status is_legal = proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                               frame.header.payload_bytes);
    // Who is to come again when the server is ready is answered; others are sent away.
    const bool is_join = kind == Kind::kJoin || frame.header.kind == kServerJoin;
    if (!link_ && !(is_join && cluster_.gate_.is_beginning()))
      CENTROID_CO_TRY(cluster_.gate_.check_lead());
    if (shard_ || (!link_ && frame.header.kind == kServerJoin)) {
      CENTROID_CO_TRY(is_legal);
      co_return co_await serve_shard(session, std::move(frame));
    }
    if (is_pulling_ || (!link_ && !rows_ && Pulls::opens(frame.header.kind))) {
      CENTROID_CO_TRY(is_legal);
      co_return pull(session, frame);
    }
    if (!link_ && (rows_ || RowsService::opens(frame.header.kind))) {
      CENTROID_CO_TRY(is_legal);
      if (!rows_) rows_.emplace(cluster_.rows_, session);
      co_return co_await cluster_.rows_.on_frame(session, frame, *rows_);
    }
    if (!link_) {
      if (kind != Kind::kJoin)
        co_return Error(ErrorCode::kFailedPrecondition,
                        "the first message must be Join (16), RowsOpen (64) or Pull (80), not " +
                            std::to_string(frame.header.kind));
      CENTROID_CO_TRY(is_legal);
      co_return co_await join(session, std::move(frame));
    }
    if (link_->is_gone)
      co_return Error(ErrorCode::kAborted,
                      "fenced: this member is no longer part of the cluster; join again");
    CENTROID_CO_TRY(is_legal);
    if (frame.header.kind == static_cast<std::uint16_t>(proto::AboutKind::kKept)) {
      CENTROID_CO_ASSIGN(const auto kept, proto::decode<proto::Kept>(frame.head));
      keep_answered(cluster_.events_, *link_, kept);
      co_return Status();
    }
    switch (kind) {
      case Kind::kPush: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::Push>(frame.head));
        co_return co_await cluster_.contributions_.take_push(session, link_, head,
                                                             frame.header.payload_bytes);
      }
      case Kind::kPushEnd: {
        CENTROID_CO_ASSIGN(const auto end, proto::decode<proto::PushEnd>(frame.head));
        co_return cluster_.contributions_.take_push_end(*link_, end);
      }
      case Kind::kHeartbeat: {
        if (!frame.head.empty()) {
          CENTROID_CO_ASSIGN(const auto beat, proto::decode<proto::Beat>(frame.head));
          link_->clock.heard(beat.unix_seconds, cluster_.clock_.unix_seconds());
          link_->program = beat.version;
        }
        const std::uint16_t answer = static_cast<std::uint16_t>(Kind::kHeartbeat);
        proto::BeatReply reply;
        reply.takes = proto::BeatReply::kTakesKept;
        const auto head = proto::encode(reply);
        co_return co_await session.send(answer, head, Bytes(), TimePoint::max());
      }
      case Kind::kInitChunk: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::InitChunk>(frame.head));
        co_return co_await cluster_.initial_values_.take_init_chunk(session, link_, head,
                                                                    frame.header.payload_bytes);
      }
      case Kind::kInitDone:
        co_return cluster_.initial_values_.init_done(*link_);
      case Kind::kStateChunk: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::StateChunk>(frame.head));
        co_return co_await cluster_.exchange_.take_state_chunk(session, link_, head,
                                                               frame.header.payload_bytes);
      }
      case Kind::kStateDone: {
        CENTROID_CO_ASSIGN(const auto mark, proto::decode<proto::StateMark>(frame.head));
        co_return cluster_.exchange_.state_done(*link_, mark);
      }
      case Kind::kComputed: {
        CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::Computed>(frame.head));
        link_->computed = {head.generation, head.round, head.attempt};
        co_return Status();
      }
      case Kind::kReady: {
        CENTROID_CO_ASSIGN(const auto done, proto::decode<proto::Computed>(frame.head));
        cluster_.elastic_.member_ready(*link_, done);
        co_return Status();
      }
      case Kind::kExchangeFailed: {
        CENTROID_CO_ASSIGN(const auto failed, proto::decode<proto::ExchangeFailed>(frame.head));
        cluster_.exchange_.exchange_failed(*link_, failed);
        co_return Status();
      }
      case Kind::kReport: {
        CENTROID_CO_ASSIGN(const auto report, proto::decode<proto::Report>(frame.head));
        co_return cluster_.contributions_.take_report(*link_, report);
      }
      case Kind::kLeave: {
        CENTROID_CO_ASSIGN(const auto leave, proto::decode<proto::Leave>(frame.head));
        if (cluster_.members_.roster.leave(link_->id, leave.reason)) {
          tell(cluster_.events_, log::Level::kInfo, "member.left",
               {{"worker", link_->join.name}, {"member", link_->id.value}, {"why", leave.reason}});
          cluster_.probe_.member_left();
          link_->keeping.reset();  // who leaves keeps its part as it goes
          cluster_.member_gone(link_->id, std::nullopt);
        }
        co_return co_await session.respond(frame.header, Bytes());
      }
      default:
        co_return Error(ErrorCode::kInvalidArgument,
                        "unexpected message kind " + std::to_string(frame.header.kind) +
                            " (docs/wire.md lists what a worker may send)");
    }
  }

  const std::shared_ptr<Link>& link() const { return link_; }
  const std::shared_ptr<ShardGroup::Link>& shard() const { return shard_; }
  /// Of a worker, a client of rows or a shard server. A Join that is still coming in is the stall
  /// timeout's: its manifest may be long.
  bool is_known() const { return link_ || rows_ || shard_ || is_joining_ || is_pulling_; }

 private:
  Task<Status> serve_shard(Session& session, InFrame frame) {
    if (shard_) co_return co_await cluster_.shards_.on_frame(session, std::move(frame), shard_);
    CENTROID_CO_ASSIGN(const auto join, proto::decode<proto::ServerJoin>(frame.head));
    std::shared_ptr<ShardGroup::Link> admitted;
    const auto terms = cluster_.admit_server(session, tasks_, join, admitted);
    if (!terms.ok()) {
      log::warn("server.refused", {{"peer", session.peer().address}, {"why", terms.error()}});
      CENTROID_CO_TRY(co_await session.respond_error(frame.header, terms.error()));
      co_return terms.error();
    }
    shard_ = std::move(admitted);
    const auto reply = proto::encode(terms.value());
    CENTROID_CO_TRY(co_await session.respond(frame.header, reply));
    cluster_.servers_.tell_tokens(*shard_);
    co_return Status();
  }

  Status pull(Session& session, const InFrame& frame) {
    if (std::exchange(is_pulling_, true))
      return Error(ErrorCode::kFailedPrecondition, "a session that pulls sends nothing else");
    CENTROID_ASSIGN(auto wanted, proto::decode<proto::Pull>(frame.head));
    auto request = std::make_shared<Pulls::Request>();
    request->header = frame.header;
    request->pull = std::move(wanted);
    tasks_.spawn(cluster_.pulls_->serve(session, tasks_, std::move(request)));
    return {};
  }

  Task<Status> join(Session& session, InFrame frame) {
    auto message = proto::decode<proto::Join>(frame.head);
    if (!message.ok()) co_return std::move(message).error();
    is_joining_ = true;
    CENTROID_CO_ASSIGN(message->manifest,
                       co_await read_manifest(session, frame.header.payload_bytes));
    Result<proto::JoinReply> admitted = proto::JoinReply();
    Status fits;
    const bool is_valid = cluster_.check_join(session, *message).ok();  // else `admit` says why
    if (is_valid) fits = co_await cluster_.servers_.reckon_worker(*message);
    if (fits.ok())
      admitted = cluster_.admit(session, std::move(message).value());
    else
      admitted = fits.error();
    if (!admitted.ok()) {
      cluster_.probe_.handshake_refused();
      log::warn("member.refused", {{"peer", session.peer().address},
                                   {"worker", session.peer().name},
                                   {"why", admitted.error()}});
      CENTROID_CO_TRY(co_await session.respond_error(frame.header, admitted.error()));
      co_return std::move(admitted).error();
    }
    link_ = cluster_.members_.find(admitted->member);
    link_->tasks = &tasks_;
    const auto reply = proto::encode(admitted.value());
    CENTROID_CO_TRY(co_await session.respond(frame.header, reply));
    tasks_.spawn(cluster_.outbox(link_, session));
    co_return Status();
  }

  Cluster& cluster_;
  TaskGroup& tasks_;
  std::shared_ptr<Link> link_;
  bool is_joining_ = false, is_pulling_ = false;
  std::optional<RowsService::Client> rows_;
  std::shared_ptr<ShardGroup::Link> shard_;
};

namespace {

/// Closed before the first byte: it looked whether the port is open, as `centroidctl doctor` and
/// the probes of platforms do. What FramedConnection says of more bytes or a failure ends
/// otherwise.
bool is_knock(const Error& error) {
  return error.code() == ErrorCode::kUnavailable &&
         error.message().ends_with(" closed the connection");
}

}  // namespace

/// A session that does not join is not kept.
Task<void> Cluster::expect_join(Session& session, const MemberSink& sink) {
  const bool in_time = co_await sleep_until(clock_.now() + kJoinTimeout);
  if (!in_time || sink.is_known() || session.is_closed()) co_return;
  const Error late(ErrorCode::kDeadlineExceeded, "no Join came within 10 s of the handshake");
  co_await session.goodbye(late);
}

Task<void> Cluster::serve(std::unique_ptr<transport::Connection> connection) {
  const std::string peer = connection->peer();
  auto accepted = co_await Session::accept(std::move(connection), greeting(),
                                           clock_.now() + std::chrono::seconds(5));
  if (!accepted.ok()) {
    if (is_knock(accepted.error())) {
      log::debug("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    } else {
      probe_.handshake_refused();
      log::warn("connection.refused", {{"peer", peer}, {"why", accepted.error()}});
    }
    co_return;
  }
  const auto session = std::move(accepted).value();
  TaskGroup children(executor_);
  MemberSink sink(*this, children);
  children.spawn(expect_join(*session, sink));
  const Error cause = co_await session->run(sink);
  // What follows must happen even when this task was cancelled: others hold pointers to the
  // session.
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session->close(cause);
  if (sink.shard()) shards_.left(sink.shard(), cause);
  if (const auto& link = sink.link(); link && !link->is_gone) {
    if (members_.roster.lost(link->id, cause.to_string())) {
      tell(events_, log::Level::kWarn, "member.lost",
           {{"worker", link->join.name}, {"member", link->id.value}, {"why", cause}});
      probe_.member_dead();
    }
    member_gone(link->id, std::nullopt);
  }
  outgoing_.notify_all();
  children.cancel();
  co_await children.join();
}

Status Cluster::check_join(const Session& session, const proto::Join& join) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition, "worker '" + join.name + "' is refused: " + why);
  };
  if (join.name.empty()) return refuse("it has no name (--name)");
  if (const std::string& run = session.peer().run_id; !run.empty() && run != job_.run_id)
    return refuse("it asks for run '" + run + "', the server's is '" + job_.run_id + "'");
  if (!epilogue_ && (stopping_.is_requested || stopping_.rounds_ended))
    return Error(
        ErrorCode::kUnavailable,
        "the server is stopping: " + (stopping_.is_requested ? stopping_.reason : phase_.reason()));
  CENTROID_TRY(commands_.check_evicted(join.name));
  if (use_.is_loading) return proto::not_yet_error("a checkpoint is being loaded: try again");
  if (spread_.lost_since && !epilogue_)
    return proto::not_yet_error("server '" + spread_.lost +
                                "' is gone with its chunks: " + phase_.reason());
  if (replay_ && !epilogue_)
    return proto::not_yet_error("the journal is being replayed: " + replay_->reason() +
                                " (`centroidctl waits`, GET /v1/waits)");
  if (join.batch == 0 || join.train_samples == 0)
    return refuse("it has no training samples or a batch of 0");
  if (config_.weight_by == "tokens") {
    if (join.sample_tokens == 0)
      return refuse(
          "contributions are weighed by tokens (weight_by), and it does not say how many its "
          "samples have at most (sample_tokens)");
    if (job_.agreed && job_.agreed->sample_tokens != join.sample_tokens)
      return refuse("its samples have at most " + std::to_string(join.sample_tokens) +
                    " tokens (sample_tokens), the other workers' " +
                    std::to_string(job_.agreed->sample_tokens));
  }
  const std::uint64_t window = session.peer().credit_bytes;
  if (window < config_.chunk_bytes)
    return refuse("its credit of " + std::to_string(window) + " bytes does not hold a chunk of " +
                  std::to_string(config_.chunk_bytes) + " (chunk_bytes)");
  if (join.exchange != config_.exchange)
    return refuse("its exchange is '" + join.exchange + "', the server's is '" + config_.exchange +
                  "' (exchange)");
  CENTROID_ASSIGN(const CodecSpec codec, CodecSpec::parse(join.codec));
  if (const Status right = check_buffers(config_, join.manifest, codec.to_string()); !right.ok())
    return refuse(right.error().message());
  if (codec.feedback.momentum != 0 && carries_momentum(config_.optimizer))
    return refuse("its codec '" + join.codec +
                  "' carries momentum, and so does the server's optimizer '" +
                  config_.optimizer.name +
                  "': it would count twice. Take optimizer sgd on the server, or a codec without "
                  "momentum on the worker");
  if (const Status fits = aggregate_.takes(codec, join.train_samples); !fits.ok())
    return refuse(fits.error().message());
  if (config_.is_peer_to_peer()) {
    CENTROID_ASSIGN(const CodecSpec theirs,
                    CodecSpec::parse(job_.agreed ? job_.agreed->codec : join.codec));
    if (!members_.links.empty() && codec != theirs)
      return refuse("its codec is '" + codec.to_string() + "', the other workers' is '" +
                    theirs.to_string() + "'; with exchange " + config_.exchange +
                    " they decode each other's: give all the same (--codec)");
    const auto peer = transport::Endpoint::parse(join.peer_endpoint);
    if (!peer.ok()) return refuse("its peer_endpoint: " + peer.error().message());
  }
  CENTROID_TRY(validate(join.manifest));
  if (job_.store) {
    const std::string difference =
        describe_difference(job_.store->plan().manifest(), join.manifest);
    if (!difference.empty())
      return refuse("its model (theirs) is not the cluster's (ours): " + difference +
                    (job_.agreed && !job_.agreed->model.empty()
                         ? "; the cluster trains '" + job_.agreed->model + "' (--model)"
                         : "; give it the model of the others"));
  }
  // Another model with the same tensors: another activation, other base weights behind adapters.
  std::string model = job_.agreed ? job_.agreed->model : "";
  if (!job_.agreed && job_.resumed_from)
    if (const auto kept = job_.resumed_from->info.extra.find("model");
        kept != job_.resumed_from->info.extra.end())
      model = kept->second;
  if (!model.empty() && !join.model.empty() && join.model != model)
    return refuse("its model is '" + join.model + "', the cluster's is '" + model + "'");
  // Another model than the cluster's was told above, by its tensors.
  const std::uint64_t announced = session.peer().manifest_hash, hash = manifest_hash(join.manifest);
  if (announced != 0 && announced != hash)
    return refuse("its Hello said manifest hash " + std::to_string(announced) +
                  ", the manifest in its Join has " + std::to_string(hash));
  if (const auto data = loader_.agreed_data();
      data && (data->samples != join.train_samples || data->fingerprint != join.data_fingerprint))
    return refuse("its training data differs from the cluster's (" +
                  std::to_string(join.train_samples) + " samples with fingerprint " +
                  std::to_string(join.data_fingerprint) + ", not " + std::to_string(data->samples) +
                  " with " + std::to_string(data->fingerprint) +
                  "): give every worker the same --data and seed");
  return {};
}

Result<proto::JoinReply> Cluster::admit(Session& session, proto::Join join) {
  CENTROID_TRY(gate_.check_lead());
  if (members_.links.empty() && job_.store && job_.store->version().value == 0 &&
      !use_.is_loading) {
    // Who brought this model left before giving its parameters: the next one may bring another.
    initial_values_.forget();
    go_on_from(JobState());
  }
  CENTROID_TRY(check_join(session, join));
  std::optional<ChunkPlan> plan;  // of one that only hears that it is over
  if (!job_.store && epilogue_) {
    CENTROID_ASSIGN(plan, ChunkPlan::make(join.manifest, config_.chunk_bytes));
  } else if (!job_.store) {
    CENTROID_TRY(loader_.make_store(job_, join.manifest, join.codec));
  } else if (!epilogue_) {
    CENTROID_TRY(loader_.check_another(join));
  }
  join.manifest = {};  // the store has it
  if (!job_.agreed && !epilogue_) job_.agreed = join;
  if (members_.links.empty() && job_.agreed) job_.agreed->codec = join.codec;
  const Round counted = contributions_.counted_of(join.name);
  CENTROID_ASSIGN(const auto joined, members_.roster.join(join.name, session.peer().address,
                                                          clock_.now(), clock_.unix_seconds()));
  if (joined.fenced) {
    log::warn(
        "member.fenced",
        {{"worker", join.name}, {"member", joined.fenced->value}, {"by", session.peer().address}});
    events_.publish("member.lost", {{"worker", join.name},
                                    {"member", joined.fenced->value},
                                    {"why", members_.roster.find(*joined.fenced)->reason}});
    member_gone(*joined.fenced,
                Error(ErrorCode::kFailedPrecondition,
                      "superseded: " + members_.roster.find(*joined.fenced)->reason));
  }
  auto link = std::make_shared<Link>();
  link->id = joined.member;
  link->lane = trace::Lane(join.name);
  link->codec = make_codec(join.codec).value();
  const CodecSpec spec = *CodecSpec::parse(join.codec);
  link->codec_kind = spec.kind;
  link->keeps_state = spec.feedback.enabled || config_.local_steps > 1;
  link->session = &session;
  link->join = std::move(join);
  link->finish = epilogue_;
  if (epilogue_) link->version = epilogue_->version;  // it needs none of the state
  members_.links[link->id] = link;
  probe_.member_joined();
  tell(events_, log::Level::kInfo, "member.joined",
       {{"worker", link->join.name},
        {"member", link->id.value},
        {"address", session.peer().address},
        {"devices", link->join.devices},
        {"batch", link->join.batch}});
  changed_.notify_all();
  for (const auto& [name, server] : shards_.present())
    servers_.tell_tokens(*server);  // it goes there next

  const OptimizerConfig& optimizer = config_.optimizer;
  proto::JoinReply reply;
  reply.member = link->id;
  reply.run_id = job_.run_id;
  reply.seed = config_.seed;
  reply.chunk_bytes = config_.chunk_bytes;
  reply.plan_hash = plan ? plan->hash() : job_.store->plan().hash();
  reply.lease_ms = static_cast<std::uint32_t>(config_.lease.count());
  reply.apply_on_worker = config_.applies_on_worker();
  reply.nonfinite = static_cast<std::uint8_t>(policy_.nonfinite);
  reply.optimizer = optimizer.name;
  reply.learning_rate = optimizer.learning_rate;
  reply.momentum = optimizer.momentum;
  reply.beta1 = optimizer.beta1;
  reply.beta2 = optimizer.beta2;
  reply.epsilon = optimizer.epsilon;
  reply.weight_decay = optimizer.weight_decay;
  reply.l1 = optimizer.l1;
  reply.ftrl_beta = optimizer.ftrl_beta;
  reply.schedule = optimizer.schedule;
  reply.clip_norm = optimizer.clip_norm;
  reply.scale_ratio = config_.optimizer_scale_ratio;
  reply.algorithm = algorithm_of(config_);
  reply.bucket_bytes = config_.reduce_bucket_bytes;
  reply.peer_timeout_ms = static_cast<std::uint32_t>(config_.reduce_timeout.count());
  reply.ring_by_bandwidth = config_.reduce_ring_order == "bandwidth";
  reply.codec_down = config_.codec_down;
  reply.checkpoint_rounds = config_.checkpoint_every_rounds;
  reply.counted = counted;
  reply.term = gate_.term();
  reply.local_steps = static_cast<std::uint32_t>(config_.local_steps);
  reply.fragments = static_cast<std::uint32_t>(config_.fragments);
  if (config_.weight_by == "steps") reply.weight_by = proto::WeightBy::kSteps;
  if (config_.weight_by == "equal") reply.weight_by = proto::WeightBy::kEqual;
  if (config_.weight_by == "tokens") reply.weight_by = proto::WeightBy::kTokens;
  if (config_.payload_checksum == "auto" && !node_.empty() && link->join.node == node_) {
    reply.unsummed = true;
    session.take_unsummed();
    session.send_unsummed();
  }
  return reply;
}

}  // namespace centroid::server
