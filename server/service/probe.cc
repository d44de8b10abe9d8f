#include "server/service/probe.h"

#include <algorithm>

#include "common/proto/messages.h"

namespace centroid::server {

CodecProbe::CodecProbe(metrics::Registry& r, CodecSpec::Kind kind, Direction direction) {
  CodecSpec spec;
  spec.kind = kind;
  const metrics::Labels labels{{"codec", std::string(spec.name())},
                               {"direction", direction == Direction::kUp ? "up" : "down"}};
  raw_ = r.counter("centroid_server_codec_raw_bytes_total",
                   "Bytes of contributions (up) and results (down), before encoding.", labels);
  encoded_ = r.counter("centroid_server_codec_encoded_bytes_total",
                       "Bytes of contributions (up) and results (down), after encoding.", labels);
  encode_seconds_ = r.counter("centroid_server_codec_encode_seconds_total",
                              "Time to encode: by the workers (up), by the server (down).", labels);
  decode_seconds_ =
      r.counter("centroid_server_codec_decode_seconds_total",
                "Time to decode and add: by the server (up), by the workers (down).", labels);
  chunks_ = r.counter("centroid_server_codec_chunks_total", "Chunks encoded.", labels);
  dense_chunks_ = r.counter("centroid_server_codec_dense_chunks_total",
                            "Chunks that top-k sent in full.", labels);
}

namespace {
/// A counter of what another place counts from its own start on.
void follow(const metrics::Counter& counter, double count) {
  if (const double more = count - counter.value(); more > 0) counter.add(more);
}

struct ShardSeries {
  const char *name, *help;
  double (*of)(const proto::ServerReport&);
};
constexpr ShardSeries kShardGauges[] = {
    {"centroid_shard_memory_bytes",
     "Memory for parameters, optimizer state and prepared results on a shard server.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.memory_bytes); }},
    {"centroid_shard_staged_bytes", "Bytes of contributions that a shard server stores.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.staged_bytes); }},
    {"centroid_shard_journal_bytes", "Size of a shard server's journal.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.journal_bytes); }},
    {"centroid_shard_workers", "Workers that are connected to a shard server.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.workers); }},
};
constexpr ShardSeries kShardCounters[] = {
    {"centroid_shard_received_bytes_total", "Bytes that a shard server received from workers.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.bytes_in); }},
    {"centroid_shard_sent_bytes_total", "Bytes that a shard server sent to workers.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.bytes_out); }},
    {"centroid_shard_rounds_total", "Rounds that a shard server committed.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.rounds); }},
    {"centroid_shard_merge_seconds_total",
     "Time of a shard server for sums, optimizer steps and journal.",
     [](const proto::ServerReport& r) { return r.merge_seconds; }},
};
}  // namespace

RoundMetrics::RoundMetrics(metrics::Registry& r) {
  const auto rounds = [&](const char* outcome) {
    return r.counter("centroid_server_rounds_total",
                     "Rounds closed, by outcome; aborted counts attempts.", {{"outcome", outcome}});
  };
  committed = rounds("committed");
  skipped = rounds("skipped");
  aborted = rounds("aborted");
  samples = r.counter("centroid_server_samples_total", "Samples in committed rounds.");
  state_lost = r.counter("centroid_server_state_lost_total",
                         "Times the job went back because every worker with the newest state was "
                         "gone (exchange ring, hierarchical).");
  open_seconds = r.gauge("centroid_server_round_open_seconds",
                         "Age of the open round when leases were last looked at; 0: none is open.");
  seconds = r.histogram("centroid_server_round_seconds", "From opening to commit of a round.",
                        metrics::latency_bounds());
}

ContributionMetrics::ContributionMetrics(metrics::Registry& r) {
  lost = r.counter("centroid_server_contributions_lost_total",
                   "Contributions that ended early because the member left.");
  nonfinite = r.counter("centroid_server_contributions_nonfinite_total",
                        "Contributions with NaN or infinity.");
  const auto late = [&](const char* fate) {
    return r.counter("centroid_server_contributions_late_total",
                     "Contributions whose round closed without them, by what became of them.",
                     {{"fate", fate}});
  };
  carried = late("carried");
  dropped = late("dropped");
  restarted =
      r.counter("centroid_server_state_restarts_total",
                "Transfers of the state to a worker that were restarted because their round "
                "closed.");
  returned = r.counter("centroid_server_samples_returned_total",
                       "Samples of shares that other workers took over, because a worker was lost "
                       "or excluded.");
  seconds =
      r.histogram("centroid_server_contribution_seconds",
                  "From opening of a round to a worker's last chunk.", metrics::latency_bounds());
  staleness = r.histogram("centroid_server_staleness_rounds",
                          "Rounds between the parameters a contribution was computed on and those "
                          "it changed, of contributions that counted.",
                          {0, 1, 2, 4, 8, 16, 32, 64});
}

MemberMetrics::MemberMetrics(metrics::Registry& r) {
  const auto ended = [&](const char* cause) {
    return r.counter("centroid_server_members_ended_total", "Members that left, by cause.",
                     {{"cause", cause}});
  };
  dead = ended("dead");
  left = ended("left");
  joined = r.counter("centroid_server_members_joined_total", "Workers admitted.");
  places = metrics::budget(r, "workers");
  silent = r.counter(
      "centroid_server_members_silent_total",
      "Members that a round was repeated or went on without, for they contributed nothing "
      "within round_timeout.");
  compared = r.counter("centroid_server_replicas_compared_total",
                       "Rounds in which the parameters and slots of workers were compared.");
  drifted = r.counter("centroid_server_replicas_drifted_total",
                      "Workers whose parameters or slots differed from those of the others.");
  scale_hint = r.gauge("centroid_server_scale_hint_workers",
                       "Number of workers that an operator requested; 0: none.");
  present = r.gauge("centroid_server_members", "Workers present.");
  world = r.gauge("centroid_server_world_members", "Workers in the present generation.");
  generation = r.gauge("centroid_server_generation_number", "Number of the membership.");
  silence = r.gauge("centroid_server_silence_seconds",
                    "How long the most silent of the workers present has sent nothing, when leases "
                    "were last looked at.");
  lease = r.gauge("centroid_server_lease_seconds", "Silence after which a worker is removed.");
  for (std::size_t state = 0; state < workers.size(); ++state)
    workers[state] = r.gauge("centroid_server_workers", "Workers known, by state.",
                             {{"state", kWorkerStates[state]}});
}

CadenceMetrics::CadenceMetrics(metrics::Registry& r) {
  nudges = r.counter("centroid_server_cadence_nudges_total",
                     "Number of times that divergence halved the local steps (cadence tuned).");
  steps = r.gauge("centroid_server_cadence_steps",
                  "Local steps of the slowest worker between two averages.");
  exchange_seconds = r.gauge("centroid_server_exchange_seconds",
                             "What an average takes beside computing, smoothed, without waiting "
                             "for slower workers; 0: not measured yet.");
  overhead = r.gauge("centroid_server_exchange_overhead_ratio",
                     "Time of an average relative to the computing time of the slowest worker.");
  divergence = r.gauge(
      "centroid_server_divergence_ratio",
      "Largest distance of a worker's parameters from their mean, by its norm, at the last average "
      "(local_steps above 1).");
}

LearningMetrics::LearningMetrics(metrics::Registry& r) {
  clipped = r.counter("centroid_server_rounds_clipped_total",
                      "Rounds whose mean gradient was over clip_norm.");
  gradient_norm =
      r.gauge("centroid_server_gradient_norm", "Norm of the last mean gradient (with clip_norm).");
  rate = r.gauge("centroid_server_learning_rate", "Learning rate of the last committed step.");
  loss =
      r.gauge("centroid_server_train_loss_nats", "Mean training loss of the last committed round.");
  accuracy =
      r.gauge("centroid_server_test_accuracy_ratio", "Accuracy on held-out data, last report.");
  test_loss = r.gauge("centroid_server_test_loss_nats", "Loss on held-out data, last report.");
}

PositionMetrics::PositionMetrics(metrics::Registry& r) {
  round = r.gauge("centroid_server_round_number", "Round now open.");
  version = r.gauge("centroid_server_version_number", "Version of the committed parameters.");
  epoch = r.gauge("centroid_server_epoch_number", "Epoch now trained, from 0.");
}

CheckpointMetrics::CheckpointMetrics(metrics::Registry& r) {
  written = r.counter("centroid_server_checkpoints_total", "Checkpoints written.");
  failures = r.counter("centroid_server_checkpoint_failures_total",
                       "Checkpoints that could not be written.");
  bytes = r.gauge("centroid_server_checkpoint_bytes", "Size of the last checkpoint.");
  time = r.gauge("centroid_server_checkpoint_last_success_timestamp_seconds",
                 "When the last checkpoint was written.");
  seconds = r.histogram("centroid_server_checkpoint_seconds", "Time to write a checkpoint.",
                        metrics::latency_bounds());
}

BufferMetrics::BufferMetrics(metrics::Registry& r) {
  in_use = r.gauge("centroid_server_buffers_in_use", "Receive buffers in use.");
  capacity = r.gauge("centroid_server_buffers_capacity",
                     "Limit of receive buffers; beyond it contributions wait in the network.");
  waiting = r.gauge("centroid_server_chunks_waiting", "Chunks that wait for those of lower ranks.");
  unsent = r.gauge("centroid_server_results_unsent",
                   "Chunks of results that are ready and not yet sent, over all workers.");
}

ShardMetrics::ShardMetrics(metrics::Registry& r) {
  present = r.gauge("centroid_server_shards", "Shard servers present.");
  missing = r.gauge("centroid_server_shards_missing",
                    "Shard servers that are not here, of those that `servers` asks for or "
                    "that the model lies on.");
}

CodecMetrics::CodecMetrics(metrics::Registry& r) {
  const auto residual = [&](const char* direction) {
    return r.gauge("centroid_server_codec_residual_norm",
                   "Norm of what error feedback has left to send, when last looked at: the largest "
                   "of the workers' (up), the server's (down).",
                   {{"direction", direction}});
  };
  residual_up = residual("up");
  residual_down = residual("down");
  for (std::size_t kind = 0; kind < CodecSpec::kKinds; ++kind) {
    up[kind] = CodecProbe(r, CodecSpec::Kind(kind), CodecProbe::Direction::kUp);
    down[kind] = CodecProbe(r, CodecSpec::Kind(kind), CodecProbe::Direction::kDown);
  }
}

StateMetrics::StateMetrics(metrics::Registry& r) {
  for (std::size_t state = 0; state < job.size(); ++state)
    job[state] = r.gauge("centroid_server_job_state", "1 for the state that the job is in.",
                         {{"state", kJobStates[state]}});
  for (std::size_t cause = 0; cause < waits.size(); ++cause)
    waits[cause] = r.gauge("centroid_server_waits", "Waits when leases were last looked at.",
                           {{"cause", kWaitCauses[cause]}});
}

Probe::Probe(metrics::Registry& r)
    : ServerProbe(r),
      registry_(r),
      rounds_(r),
      contributions_(r),
      members_(r),
      cadence_(r),
      learning_(r),
      position_(r),
      checkpoints_(r),
      buffers_(r),
      shards_(r),
      codecs_(r),
      states_(r),
      events_(metrics::budget(r, "events")) {
  job(0);
}

void Probe::events(const EventLog::Usage& usage) const {
  events_.show(usage.retained, usage.capacity);
  events_.follow_refused(usage.dropped);
}

void Probe::shard(const std::string& server, const proto::ServerReport& report) const {
  const metrics::Labels labels{{"server", server}};
  for (const ShardSeries& one : kShardGauges)
    registry_.gauge(one.name, one.help, labels).set(one.of(report));
  for (const ShardSeries& one : kShardCounters) {
    if (one.of(report) < registry_.counter(one.name, one.help, labels).value())
      registry_.remove(one.name, labels);  // its process was started again
    follow(registry_.counter(one.name, one.help, labels), one.of(report));
  }
}

void Probe::shard_gone(const std::string& server) const {
  for (const ShardSeries& one : kShardGauges) registry_.remove(one.name, {{"server", server}});
  for (const ShardSeries& one : kShardCounters) registry_.remove(one.name, {{"server", server}});
}

void Probe::shards(std::size_t present, std::size_t missing) const {
  shards_.present.set(static_cast<double>(present));
  shards_.missing.set(static_cast<double>(missing));
}

void Probe::round_committed(double seconds, std::uint64_t samples, double loss) const {
  rounds_.committed.add();
  rounds_.seconds.observe(seconds);
  rounds_.samples.add(static_cast<double>(samples));
  learning_.loss.set(loss);
}

void Probe::scalar(const std::string& name, double mean) const {
  registry_
      .gauge("centroid_server_scalar",
             "Mean of a number that training programs have recorded, in the last round with any.",
             {{"name", name}})
      .set(mean);
}

void Probe::coordinated(const Coordinator& coordinator, std::uint64_t nudges) const {
  const Cadence& cadence = coordinator.cadence();
  cadence_.steps.set(static_cast<double>(cadence.anchor()));
  cadence_.exchange_seconds.set(cadence.exchange_seconds());
  cadence_.overhead.set(cadence.overhead());
  cadence_.divergence.set(std::min(coordinator.divergence(), proto::kMaxLoss));
  cadence_.nudges.add(static_cast<double>(nudges));
}

void Probe::checkpoint_written(double seconds, std::uint64_t bytes, double unix_seconds) const {
  checkpoints_.written.add();
  checkpoints_.seconds.observe(seconds);
  checkpoints_.bytes.set(static_cast<double>(bytes));
  checkpoints_.time.set(unix_seconds);
}

void Probe::scale_hint(std::uint64_t workers) const {
  members_.scale_hint.set(static_cast<double>(workers));
}

void Probe::members(std::uint64_t present, std::uint64_t world, std::uint64_t generation) const {
  members_.present.set(static_cast<double>(present));
  members_.world.set(static_cast<double>(world));
  members_.generation.set(static_cast<double>(generation));
}

void Probe::workers(const std::array<std::size_t, kWorkerStates.size()>& by_state) const {
  for (std::size_t state = 0; state < by_state.size(); ++state)
    members_.workers[state].set(static_cast<double>(by_state[state]));
}

void Probe::waits(const std::array<std::size_t, kWaitCauses.size()>& by_cause) const {
  for (std::size_t cause = 0; cause < by_cause.size(); ++cause)
    states_.waits[cause].set(static_cast<double>(by_cause[cause]));
}

void Probe::position(std::uint64_t round, std::uint64_t version, std::uint64_t epoch) const {
  position_.round.set(static_cast<double>(round));
  position_.version.set(static_cast<double>(version));
  position_.epoch.set(static_cast<double>(epoch));
}

void Probe::job(std::size_t state) const {
  for (std::size_t other = 0; other < states_.job.size(); ++other)
    states_.job[other].set(other == state ? 1 : 0);
}

void Probe::silence(double longest_seconds, double lease_seconds) const {
  members_.silence.set(longest_seconds);
  members_.lease.set(lease_seconds);
}

void Probe::buffers(std::size_t in_use, std::size_t capacity, std::size_t waiting) const {
  buffers_.in_use.set(static_cast<double>(in_use));
  buffers_.capacity.set(static_cast<double>(capacity));
  buffers_.waiting.set(static_cast<double>(waiting));
}

void Probe::gradient_norm(double norm, bool is_clipped) const {
  learning_.gradient_norm.set(norm);
  if (is_clipped) learning_.clipped.add();
}

void Probe::evaluated(double accuracy, double loss) const {
  learning_.accuracy.set(accuracy);
  learning_.test_loss.set(loss);
}

}  // namespace centroid::server
