#include "server/service/admission.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/refusal.h"
#include "server/service/buffers.h"
#include "server/service/replay.h"

namespace centroid::server {

using transport::Session;

namespace {

/// Numbers of docs/explanation/rounds.md.
std::uint8_t algorithm_of(const ServerConfig& config) {
  if (config.exchange == "hierarchical") return 4;
  if (config.reduce.algorithm == "ring") return 1;
  if (config.reduce.algorithm == "recursive-doubling") return 2;
  return config.reduce.algorithm == "chain" ? 3 : 0;
}

bool carries_momentum(const OptimizerConfig& config) {
  const auto optimizer = make_optimizer(config);
  if (!optimizer.ok()) return false;
  const auto slots = optimizer.value()->slot_names();
  return std::ranges::any_of(
      slots, [](const auto& name) { return name == "momentum_buffer" || name == "exp_avg"; });
}

}  // namespace

Task<void> Admission::await_state() const {
  const TimePoint limit = clock_.now() + std::chrono::milliseconds(400);
  const auto is_read = [this] {
    return stopping_.is_requested || (!gate_.is_beginning() && !use_.is_loading && !replay_);
  };
  (void)co_await until(is_read, kShownElsewhere, limit);
}

/// The model and the data are only what a worker said that has left: no round, checkpoint or
/// journal has them.
bool Admission::is_undecided() const {
  return members_.present.empty() && job_.shard && !use_.is_loading && !replay_ && !epilogue_ &&
         config_.init == "first-worker" && !job_.resumed_from && job_.version().value <= 1 &&
         job_.round == Round(1) && job_.checkpointed == Version() && !journal_.is_on() &&
         !spread_.has_others();
}

void Admission::forget_model() {
  initial_values_.forget();
  start_.go_on_from(JobState());
}

Status Admission::make_way(const Session& session, const proto::Join& join) {
  if (!is_undecided() || !gate_.check_lead().ok() || !check_moment(join.name).ok()) return {};
  const Status fits = check_join(session, join);
  if (fits.ok()) return {};
  const bool is_used = members_.sessions.use_count() > 1 || !context_.awaits_workers ||
                       use_.is_writing || use_.is_measured;
  if (is_used)
    return not_ready(fits.error().message() +
                     ". Who brought the cluster's model has left: try again");
  if (const auto why = context_.strangers.arrival_line(fits.error().message()))
    log::warn("store.forgotten", {{"from", job_.agreed ? job_.agreed->name : ""}, {"why", *why}});
  forget_model();
  return {};
}

Result<proto::JoinReply> Admission::admit(Session& session, proto::Join join) {
  CENTROID_TRY(gate_.check_lead());
  if (members_.present.empty() && job_.shard && job_.store().version().value == 0 &&
      !use_.is_loading)
    forget_model();  // who brought it left before giving its parameters
  CENTROID_TRY(check_join(session, join));
  std::optional<ChunkPlan> plan;  // of one that only hears that it is over
  if (!job_.shard && epilogue_) {
    CENTROID_ASSIGN(plan, ChunkPlan::make(join.manifest, config_.transfer.chunk_bytes));
  } else if (!job_.shard) {
    CENTROID_TRY(loader_.make_store(job_, join.manifest, join.codec));
  } else if (!epilogue_) {
    CENTROID_TRY(loader_.check_another(join));
  }
  join.manifest = {};  // the store has it
  if (!job_.agreed && !epilogue_) job_.agreed = join;
  if (members_.present.empty() && job_.agreed) job_.agreed->codec = join.codec;
  const Round counted = contributions_.counted_of(join.name);
  const auto entered =
      members_.roster.join(join.name, session.peer().address, clock_.now(), clock_.unix_seconds());
  if (!entered.ok()) probe_.member_refused();
  CENTROID_TRY(entered);
  const auto& joined = *entered;
  if (joined.fenced) fence(join.name, *joined.fenced, session.peer().address);
  const auto worker = make_session(session, joined.member, std::move(join));
  members_.present[worker->id] = worker;
  probe_.member_joined();
  if (const auto address = context_.strangers.arrival_line(session.peer().address))
    tell(events_, log::Level::kInfo, "member.joined",
         {{"worker", worker->join.name},
          {"member", worker->id.value},
          {"address", *address},
          {"devices", worker->join.devices},
          {"batch", worker->join.batch}});
  changed_.notify_all();
  for (const auto& [name, server] : shards_.present())
    servers_.tell_tokens(*server);  // it goes there next

  auto terms = terms_for(session, *worker, plan ? plan->hash() : job_.store().plan().hash());
  worker->optimizer = terms.optimizer;
  terms.counted = counted;
  return terms;
}

/// A newer member has its name.
void Admission::fence(const std::string& name, MemberId older, const std::string& by) {
  const std::string reason = members_.roster.find(older)->reason;
  if (const auto why = context_.strangers.arrival_line(reason)) {
    log::warn("member.fenced", {{"worker", name}, {"member", older.value}, {"by", by}});
    events_.publish("member.lost", {{"worker", name}, {"member", older.value}, {"why", *why}});
  }
  control_.member_gone(older, Error(ErrorCode::kFailedPrecondition, "superseded: " + reason));
}

std::shared_ptr<WorkerSession> Admission::make_session(Session& session, MemberId member,
                                                       proto::Join join) {
  auto worker = std::make_shared<WorkerSession>(executor_, members_.sessions);
  worker->id = member;
  worker->lane = trace::Lane(join.name);
  worker->codec = make_codec(join.codec).value();
  const CodecSpec spec = *CodecSpec::parse(join.codec);
  worker->codec_kind = spec.kind;
  worker->own_state.is_present = spec.feedback.enabled || config_.local.count > 1;
  worker->session = &session;
  worker->join = std::move(join);
  worker->finish = epilogue_;
  if (epilogue_) worker->version = epilogue_->version;  // it needs none of the state
  return worker;
}

proto::JoinReply Admission::terms_for(Session& session, const WorkerSession& worker,
                                      std::uint64_t plan_hash) {
  proto::JoinReply reply;
  reply.member = worker.id;
  reply.run_id = job_.run_id;
  reply.seed = config_.seed;
  reply.chunk_bytes = config_.transfer.chunk_bytes;
  reply.plan_hash = plan_hash;
  reply.lease_ms = static_cast<std::uint32_t>(config_.timeouts.lease.count());
  reply.apply_on_worker = config_.applies_on_worker();
  reply.nonfinite = static_cast<std::uint8_t>(policy_.nonfinite);
  reply.optimizer = config_.optimizer;
  reply.scale_ratio = config_.optimizer_scale_ratio;
  reply.algorithm = algorithm_of(config_);
  reply.bucket_bytes = config_.reduce.bucket_bytes;
  if (config_.may_meet_peers())
    reply.peer_timeout_ms = static_cast<std::uint32_t>(config_.reduce.timeout.count());
  reply.ring_by_bandwidth = config_.reduce.ring_order == "bandwidth";
  reply.codec_down = config_.transfer.codec_down;
  reply.checkpoint_rounds = config_.checkpoint.every_rounds;
  reply.term = gate_.term();
  reply.local_steps = static_cast<std::uint32_t>(config_.local.count);
  reply.fragments = static_cast<std::uint32_t>(config_.local.fragments);
  if (config_.local.weight_by == "steps") reply.weight_by = proto::WeightBy::kSteps;
  if (config_.local.weight_by == "equal") reply.weight_by = proto::WeightBy::kEqual;
  if (config_.local.weight_by == "tokens") reply.weight_by = proto::WeightBy::kTokens;
  if (config_.transfer.checksum == "auto" && !node_.empty() && worker.join.node == node_) {
    reply.no_payload_crc = true;
    session.accept_without_crc();
    session.send_unsummed();
  }
  return reply;
}

/// It may come now.
Status Admission::check_moment(const std::string& name) {
  if (!epilogue_ && (stopping_.is_requested || stopping_.rounds_ended)) {
    const std::string& why = stopping_.is_requested ? stopping_.reason : phase_.reason();
    return Error(ErrorCode::kUnavailable,
                 "the server is stopping: " + (why.empty() ? "its rounds have ended" : why));
  }
  CENTROID_TRY(commands_.check_evicted(name));
  if (use_.is_loading) return not_ready("a checkpoint is being loaded: try again");
  if (spread_.lost_since && !epilogue_)
    return not_ready("server '" + spread_.lost + "' is gone with its chunks: " + phase_.reason());
  if (replay_ && !epilogue_)
    return not_ready("the journal is being replayed: " + replay_->reason() +
                     " (`centroidctl waits`, GET /v1/waits)");
  return {};
}

/// Its model is the job's.
Status Admission::check_model(const Session& session, const proto::Join& join) const {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition, "worker '" + join.name + "' is refused: " + why);
  };
  CENTROID_TRY(validate(join.manifest));
  if (job_.shard) {
    const std::string difference =
        describe_difference(job_.store().plan().manifest(), join.manifest);
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
  // The tensors are the same here: this finds a Hello that does not belong to its Join.
  const std::uint64_t announced = session.peer().manifest_hash, hash = manifest_hash(join.manifest);
  if (announced != 0 && announced != hash)
    return refuse("its Hello said manifest hash " + std::to_string(announced) +
                  ", the manifest in its Join has " + std::to_string(hash));
  return {};
}

