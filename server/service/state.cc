#include <algorithm>

#include "common/base/log.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/restore_mark.h"
#include "common/checkpoint/rows_journal.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/finite.h"
#include "server/service/buffers.h"
#include "server/service/cluster.h"
#include "server/service/pulls.h"
#include "server/service/room.h"
#include "server/store/memory_need.h"

namespace centroid::server {

namespace {
/// Least memory for what training changes while a checkpoint is written.
constexpr std::size_t kSnapshotBudgetBytes = 64u << 20;
/// Plane of a checkpoint behind the optimizer's: what the codec of the results has left out.
constexpr const char* kResidualSlot = "codec_down_residual";
/// Fields of a checkpoint: by worker the last round in which its contribution counted.
constexpr const char* kCountedPrefix = "counted/";

/// Nothing is on the disk before the end: said at the start, while it costs nothing to mend.
void warn_if_not_durable(const ServerConfig& config) {
  const bool has_checkpoints = config.checkpoint_every_rounds > 0 ||
                               config.checkpoint_every_epochs > 0 ||
                               config.checkpoint_interval.count() > 0;
  if (config.keeps_journal() || has_checkpoints) return;
  const std::string rows = config.tables.empty() ? "" : " and all pushes to tables of sparse rows";
  const std::string journal = config.is_peer_to_peer() ? "" : ", or journal.mode on";
  log::warn("job.not_durable",
            {{"why", "checkpoints are written at the end only, and there is no journal"},
             {"lost_with_the_server", "all rounds" + rows + " since the start"},
             {"action",
              "set checkpoint.every_rounds, checkpoint.every_epochs or "
              "checkpoint.interval" +
                  journal}});
}

/// A job that begins anew may not lie over an earlier one.
Status check_new_run(const ServerConfig& config, const CheckpointDirectory& checkpoints) {
  if (!journal::segments_of(config.journal_dir).empty() ||
      !rows_journal::segments_of(config.journal_dir).empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "there is a journal of an earlier run in " + config.journal_dir +
                     ": go on from it with `resume`, or choose another `run_dir`");
  const auto found = checkpoints.list(false);
  if (found.empty()) return {};
  // Their versions would hide this job's, and the newest are kept.
  return Error(ErrorCode::kFailedPrecondition,
               "there are checkpoints of an earlier run in " + checkpoints.root().string() +
                   " (run '" + found.front().info.run_id +
                   "'): go on from them with `resume`, or choose another `run_dir`");
}

}  // namespace

std::string codec_in(const CheckpointInfo& info) {
  const auto kept = info.extra.find("codec");
  const bool is_known = kept != info.extra.end() && CodecSpec::parse(kept->second).ok();
  return is_known ? kept->second : kUnknownCodec;
}

std::uint64_t elements_of_largest(const FragmentPlan& fragments) {
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i)
    most = std::max(most, fragments[i].elements);
  return most;
}

Result<std::uint64_t> contribution_bytes(const FragmentPlan& fragments, const std::string& spec) {
  CENTROID_ASSIGN(const auto codec, make_codec(spec));
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i) {
    std::uint64_t bytes = 0;
    for (const Chunk& chunk : fragments[i].chunks) bytes += codec->max_bytes(chunk.elements);
    most = std::max(most, bytes);
  }
  return most;
}

