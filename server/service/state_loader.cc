#include "server/service/state_loader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/finite.h"
#include "server/service/buffers.h"
#include "server/service/room.h"
#include "server/shard/placement.h"
#include "server/store/memory_need.h"

namespace centroid::server {

namespace {
/// Least memory for what training changes while a checkpoint is written.
constexpr std::size_t kSnapshotBudgetBytes = 64u << 20;
}  // namespace

/// Before anything is taken for a model. `codec`: of a worker that comes, or as it was known last.
Status StateLoader::check_room(const ChunkPlan& plan, const FragmentPlan& fragments,
                               std::size_t slots, const std::string& codec) {
  CENTROID_ASSIGN(const CodecSpec codec_down, CodecSpec::parse(config_.transfer.codec_down));
  MemoryQuestion question = memory_question();
  question.parameters = plan.total_elements();
  question.tensors = plan.manifest().size();
  question.chunks = plan.chunks().size();
  std::set<std::string> codecs{codec};
  for (const auto& [id, worker] : members_.present) codecs.insert(worker->join.codec);
  CENTROID_ASSIGN(const RoomOfOne room, room_of_one(plan, fragments, codecs));
  question.contribution_bytes = room.encoded;
  question.decoded_bytes = room.decoded;
  question.result_bytes = elements_of_largest(fragments) * sizeof(float);
  question.slots = slots;
  question.stores_residual = codec_down.feedback.enabled;
  question.compresses_results = config_.compresses_results();
  question.applies_on_worker = config_.applies_on_worker();
  question.is_elastic = policy_.is_elastic();
  question.waits_for_all = !aggregate_.is_mean();
  question.compared_at_once = aggregate_.mixes() ? Aggregator::kAtOnce : 0;
  question.workers = servers_.expected_workers(question.is_elastic || question.waits_for_all);
  question.credit_bytes = question.workers * config_.transfer.credit_bytes;
  question.journal_copies =
      config_.writes_journal() && config_.compresses_results() ? kSnapshotBudgetBytes : 0;
  const MemoryNeed need = memory_need(question);
  const MemoryLimit limit = memory_limit(config_.memory.limit);
  CENTROID_TRY(check_memory(need, limit));
  // What is free is shared out, so that all of it may be taken at once. A quarter for the copies of
  // a checkpoint: a round that would need more has to wait for the disk.
  const std::uint64_t free = limit.bytes - need.total(), quarter = free / 4;
  snapshot_budget_ = std::max<std::uint64_t>(kSnapshotBudgetBytes, std::min(need.planes, quarter));
  readers_room_ = quarter;
  std::uint64_t taken = quarter + (snapshot_budget_ - kSnapshotBudgetBytes);
  // Copies of the state for who was left out: of one plane each has its receiver's own room.
  if (need.image > 0 && (!config_.applies_on_worker() || slots == 0)) {
    images_.set_limit(std::max<std::size_t>(MemoryQuestion::kImages, config_.workers.max));
  } else if (need.image > 0) {
    images_.set_limit(MemoryQuestion::kImages + quarter / need.image);
    taken += quarter / need.image * need.image;
  }
  rows_.store().set_room(rows_.store().reserved_bytes() + free - taken,
                         limit.source + " beside the model");
  return {};
}

/// One more worker than in the memory plan may bring more than there is room for, and so may
/// one with another codec: the first after a restart, too. Who comes back has its room.
Status StateLoader::check_another(const proto::Join& join) {
  const auto is_it = [&](const auto& entry) { return entry.second->join.name == join.name; };
  const auto is_alike = [&](const auto& entry) { return entry.second->join.codec == join.codec; };
  const std::uint64_t count =
      servers_.expected_workers(policy_.is_elastic() || !aggregate_.is_mean());
  const bool has_room =
      count > members_.present.size() + 1 || std::ranges::any_of(members_.present, is_it);
  if (has_room && std::ranges::any_of(members_.present, is_alike)) return {};
  const Status fits = check_room(job_.store().plan(), job_.shard->fragments(),
                                 job_.store().optimizer().slots(), join.codec);
  if (fits.ok()) return {};
  return Error(ErrorCode::kResourceExhausted,  // it may fit when another one has left
               "worker '" + join.name + "' is refused: there is no memory for contributions of " +
                   std::to_string(count) + " workers: " + fits.error().message());
}

Status StateLoader::make_store(JobState& into, const Manifest& manifest, const std::string& codec) {
  CENTROID_TRY(validate(manifest));
  // Also of what is loaded: workers would be refused one by one, and a replay would step them.
  CENTROID_TRY(check_buffers(config_, manifest));
  std::uint64_t model_bytes = 0;  // the sum cannot overflow: `validate` bounds it
  for (const TensorInfo& tensor : manifest) model_bytes += tensor.bytes();
  if (model_bytes > config_.memory.max_model_bytes)
    return Error(ErrorCode::kResourceExhausted,
                 "the model has " + std::to_string(model_bytes) +
                     " bytes of parameters, the server takes at most " +
                     std::to_string(config_.memory.max_model_bytes) + " (max_model_bytes)");
  CENTROID_ASSIGN(auto optimizer, make_optimizer(config_.optimizer));
  CENTROID_ASSIGN(auto plan, ChunkPlan::make(manifest, config_.transfer.chunk_bytes));
  if (config_.servers > 1) CENTROID_TRY(check_chunk_count(config_, plan.chunks().size()));
  CENTROID_ASSIGN(auto fragments,
                  FragmentPlan::make(plan, static_cast<std::uint32_t>(config_.local.fragments)));
  CENTROID_TRY(check_room(plan, fragments, optimizer->slots(), codec));
  const ModelShard::Terms terms{.codec_down = config_.transfer.codec_down,
                                .seed = config_.seed,
                                .apply_on_worker = config_.applies_on_worker(),
                                .clip_norm = config_.optimizer.clip_norm,
                                .scales_rate = config_.optimizer_scale_ratio > 0};
  CENTROID_ASSIGN(into.shard, ModelShard::make(std::move(plan), std::move(fragments),
                                               std::move(optimizer), terms));
  const std::uint64_t buffer_bytes = into.store().plan().max_chunk_elements() * sizeof(float);
  const std::uint64_t buffers =
      std::max<std::uint64_t>(
          config_.transfer.credit_bytes / std::max<std::uint64_t>(buffer_bytes, 1), 1) *
      servers_.expected_workers(policy_.is_elastic() || !aggregate_.is_mean());
  into.pool = std::make_unique<BufferPool>(buffer_bytes, buffers);
  Aggregator::Hooks hooks;
  hooks.target = [this](const Chunk& chunk) { return job_.store().spare(chunk); };
  // A result through a codec is copied for the journal: it waits here while there is no room.
  hooks.is_held = [this](ChunkId chunk) {
    return !open_.attempt || open_.attempt->closed || job_.store().spare_is_read(chunk) ||
           (job_.shard->encodes() && !journal_.has_room());
  };
  hooks.on_complete = [this](ChunkId chunk, double weight) {
    control_.chunk_complete(chunk, weight);
  };
  hooks.on_consumed = [this](std::uint32_t rank, std::size_t bytes) {
    if (const auto worker = open_.attempt && rank < open_.attempt->members.size()
                                ? members_.find(open_.attempt->members[rank])
                                : nullptr)
      worker->session->release_credit(bytes);
  };
  hooks.run_apart = [this](std::function<void()> work, std::function<void()> then) {
    auto combine = [work = std::move(work)] {
      fault::point("trial.combining");
      work();
    };
    context_.combining.run(probe_.timed_aggregate(job_.round.value, std::move(combine)),
                           std::move(then));
  };
  into.aggregator = std::make_unique<Aggregator>(into.store().plan(), std::move(hooks), aggregate_);
  // Each first worker that leaves before its values are here causes one.
  if (const auto rule = context_.strangers.arrival_line(into.store().optimizer().config().name))
    log::info("store.created", {{"tensors", into.store().plan().manifest().size()},
                                {"parameters", into.store().plan().total_elements()},
                                {"chunks", into.store().plan().chunks().size()},
                                {"optimizer", *rule}});
  return {};
}

/// The newest that is sound. Files are read by the blocking thread: this one answers meanwhile.
Task<Result<JobState>> StateLoader::load_newest() {
  const Raised loading(use_.is_loading, changed_);
  const std::string& folder = config_.checkpoint.dir;
  if (gate_.is_beginning()) phase_.explain("the checkpoints in " + folder + " are looked through");
  auto look = [this]() -> Result<std::shared_ptr<const CheckpointEntry>> {
    const auto refused = [](const CheckpointEntry& entry) {
      log::error("checkpoint.refused", {{"path", entry.path.string()}, {"why", entry.problem}});
    };
    auto newest = checkpoints_->newest_valid(refused);
    if (newest.ok()) return std::make_shared<const CheckpointEntry>(std::move(newest).value());
    if (newest.error().code() != ErrorCode::kNotFound) return std::move(newest).error();
    CENTROID_ASSIGN(const auto entries, checkpoints_->entries(false));
    for (const CheckpointEntry& entry : entries)
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
    newest = co_await run_on(disk_.executor, std::move(where));
  }
  if (!newest->ok()) co_return newest->error();
  if (!**newest)
    log::warn("checkpoint.none_found",
              {{"dir", checkpoints_->root().string()}, {"action", "starting afresh"}});
  if (!**newest) co_return JobState();
  co_return co_await load_checkpoint(**newest);
}

/// It was made with settings that go on the same way.
Status StateLoader::check_settings(const CheckpointEntry& entry,
                                   const std::vector<std::string>& slots, bool has_residual) const {
  const CheckpointInfo& info = entry.info;
  if (info.optimizer != config_.optimizer.name ||
      !std::equal(slots.begin(), slots.end(), info.slot_names.begin(),
                  info.slot_names.end() - (has_residual ? 1 : 0)))
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint " + entry.path.string() + " was made with optimizer '" +
                     info.optimizer + "', the configuration says '" + config_.optimizer.name + "'");
  if (info.seed != config_.seed)
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint " + entry.path.string() + " was made with seed " +
                     std::to_string(info.seed) + ", the configuration says " +
                     std::to_string(config_.seed) + ": the order of the data follows it");
  const auto fragments = info.extra.find("fragments");
  if (const std::string kept = fragments == info.extra.end() ? "1" : fragments->second;
      kept != std::to_string(config_.local.fragments))
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint " + entry.path.string() + " was made with " + kept +
                     " fragments, the configuration says " +
                     std::to_string(config_.local.fragments) +
                     ": whose turn it is follows from them (fragments)");
  return {};
}