Status Admission::check_join(const Session& session, const proto::Join& join) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition, "worker '" + join.name + "' is refused: " + why);
  };
  if (join.name.empty()) return refuse("it has no name (--name)");
  if (const std::string& run = session.peer().run_id; !run.empty() && run != job_.run_id)
    return refuse("it asks for run '" + run + "', the server's is '" + job_.run_id + "'");
  CENTROID_TRY(check_moment(join.name));
  if (join.batch == 0 || join.train_samples == 0)
    return refuse("it has no training samples or a batch of 0");
  if (config_.local.weight_by == "tokens") {
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
  if (window < config_.transfer.chunk_bytes)
    return refuse("its credit of " + std::to_string(window) + " bytes does not hold a chunk of " +
                  std::to_string(config_.transfer.chunk_bytes) + " (chunk_bytes)");
  const bool is_free = join.exchange == "auto" || config_.chooses_exchange();
  if (!is_free && join.exchange != config_.exchange)
    return refuse("its exchange is '" + join.exchange + "', the server's is '" + config_.exchange +
                  "' (exchange)");
  CENTROID_ASSIGN(const CodecSpec codec, CodecSpec::parse(join.codec));
  if (const Status right = check_buffers(config_, join.manifest); !right.ok())
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
    if (!members_.present.empty() && codec != theirs)
      return refuse("its codec is '" + codec.to_string() + "', the other workers' is '" +
                    theirs.to_string() + "'; with exchange " + config_.exchange +
                    " they decode each other's: give all the same (--codec)");
    if (join.peer_endpoint.empty())
      return refuse("with exchange " + config_.exchange +
                    " other workers connect to it, and it accepts no connections (its log says "
                    "why: peers.none)");
  }
  if (!join.peer_endpoint.empty()) {
    const auto peer = transport::Endpoint::parse(join.peer_endpoint);
    if (!peer.ok()) return refuse("its peer_endpoint: " + peer.error().message());
  }
  CENTROID_TRY(check_model(session, join));
  if (const auto data = loader_.agreed_data();
      data && (data->samples != join.train_samples || data->fingerprint != join.data_fingerprint))
    return refuse("its training data differs from the cluster's (" +
                  std::to_string(join.train_samples) + " samples with fingerprint " +
                  std::to_string(join.data_fingerprint) + ", not " + std::to_string(data->samples) +
                  " with " + std::to_string(data->fingerprint) +
                  "): give every worker the same --data and seed");
  return {};
}

}  // namespace centroid::server