Task<Status> Cluster::prepare() {
  CheckpointPolicy policy;
  policy.keep = config_.checkpoint_keep;
  policy.keep_every_rounds = config_.checkpoint_keep_every;
  policy.shard_bytes = config_.checkpoint_shard_bytes;
  policy.on_pruned = [this](const CheckpointEntry& entry) {
    events_.publish("checkpoint.deleted", {{"path", entry.path.string()},
                                           {"version", entry.version.value},
                                           {"why", "checkpoint.keep"}});
  };
  policy.is_in_use = [this](const CheckpointEntry& entry) {
    return fetched_.holds(entry.version, clock_.now());
  };
  policy.is_sole = gate_.has_election();
  policy.may_write = gate_.may_write();
  auto opened = CheckpointDirectory::open(config_.checkpoint_dir, policy);
  if (!opened.ok()) co_return std::move(opened).error().with_context("checkpoint.dir");
  checkpoints_ = std::move(opened).value();
  if (!config_.resume) CENTROID_CO_TRY(check_new_run(config_, *checkpoints_));
  CENTROID_CO_ASSIGN(const bool has_settings, commands_.load(*checkpoints_));
  if (has_settings) settings_changed();
  probe_.scale_hint(commands_.scale_hint.workers);
  if (rows_.has_tables()) CENTROID_CO_TRY(check_tables_room());
  if (config_.resume) {
    auto complete = [this] {
      const auto may_write = gate_.may_write();
      return complete_restore(config_.journal_dir, *checkpoints_, may_write);
    };
    CENTROID_CO_TRY(co_await gate_.act(blocking(), std::move(complete)));
    CENTROID_CO_ASSIGN(JobState newest, co_await load_checkpoint());
    go_on_from(std::move(newest));
    CENTROID_CO_TRY(prepare_rows());
    if (!rows_servers_) CENTROID_CO_TRY(co_await load_rows());
    CENTROID_CO_TRY(begin_replay());
    if (replay_) {  // what needs other servers goes on when they are here
      if (gate_.is_beginning()) phase_.explain("the journal is replayed");
      const auto what = [this] { return present_round(job_) + " is replayed from it"; };
      const auto waits = waits_.begin(WaitCause::kJournal, "job", "journal", what);
      CENTROID_CO_ASSIGN(const bool is_over, co_await replay_on());
      if (!is_over) log::info("journal.waits_for_servers", {{"why", replay_->reason()}});
    }
  }
  if (job_.run_id.empty()) {
    ServerConfig fresh;
    CENTROID_CO_TRY(finish(fresh));
    job_.run_id = fresh.run_id;
  }
  co_await heed_stop();
  if (!config_.resume) CENTROID_CO_TRY(RestoreMark::remove(config_.journal_dir));  // of another job
  if (!config_.resume) CENTROID_CO_TRY(prepare_rows());
  if (!rows_servers_) CENTROID_CO_TRY(start_rows_journal());
  if (!job_.store && config_.init != "first-worker") {
    CENTROID_CO_ASSIGN(JobState initial, co_await load_initial_file());
    go_on_from(std::move(initial));
  }
  if (phase_.is(Phase::kWaiting)) phase_.explain("no worker has joined yet");
  phase_.begin();
  gate_.set_prepared();
  warn_if_not_durable(config_);
  if (!commands_.is_saved()) {  // a setting was changed meanwhile
    co_await commands_.save_now();
  }
  co_return Status();
}

/// Without a model.
MemoryQuestion Cluster::memory_question() const {
  MemoryQuestion question;
  question.snapshot_bytes = kSnapshotBudgetBytes;
  if (rows_.has_tables()) question.tables_bytes = rows_.reserved_bytes() + kSnapshotBudgetBytes;
  if (rows_.has_tables() && config_.keeps_journal())
    question.tables_bytes += RowsJournalWriter::kQueueBytes;
  return question;
}