namespace {

/// Where the job is, but for what the store holds.
void take_position(JobState& state, const CheckpointInfo& info) {
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
  if (const auto curves = info.extra.find(kCurves); curves != info.extra.end())
    state.curves = Curves::of_text(curves->second);
  for (const auto& [key, value] : info.extra)
    if (key.starts_with(kCountedPrefix))
      state.counted.add(key.substr(std::string_view(kCountedPrefix).size()),
                        Round(std::strtoull(value.c_str(), nullptr, 10)));
}

}  // namespace

/// No member may join meanwhile (`use_.is_loading`).
Task<Result<JobState>> StateLoader::load_checkpoint(std::shared_ptr<const CheckpointEntry> entry) {
  if (!entry) co_return co_await load_newest();
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
  auto look = [&directory = *checkpoints_, entry] { return directory.manifest_of(*entry); };
  CENTROID_CO_ASSIGN(const auto manifest, co_await run_on(disk_.executor, std::move(look)));
  CENTROID_CO_TRY(make_store(state, manifest, codec_in(info)));
  const std::vector<std::string> slots = state.store().optimizer().slot_names();
  const bool has_residual = !info.slot_names.empty() && info.slot_names.back() == kResidualSlot;
  CENTROID_CO_TRY(check_settings(*entry, slots, has_residual));
  const Raised loading(use_.is_loading, changed_);
  const std::string what =
      entry->path.string() + " is read, " + std::to_string(entry->bytes) + " bytes";
  if (gate_.is_beginning()) phase_.explain("checkpoint " + what);
  const auto waits = waits_.begin(WaitCause::kCheckpoint, "job", "checkpoint", what.c_str());
  const bool takes_residual = state.store().stores_residual();
  auto read = [&directory = *checkpoints_, store = &state.store(), entry, planes = slots.size(),
               takes_residual, looks = policy_.nonfinite != NonFinitePolicy::kPropagate] {
    const auto load = [&](std::size_t plane, std::uint64_t offset,
                          std::span<const float> from) -> Status {
      if (looks && !is_finite(from))
        return Error(ErrorCode::kFailedPrecondition,
                     "checkpoint " + entry->path.string() +
                         " has numbers that are not finite: move it away to go on from an older "
                         "one, or set nonfinite propagate");
      if (plane > planes && !takes_residual) return {};
      return store->load(plane, offset, from);
    };
    return directory.read(*entry, store->plan().manifest(), load);
  };
  CENTROID_CO_TRY(co_await run_on(disk_.executor, std::move(read)));
  state.store().restore(info.version, info.optimizer_step);
  take_position(state, info);
  state.held = state.position();
  state.agreed = job_.agreed;
  if (const auto generation = info.extra.find("generation"); generation != info.extra.end())
    state.least_generation = Generation(std::strtoull(generation->second.c_str(), nullptr, 10));
  if (has_residual && takes_residual) {
    if (const auto rounds = info.extra.find("codec_down_rounds"); rounds != info.extra.end())
      state.shard->encoder().set_rounds(std::strtoull(rounds->second.c_str(), nullptr, 10));
    if (const auto of = info.extra.find("codec_down_generation"); of != info.extra.end())
      state.replies_generation = state.replies_committed =
          Generation(std::strtoull(of->second.c_str(), nullptr, 10));
  } else if (has_residual || takes_residual) {
    log::warn("checkpoint.residual_mismatched",
              {{"path", entry->path.string()},
               {"codec_down", config_.transfer.codec_down},
               {"why", has_residual ? "the checkpoint has a residual of the results' codec, which "
                                      "codec_down does not use: it is lost"
                                    : "the checkpoint has no residual of the results' codec: it "
                                      "begins at zero"}});
  }
  state.resumed_from = *entry;
  log::info("checkpoint.loaded", {{"path", entry->path.string()},
                                  {"version", info.version.value},
                                  {"round", info.round.value},
                                  {"epoch", info.epoch}});
  co_return std::move(state);
}

