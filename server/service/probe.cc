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
                   "Contributions (up) and results sent (down), as float32.", labels);
  encoded_ = r.counter("centroid_server_codec_encoded_bytes_total",
                       "The same as they were on the wire.", labels);
  encode_seconds_ =
      r.counter("centroid_server_codec_encode_seconds_total",
                "Encoding: by the workers, as they tell (up); by the server (down).", labels);
  decode_seconds_ = r.counter(
      "centroid_server_codec_decode_seconds_total",
      "Decoding and adding by the server (up); by the workers, as they tell (down).", labels);
  chunks_ = r.counter("centroid_server_codec_chunks_total", "Chunks encoded.", labels);
  dense_chunks_ = r.counter("centroid_server_codec_dense_chunks_total",
                            "Chunks that top-k sent whole.", labels);
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
    {"centroid_shard_memory_bytes", "Parameters, slots and what is prepared, on a shard server.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.memory_bytes); }},
    {"centroid_shard_staged_bytes", "Contributions that a shard server keeps.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.staged_bytes); }},
    {"centroid_shard_journal_bytes", "Size of a shard server's journal.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.journal_bytes); }},
    {"centroid_shard_workers", "Whose sessions a shard server has.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.workers); }},
};
constexpr ShardSeries kShardCounters[] = {
    {"centroid_shard_received_bytes_total", "From workers, by a shard server's process.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.bytes_in); }},
    {"centroid_shard_sent_bytes_total", "To workers, by a shard server's process.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.bytes_out); }},
    {"centroid_shard_rounds_total", "Committed with a shard server's process.",
     [](const proto::ServerReport& r) { return static_cast<double>(r.rounds); }},
    {"centroid_shard_merge_seconds_total",
     "Sums, steps and journal of those rounds, on a shard server.",
     [](const proto::ServerReport& r) { return r.merge_seconds; }},
};
}  // namespace

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
  shards_.set(static_cast<double>(present));
  shards_missing_.set(static_cast<double>(missing));
}

Probe::Probe(metrics::Registry& r) : ServerProbe(r), registry_(r) {
  const auto& latency = metrics::latency_bounds();
  const auto rounds = [&](const char* outcome) {
    return r.counter("centroid_server_rounds_total",
                     "Rounds closed, by outcome; aborted counts attempts.", {{"outcome", outcome}});
  };
  committed_ = rounds("committed");
  skipped_ = rounds("skipped");
  aborted_ = rounds("aborted");
  const auto ended = [&](const char* cause) {
    return r.counter("centroid_server_members_ended_total", "Members that are gone, by cause.",
                     {{"cause", cause}});
  };
  dead_ = ended("dead");
  left_ = ended("left");
  joined_ = r.counter("centroid_server_members_joined_total", "Workers admitted.");
  lost_ = r.counter("centroid_server_contributions_lost_total",
                    "Contributions of members that went before their end.");
  nonfinite_ = r.counter("centroid_server_contributions_nonfinite_total",
                         "Contributions with NaN or infinity.");
  const auto late = [&](const char* fate) {
    return r.counter("centroid_server_contributions_late_total",
                     "Contributions whose round closed without them, by what became of them.",
                     {{"fate", fate}});
  };
  silent_ = r.counter(
      "centroid_server_members_silent_total",
      "Members that a round was repeated or went on without, for they contributed nothing "
      "within round_timeout.");
  carried_ = late("carried");
  dropped_ = late("dropped");
  restarted_ = r.counter("centroid_server_state_restarts_total",
                         "Transfers of the state to a worker that were begun anew: their round "
                         "closed, and what is late does not count.");
  scale_hint_ = r.gauge("centroid_server_scale_hint_workers",
                        "Workers that a person wants; 0: nobody has said.");
  nudges_ = r.counter("centroid_server_cadence_nudges_total",
                      "Times that divergence halved the local steps (cadence tuned).");
  returned_ = r.counter("centroid_server_samples_returned_total",
                        "Samples of shares whose workers were lost, or left out before they began, "
                        "given to others.");
  cadence_steps_ = r.gauge("centroid_server_cadence_steps",
                           "Local steps of the slowest worker between two averages.");
  exchange_seconds_ = r.gauge("centroid_server_exchange_seconds",
                              "What an average takes beside computing, smoothed, without waiting "
                              "for slower workers; 0: not measured yet.");
  overhead_ = r.gauge("centroid_server_exchange_overhead_ratio",
                      "The same as a part of the slowest worker's computing.");
  divergence_ = r.gauge(
      "centroid_server_divergence_ratio",
      "Largest distance of a worker's parameters from their mean, by its norm, at the last average "
      "(local_steps above 1).");
  samples_ = r.counter("centroid_server_samples_total", "Samples in committed rounds.");
  checkpoints_ = r.counter("centroid_server_checkpoints_total", "Checkpoints written.");
  checkpoint_failures_ = r.counter("centroid_server_checkpoint_failures_total",
                                   "Checkpoints that could not be written.");
  state_lost_ = r.counter("centroid_server_state_lost_total",
                          "Times the job went back because every worker with the newest state was "
                          "gone (exchange ring, hierarchical).");
  clipped_ = r.counter("centroid_server_rounds_clipped_total",
                       "Rounds whose mean gradient was over optimizer.clip_norm.");
  gradient_norm_ = r.gauge("centroid_server_gradient_norm",
                           "Norm of the last mean gradient (with optimizer.clip_norm).");
  loss_ =
      r.gauge("centroid_server_train_loss_nats", "Mean training loss of the last committed round.");
  present_ = r.gauge("centroid_server_members", "Workers present.");
  shards_ = r.gauge("centroid_server_shards", "Shard servers present.");
  shards_missing_ = r.gauge("centroid_server_shards_missing",
                            "Shard servers that are not here, of those that `servers` asks for or "
                            "that the model lies on.");
  world_ = r.gauge("centroid_server_world_members", "Workers in the present generation.");
  generation_ = r.gauge("centroid_server_generation_number", "Number of the membership.");
  round_ = r.gauge("centroid_server_round_number", "Round now open.");
  version_ = r.gauge("centroid_server_version_number", "Version of the committed parameters.");
  epoch_ = r.gauge("centroid_server_epoch_number", "Epoch now trained, from 0.");
  round_open_ = r.gauge("centroid_server_round_open_seconds",
                        "Age of the open round when leases were last looked at; 0: none is open.");
  for (std::size_t state = 0; state < job_.size(); ++state)
    job_[state] = r.gauge("centroid_server_job_state", "1 for the state that the job is in.",
                          {{"state", kJobStates[state]}});
  job(0);
  buffers_in_use_ = r.gauge("centroid_server_buffers_in_use", "Receive buffers in use.");
  buffers_capacity_ =
      r.gauge("centroid_server_buffers_capacity",
              "Receive buffers that there may be; then contributions wait in the network.");
  waiting_ = r.gauge("centroid_server_chunks_waiting", "Chunks that wait for lower ranks.");
  unsent_ = r.gauge("centroid_server_results_unsent",
                    "Chunks of results that are ready and not yet sent, over all workers.");
  silence_ =
      r.gauge("centroid_server_silence_seconds",
              "How long the most silent of the workers present has sent nothing, when leases "
              "were last looked at.");
  lease_ = r.gauge("centroid_server_lease_seconds",
                   "After so long a silence a worker is no member any more.");
  checkpoint_bytes_ = r.gauge("centroid_server_checkpoint_bytes", "Size of the last checkpoint.");
  checkpoint_time_ = r.gauge("centroid_server_checkpoint_last_success_timestamp_seconds",
                             "When the last checkpoint was written.");
  accuracy_ =
      r.gauge("centroid_server_test_accuracy_ratio", "Accuracy on held-out data, last report.");
  test_loss_ = r.gauge("centroid_server_test_loss_nats", "Loss on held-out data, last report.");
  round_seconds_ =
      r.histogram("centroid_server_round_seconds", "From opening to commit of a round.", latency);
  contribution_seconds_ = r.histogram("centroid_server_contribution_seconds",
                                      "From opening of a round to a worker's last chunk.", latency);
  checkpoint_seconds_ =
      r.histogram("centroid_server_checkpoint_seconds", "Time to write a checkpoint.", latency);
  staleness_ = r.histogram("centroid_server_staleness_rounds",
                           "Rounds between the parameters a contribution was computed on and those "
                           "it changed, of contributions that counted.",
                           {0, 1, 2, 4, 8, 16, 32, 64});
  for (std::size_t state = 0; state < workers_.size(); ++state)
    workers_[state] = r.gauge("centroid_server_workers", "Workers known, by state.",
                              {{"state", kWorkerStates[state]}});
  for (std::size_t cause = 0; cause < waits_.size(); ++cause)
    waits_[cause] = r.gauge("centroid_server_waits", "Waits when leases were last looked at.",
                            {{"cause", kWaitCauses[cause]}});
  const auto residual = [&](const char* direction) {
    return r.gauge("centroid_server_codec_residual_norm",
                   "Norm of what error feedback has left to send, when last looked at: the largest "
                   "of the workers' (up), the server's (down).",
                   {{"direction", direction}});
  };
  residual_up_ = residual("up");
  residual_down_ = residual("down");
  for (std::size_t kind = 0; kind < CodecSpec::kKinds; ++kind) {
    up_[kind] = CodecProbe(r, CodecSpec::Kind(kind), CodecProbe::Direction::kUp);
    down_[kind] = CodecProbe(r, CodecSpec::Kind(kind), CodecProbe::Direction::kDown);
  }
}

void Probe::round_committed(double seconds, std::uint64_t samples, double loss) const {
  committed_.add();
  round_seconds_.observe(seconds);
  samples_.add(static_cast<double>(samples));
  loss_.set(loss);
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
  cadence_steps_.set(static_cast<double>(cadence.anchor()));
  exchange_seconds_.set(cadence.exchange_seconds());
  overhead_.set(cadence.overhead());
  divergence_.set(std::min(coordinator.divergence(), proto::kMaxLoss));
  nudges_.add(static_cast<double>(nudges));
}

void Probe::checkpoint_written(double seconds, std::uint64_t bytes, double unix_seconds) const {
  checkpoints_.add();
  checkpoint_seconds_.observe(seconds);
  checkpoint_bytes_.set(static_cast<double>(bytes));
  checkpoint_time_.set(unix_seconds);
}

void Probe::scale_hint(std::uint64_t workers) const {
  scale_hint_.set(static_cast<double>(workers));
}

void Probe::members(std::uint64_t present, std::uint64_t world, std::uint64_t generation) const {
  present_.set(static_cast<double>(present));
  world_.set(static_cast<double>(world));
  generation_.set(static_cast<double>(generation));
}

void Probe::workers(const std::array<std::size_t, kWorkerStates.size()>& by_state) const {
  for (std::size_t state = 0; state < by_state.size(); ++state)
    workers_[state].set(static_cast<double>(by_state[state]));
}

void Probe::waits(const std::array<std::size_t, kWaitCauses.size()>& by_cause) const {
  for (std::size_t cause = 0; cause < by_cause.size(); ++cause)
    waits_[cause].set(static_cast<double>(by_cause[cause]));
}

void Probe::position(std::uint64_t round, std::uint64_t version, std::uint64_t epoch) const {
  round_.set(static_cast<double>(round));
  version_.set(static_cast<double>(version));
  epoch_.set(static_cast<double>(epoch));
}

void Probe::job(std::size_t state) const {
  for (std::size_t other = 0; other < job_.size(); ++other) job_[other].set(other == state ? 1 : 0);
}

void Probe::silence(double longest_seconds, double lease_seconds) const {
  silence_.set(longest_seconds);
  lease_.set(lease_seconds);
}

void Probe::buffers(std::size_t in_use, std::size_t capacity, std::size_t waiting) const {
  buffers_in_use_.set(static_cast<double>(in_use));
  buffers_capacity_.set(static_cast<double>(capacity));
  waiting_.set(static_cast<double>(waiting));
}

void Probe::gradient_norm(double norm, bool is_clipped) const {
  gradient_norm_.set(norm);
  if (is_clipped) clipped_.add();
}

void Probe::evaluated(double accuracy, double loss) const {
  accuracy_.set(accuracy);
  test_loss_.set(loss);
}

}  // namespace centroid::server