/// Before anything is taken for a model. `codec`: of a worker that comes, or
/// as it was known last.
Status Cluster::check_room(const ChunkPlan& plan, const FragmentPlan& fragments, std::size_t slots,
                           const std::string& codec) {
  CENTROID_ASSIGN(const CodecSpec codec_down, CodecSpec::parse(config_.codec_down));
  MemoryQuestion question = memory_question();
  question.parameters = plan.total_elements();
  question.tensors = plan.manifest().size();
  question.chunks = plan.chunks().size();
  CENTROID_ASSIGN(question.contribution_bytes, contribution_bytes(fragments, codec));
  std::set<std::string> others;
  for (const auto& [id, link] : members_.links) others.insert(link->join.codec);
  for (const std::string& one : others) {
    CENTROID_ASSIGN(const std::uint64_t bytes, contribution_bytes(fragments, one));
    question.contribution_bytes = std::max(question.contribution_bytes, bytes);
  }
  question.result_bytes = elements_of_largest(fragments) * sizeof(float);
  question.slots = slots;
  question.keeps_residual = codec_down.feedback.enabled;
  question.compresses_results = config_.compresses_results();
  question.applies_on_worker = config_.applies_on_worker();
  question.is_elastic = policy_.is_elastic();
  question.waits_for_all = !aggregate_.is_mean();
  question.workers = servers_.expected_workers(question.is_elastic || question.waits_for_all);
  question.credit_bytes = question.workers * config_.credit_bytes;
  question.journal_copies =
      config_.keeps_journal() && config_.compresses_results() ? kSnapshotBudgetBytes : 0;
  const MemoryNeed need = memory_need(question);
  const MemoryLimit limit = memory_limit(config_.memory_limit);
  CENTROID_TRY(check_memory(need, limit));
  // What is free is shared out, so that all of it may be taken at once. A quarter for the copies of
  // a checkpoint: a round that would need more has to wait for the disk.
  const std::uint64_t free = limit.bytes - need.total(), quarter = free / 4;
  snapshot_budget_ = std::max<std::uint64_t>(kSnapshotBudgetBytes, std::min(need.planes, quarter));
  pulls_->set_room(quarter);
  std::uint64_t taken = quarter + (snapshot_budget_ - kSnapshotBudgetBytes);
  // Copies of the state for who was left out: of one plane each has its receiver's own room.
  if (need.image > 0 && (!config_.applies_on_worker() || slots == 0)) {
    images_.set_limit(std::max<std::size_t>(MemoryQuestion::kImages, config_.max_workers));
  } else if (need.image > 0) {
    images_.set_limit(MemoryQuestion::kImages + quarter / need.image);
    taken += quarter / need.image * need.image;
  }
  rows_.set_room(rows_.reserved_bytes() + free - taken, limit.source + " beside the model");
  return {};
}

/// One more worker than memory was reckoned with may bring more than there is room for, and so may
/// one with another codec: the first after a restart, too. Who comes back has its room.
Status Cluster::check_another(const proto::Join& join) {
  const auto is_it = [&](const auto& entry) { return entry.second->join.name == join.name; };
  const auto is_alike = [&](const auto& entry) { return entry.second->join.codec == join.codec; };
  const std::uint64_t count =
      servers_.expected_workers(policy_.is_elastic() || !aggregate_.is_mean());
  const bool is_reckoned =
      count > members_.links.size() + 1 || std::ranges::any_of(members_.links, is_it);
  if (is_reckoned && std::ranges::any_of(members_.links, is_alike)) return {};
  const Status fits =
      check_room(job_.store->plan(), job_.fragments, job_.store->optimizer().slots(), join.codec);
  if (fits.ok()) return {};
  return Error(ErrorCode::kResourceExhausted,  // it may fit when another one has left
               "worker '" + join.name + "' is refused: there is no memory for contributions of " +
                   std::to_string(count) + " workers: " + fits.error().message());
}