/// By the blocking thread: this one answers meanwhile. No member may join meanwhile
/// (`use_.is_loading`).
Task<Result<JobState>> StateLoader::load_initial_file() {
  const std::string where = "init " + config_.init;
  const Raised loading(use_.is_loading, changed_);
  const std::string what = config_.init + " is read";
  if (gate_.is_beginning()) phase_.explain(what);
  const auto waits = waits_.begin(WaitCause::kCheckpoint, "job", "init", what.c_str());
  auto open = [path = config_.init] { return SafetensorsReader::open(path); };
  auto file = co_await run_on(disk_.executor, std::move(open));
  if (!file.ok()) co_return std::move(file).error().with_context(where);
  JobState state;
  CENTROID_CO_TRY(make_store(state, file->manifest(), kUnknownCodec));
  auto read = [store = &state.store(), &from = file.value()]() -> Status {
    fault::point("init.reading");
    for (const Chunk& chunk : store->plan().chunks()) {
      const std::string& name = store->plan().manifest()[chunk.tensor.value].name;
      CENTROID_TRY(from.read(name, chunk.offset * sizeof(float),
                             std::as_writable_bytes(store->initial(chunk))));
    }
    return {};
  };
  Status done = co_await run_on(disk_.executor, std::move(read));
  if (!done.ok()) co_return std::move(done).error().with_context(where);
  state.store().initialize();
  log::info("store.initialised", {{"from", config_.init}});
  co_return std::move(state);
}