Status Cluster::make_store(JobState& into, const Manifest& manifest, const std::string& codec) {
  CENTROID_TRY(validate(manifest));
  // Also of what is loaded: workers would be refused one by one, and a replay would step them.
  CENTROID_TRY(check_buffers(config_, manifest, "f32"));
  std::uint64_t model_bytes = 0;  // the sum cannot overflow: `validate` bounds it
  for (const TensorInfo& tensor : manifest) model_bytes += tensor.bytes();
  if (model_bytes > config_.max_model_bytes)
    return Error(ErrorCode::kResourceExhausted,
                 "the model has " + std::to_string(model_bytes) +
                     " bytes of parameters, the server takes at most " +
                     std::to_string(config_.max_model_bytes) + " (max_model_bytes)");
  CENTROID_ASSIGN(auto optimizer, make_optimizer(config_.optimizer));
  CENTROID_ASSIGN(auto plan, ChunkPlan::make(manifest, config_.chunk_bytes));
  if (config_.servers > 1) CENTROID_TRY(check_told_chunks(config_, plan.chunks().size()));
  CENTROID_ASSIGN(into.fragments,
                  FragmentPlan::make(plan, static_cast<std::uint32_t>(config_.fragments)));
  CENTROID_TRY(check_room(plan, into.fragments, optimizer->slots(), codec));
  // A step with the mean of one chunk can be taken back only when it changes nothing else, and be
  // taken at all only when it needs nothing else: not who contributes.
  into.is_early =
      config_.applies_on_worker() || (optimizer->slots() == 0 && config_.optimizer.clip_norm == 0 &&
                                      config_.optimizer_scale_ratio == 0);
  try {
    CENTROID_ASSIGN(const CodecSpec codec_down, CodecSpec::parse(config_.codec_down));
    into.store = std::make_unique<ParameterStore>(std::move(plan), std::move(optimizer),
                                                  codec_down.feedback.enabled);
    into.store->set_fragments(config_.fragments);
    CENTROID_TRY(make_replies(into));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "no memory for a model of " +
                                                    std::to_string(model_bytes) +
                                                    " bytes, its optimizer slots and residual");
  }
  const std::uint64_t buffer_bytes = into.store->plan().max_chunk_elements() * sizeof(float);
  const std::uint64_t buffers =
      std::max<std::uint64_t>(config_.credit_bytes / std::max<std::uint64_t>(buffer_bytes, 1), 1) *
      servers_.expected_workers(policy_.is_elastic() || !aggregate_.is_mean());
  into.pool = std::make_unique<BufferPool>(buffer_bytes, buffers);
  Aggregator::Hooks hooks;
  hooks.target = [this](const Chunk& chunk) { return job_.store->spare(chunk); };
  // A result through a codec is copied for the journal: it waits here while there is no room.
  hooks.is_held = [this](ChunkId chunk) {
    return job_.store->spare_is_held(chunk) || (job_.replies && !journal_.has_room());
  };
  hooks.on_complete = [this](ChunkId chunk, double weight) { chunk_complete(chunk, weight); };
  hooks.on_consumed = [this](std::uint32_t rank, std::size_t bytes) {
    if (const auto link = open_.attempt && rank < open_.attempt->members.size()
                              ? members_.find(open_.attempt->members[rank])
                              : nullptr)
      link->session->release_credit(bytes);
  };
  into.aggregator = std::make_unique<Aggregator>(into.store->plan(), std::move(hooks), aggregate_);
  log::info("store.made", {{"tensors", into.store->plan().manifest().size()},
                           {"parameters", into.store->plan().total_elements()},
                           {"chunks", into.store->plan().chunks().size()},
                           {"optimizer", into.store->optimizer().config().name}});
  return {};
}

/// From another version than the next one; the round that was open does not count.
void Cluster::go_on_from(JobState next) {
  open_ = OpenRound(policy_);
  images_.forget_newest();
  members_.roster.restore(std::max(members_.roster.generation(), next.least_generation));
  job_.replace(std::move(next));
}

/// Of a model.
bool Cluster::has_checkpoint() const {
  const auto found = checkpoints_->list(false);
  return !found.empty() && found.front().version.value > 0;
}

/// The newest that is sound. Files are read by the blocking thread: this one answers meanwhile.
Task<Result<JobState>> Cluster::load_checkpoint() {
  const Raised loading(is_loading_, changed_);
  const std::string& folder = config_.checkpoint_dir;
  if (gate_.is_beginning()) phase_.explain("the checkpoints in " + folder + " are looked through");
  auto look = [this]() -> Result<std::shared_ptr<const CheckpointEntry>> {
    const auto refused = [](const CheckpointEntry& entry) {
      log::error("checkpoint.refused", {{"path", entry.path.string()}, {"why", entry.problem}});
    };
    auto newest = checkpoints_->newest_valid(refused);
    if (newest.ok()) return std::make_shared<const CheckpointEntry>(std::move(newest).value());
    if (newest.error().code() != ErrorCode::kNotFound) return std::move(newest).error();
    for (const CheckpointEntry& entry : checkpoints_->list(false))
      return Error(ErrorCode::kDataLoss, "every checkpoint in " + checkpoints_->root().string() +
                                             " is damaged (the newest: " + entry.path.string() +
                                             "): move them away to start afresh");
    return std::shared_ptr<const CheckpointEntry>();
  };
  auto where = [look] { return std::make_optional(look()); };
  std::optional<Result<std::shared_ptr<const CheckpointEntry>>> newest;
  {
    const std::string what = "the newest in " + folder + " that is whole is looked for";
    const auto waits = waits_.begin(WaitCause::kCheckpoint, "job", "checkpoint", what.c_str());
    newest = co_await run_on(blocking_, std::move(where));
  }
  if (!newest->ok()) co_return newest->error();
  if (!**newest)
    log::warn("checkpoint.none",
              {{"dir", checkpoints_->root().string()}, {"action", "starting afresh"}});
  if (!**newest) co_return JobState();
  co_return co_await load_checkpoint(**newest);
}

/// No member may join meanwhile (`is_loading_`).
Task<Result<JobState>> Cluster::load_checkpoint(std::shared_ptr<const CheckpointEntry> entry) {
  const CheckpointInfo& info = entry->info;
  JobState state;
  if (!config_.run_id.empty() && config_.run_id != info.run_id)
    co_return Error(ErrorCode::kFailedPrecondition,
                    "checkpoint " + entry->path.string() + " belongs to run '" + info.run_id +
                        "', not to '" + config_.run_id + "' (run_id)");
  if (info.version.value == 0) {  // rows only
    state.run_id = info.run_id;
    state.resumed_from = *entry;
    co_return std::move(state);
  }
  CENTROID_CO_ASSIGN(const Manifest manifest, checkpoints_->manifest_of(*entry));
  CENTROID_CO_TRY(make_store(state, manifest, codec_in(info)));
  const std::vector<std::string> slots = state.store->optimizer().slot_names();
  const bool has_residual = !info.slot_names.empty() && info.slot_names.back() == kResidualSlot;
  if (info.optimizer != config_.optimizer.name ||
      !std::equal(slots.begin(), slots.end(), info.slot_names.begin(),
                  info.slot_names.end() - (has_residual ? 1 : 0)))
    co_return Error(ErrorCode::kFailedPrecondition,
                    "checkpoint " + entry->path.string() + " was made with optimizer '" +
                        info.optimizer + "', the configuration says '" + config_.optimizer.name +
                        "'");
  if (info.seed != config_.seed)
    co_return Error(ErrorCode::kFailedPrecondition,
                    "checkpoint " + entry->path.string() + " was made with seed " +
                        std::to_string(info.seed) + ", the configuration says " +
                        std::to_string(config_.seed) + ": the order of the data follows it");
  const auto fragments = info.extra.find("fragments");
  if (const std::string kept = fragments == info.extra.end() ? "1" : fragments->second;
      kept != std::to_string(config_.fragments))
    co_return Error(ErrorCode::kFailedPrecondition,
                    "checkpoint " + entry->path.string() + " was made with " + kept +
                        " fragments, the configuration says " + std::to_string(config_.fragments) +
                        ": whose turn it is follows from them (fragments)");
  const Raised loading(is_loading_, changed_);
  const std::string what =
      entry->path.string() + " is read, " + std::to_string(entry->bytes) + " bytes";
  if (gate_.is_beginning()) phase_.explain("checkpoint " + what);
  const auto waits = waits_.begin(WaitCause::kCheckpoint, "job", "checkpoint", what.c_str());
  const bool takes_residual = state.store->keeps_residual();
  auto read = [&directory = *checkpoints_, store = state.store.get(), entry, planes = slots.size(),
               takes_residual] {
    const auto load = [&](std::size_t plane, std::uint64_t offset,
                          std::span<const float> from) -> Status {
      if (plane > planes && !takes_residual) return {};
      return store->load(plane, offset, from);
    };
    return std::make_optional(directory.read(*entry, store->plan().manifest(), load));
  };
  const auto values = co_await run_on(blocking_, std::move(read));
  CENTROID_CO_TRY(*values);
  state.store->restore(info.version, info.optimizer_step);
  state.run_id = info.run_id;
  state.round = info.round.next();
  state.epoch = info.epoch;
  state.offset = info.offset;
  state.checkpointed = info.version;
  const auto steps = info.extra.find("local_steps");
  state.steps_before =
      steps == info.extra.end() ? 0 : std::strtoull(steps->second.c_str(), nullptr, 10);
  const auto returned = info.extra.find("returned");
  state.returned.restore(returned == info.extra.end() ? "" : returned->second);
  state.held = state.position();
  state.agreed = job_.agreed;
  if (const auto generation = info.extra.find("generation"); generation != info.extra.end())
    state.least_generation = Generation(std::strtoull(generation->second.c_str(), nullptr, 10));
  if (has_residual && takes_residual) {
    if (const auto rounds = info.extra.find("codec_down_rounds"); rounds != info.extra.end())
      state.replies->set_rounds(std::strtoull(rounds->second.c_str(), nullptr, 10));
    if (const auto of = info.extra.find("codec_down_generation"); of != info.extra.end())
      state.replies_generation = state.replies_committed =
          Generation(std::strtoull(of->second.c_str(), nullptr, 10));
  } else if (has_residual || takes_residual) {
    log::warn("checkpoint.residual",
              {{"path", entry->path.string()},
               {"codec_down", config_.codec_down},
               {"why", has_residual ? "the checkpoint has a residual of the results' codec, which "
                                      "codec_down does not use: it is lost"
                                    : "the checkpoint has no residual of the results' codec: it "
                                      "begins at zero"}});
  }
  for (const auto& [key, value] : info.extra)
    if (key.starts_with(kCountedPrefix))
      state.counted[key.substr(std::string_view(kCountedPrefix).size())] =
          Round(std::strtoull(value.c_str(), nullptr, 10));
  state.resumed_from = *entry;
  log::info("checkpoint.loaded", {{"path", entry->path.string()},
                                  {"version", info.version.value},
                                  {"round", info.round.value},
                                  {"epoch", info.epoch}});
  co_return std::move(state);
}