/// Of a model.
Task<Result<bool>> StateLoader::has_checkpoint() const {
  auto look = [&directory = *checkpoints_] { return directory.entries(false); };
  CENTROID_CO_ASSIGN(const auto all, co_await run_on(disk_.executor, std::move(look)));
  co_return !all.empty() && all.front().version.value > 0;
}

/// Without a model.
MemoryQuestion StateLoader::memory_question() const {
  MemoryQuestion question;
  question.snapshot_bytes = kSnapshotBudgetBytes;
  if (rows_.has_tables())
    question.tables_bytes = rows_.store().reserved_bytes() + kSnapshotBudgetBytes;
  if (rows_.has_tables() && config_.writes_journal())
    question.tables_bytes += RowsJournalWriter::kQueueBytes;
  return question;
}

/// Before tables take memory.
Status StateLoader::check_tables_room() {
  // Only a share is to lie here; `prepare_rows` says where the rest does.
  if (config_.servers > 1) {
    proto::Route route;
    route.servers.resize(config_.servers);
    route.owners = place_buckets(proto::kRowBuckets, config_.servers);
    rows_.hold("the tables wait for their servers");
    CENTROID_TRY(rows_.moves().set_route(std::move(route), 0));
  }
  const MemoryNeed need = memory_need(memory_question());
  const MemoryLimit limit = memory_limit(config_.memory.limit);
  CENTROID_TRY(check_memory(need, limit));
  rows_.store().set_room(rows_.store().reserved_bytes() + limit.bytes - need.total(), limit.source);
  return {};
}

/// The job's training data, as its first worker or the checkpoint it goes on from has it.
std::optional<DataIdentity> StateLoader::agreed_data() const {
  if (job_.agreed) return DataIdentity{job_.agreed->train_samples, job_.agreed->data_fingerprint};
  if (!job_.resumed_from) return std::nullopt;
  const auto& extra = job_.resumed_from->info.extra;
  const auto samples = extra.find("train_samples");
  const auto fingerprint = extra.find("data_fingerprint");
  if (samples == extra.end() || fingerprint == extra.end()) return std::nullopt;
  return DataIdentity{std::strtoull(samples->second.c_str(), nullptr, 10),
                      std::strtoull(fingerprint->second.c_str(), nullptr, 10)};
}

}  // namespace centroid::server