/// The job's training data, as its first worker or the checkpoint it goes on from has it.
std::optional<DataIdentity> Cluster::agreed_data() const {
  if (job_.agreed) return DataIdentity{job_.agreed->train_samples, job_.agreed->data_fingerprint};
  if (!job_.resumed_from) return std::nullopt;
  const auto& extra = job_.resumed_from->info.extra;
  const auto samples = extra.find("train_samples");
  const auto fingerprint = extra.find("data_fingerprint");
  if (samples == extra.end() || fingerprint == extra.end()) return std::nullopt;
  return DataIdentity{std::strtoull(samples->second.c_str(), nullptr, 10),
                      std::strtoull(fingerprint->second.c_str(), nullptr, 10)};
}

CheckpointInfo Cluster::checkpoint_info() const {
  CheckpointInfo info;
  info.run_id = job_.run_id;
  info.created_unix_seconds = clock_.unix_seconds();
  if (!job_.store || job_.store->version().value == 0) return info;  // rows only
  info.version = job_.store->version();
  info.round = Round(job_.round.value - 1);
  info.epoch = job_.epoch;
  info.offset = job_.offset;
  info.optimizer_step = job_.store->optimizer_step();
  info.seed = config_.seed;
  info.optimizer = config_.optimizer.name;
  info.slot_names = job_.store->optimizer().slot_names();
  if (job_.store->keeps_residual()) {
    info.slot_names.emplace_back(kResidualSlot);
    info.extra["codec_down_rounds"] = std::to_string(job_.replies->rounds());
    info.extra["codec_down_generation"] = to_string(job_.replies_committed);
  }
  if (config_.fragments > 1) info.extra["fragments"] = std::to_string(config_.fragments);
  if (job_.steps_before > 0) info.extra["local_steps"] = std::to_string(job_.steps_before);
  if (const std::string returned = data_.untrained(false); !returned.empty())
    info.extra["returned"] = returned;
  info.extra["generation"] = to_string(members_.roster.generation());
  for (const auto& [name, round] : job_.counted)  // who may still ask: its round is one of the last
    if (round.value + kCountedRounds >= job_.round.value)
      info.extra[kCountedPrefix + name] = to_string(round);
  if (job_.agreed) info.extra["model"] = job_.agreed->model;
  if (job_.agreed || job_.resumed_from)
    info.extra["codec"] = job_.agreed ? job_.agreed->codec : codec_in(job_.resumed_from->info);
  if (const auto data = agreed_data()) {
    info.extra["train_samples"] = std::to_string(data->samples);
    info.extra["data_fingerprint"] = std::to_string(data->fingerprint);
  }
  return info;
}

}  // namespace centroid::server
