#include "server/service/checkpointer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/rows_journal.h"
#include "common/storage/file.h"
#include "common/tensor/finite.h"
#include "common/tensor/text.h"
#include "server/service/replay.h"
#include "server/service/room.h"
#include "server/shard/placement.h"

namespace centroid::server {

using proto::ServersKind;

namespace {
/// Between two checkpoints that the tables' journal calls for.
constexpr std::chrono::seconds kRowsPause{10};
/// Of names of workers in a checkpoint's manifest, half of what that may have.
constexpr std::size_t kCountedBytes = 8u << 20;

/// A state with numbers that are not finite becomes no checkpoint, and so displaces none.
PlaneReader finite_only(PlaneReader read, Manifest manifest) {
  return [read = std::move(read), manifest = std::move(manifest)](
             std::size_t plane, std::uint64_t offset, std::span<float> into) -> Status {
    CENTROID_TRY(read(plane, offset, into));
    if (is_finite(into)) return {};
    std::size_t tensor = 0;
    for (std::uint64_t end = 0; tensor + 1 < manifest.size(); ++tensor)
      if (end += manifest[tensor].elements(); offset < end) break;
    return Error(ErrorCode::kFailedPrecondition,
                 (plane == 0 ? "tensor " : "the optimizer's state of tensor ") +
                     manifest[tensor].name + " is not finite: the checkpoints before it stay");
  };
}

/// The sound checkpoint of a version, which kept the same state from being written again.
Result<CheckpointEntry> entry_of(const CheckpointDirectory& directory, Version version) {
  for (CheckpointEntry& entry : directory.list(false))
    if (entry.version == version) return std::move(entry);
  return Error(ErrorCode::kUnavailable,
               "the checkpoint of version " + to_string(version) + " was deleted: repeat");
}

}  // namespace

/// The state is in no checkpoint.
bool Checkpointer::needs_checkpoint() const {
  if (replay_) return false;  // the journal has more than the state
  if (job_.shard && job_.store().version().value > 0 &&
      (job_.store().version() != job_.checkpointed || job_.is_checkpoint_lost))
    return true;
  if (table_servers_) return table_servers_->needs_checkpoint() || job_.is_checkpoint_lost;
  return rows_.store().changes() != rows_checkpointed_ || job_.is_checkpoint_lost;
}

bool Checkpointer::is_checkpoint_due() const {
  if (gate_.is_beginning()) return false;  // what is there is being read
  if (open_.is_spoilt) return false;       // as the last one has said
  const Duration since = clock_.now() - std::max(checkpoint_begun_, started_);
  const bool is_long =
      rows_.journal().requires_checkpoint(config_.journal.rows_bytes) ||
      (table_servers_ && table_servers_->journal_wants_checkpoint(config_.journal.rows_bytes));
  if (is_long && use_.is_writing) disk_.duty->hurry();
  if (use_.is_writing || is_asked_) return false;
  if (is_long && since >= kRowsPause) return true;
  if (!needs_checkpoint()) return false;
  const bool is_settled = !table_servers_ || table_servers_->why_unsettled().empty();
  if ((is_due_ || is_postponed_) && is_settled) return true;
  return config_.checkpoint.interval.count() > 0 && since >= config_.checkpoint.interval;
}

/// What checkpoint.every_rounds and every_epochs call for. A checkpoint that cannot begin now, for
/// another one is being written, begins behind that one. Then neither rests: the rounds to replay
/// would become more and more.
void Checkpointer::checkpoint_behind_round() {
  const std::uint64_t every = config_.checkpoint.every_rounds;
  const bool is_due = is_due_ || (every > 0 && (job_.round.value - 1) % every == 0);
  if (is_due && use_.is_writing) {
    is_postponed_ = true;
    (void)disk_.hurried();
  }
  if (is_due && needs_checkpoint() && !use_.is_writing && !data_.goal_reached())
    tasks_.spawn(checkpoint_in_background());
}

/// As many rounds were replayed as lie between two checkpoints. The next due one may be far:
/// a server that is killed again would replay these rounds once more, and those behind them.
void Checkpointer::catch_up() {
  const std::uint64_t every = config_.checkpoint.every_rounds;
  if (every > 0 && job_.store().version().value >= job_.checkpointed.value + every) is_due_ = true;
}

Task<Result<CheckpointView>> Checkpointer::write_checkpoint(bool may_announce,
                                                            bool is_beside_rounds) {
  CENTROID_CO_TRY(co_await await_state());
  if (open_.is_spoilt)
    co_return Error(ErrorCode::kFailedPrecondition,
                    "the state has part of round " + to_string(job_.round) +
                        ", whose numbers are not finite: the newest checkpoint is the state to "
                        "return to");
  Writing one;
  one.is_beside_rounds = is_beside_rounds;
  CENTROID_CO_ASSIGN(const bool is_new, co_await await_turn(may_announce, one));
  if (!is_new) co_return *job_.last_written;
  one.has_model = job_.shard && job_.store().version().value > 0;
  if (!one.has_model && !rows_.has_tables())
    co_return Error(ErrorCode::kFailedPrecondition,
                    "there are no parameters yet: no worker has sent the initial ones");
  // Nothing has changed: it would be the same once more.
  if (rows_.has_tables() && job_.last_written && !needs_checkpoint()) {
    if (one.snapshot) co_await round_servers_.thaw_servers(Round());
    co_return *job_.last_written;
  }
  const Raised writing(use_.is_writing, changed_);
  one.doing = "a version that is at rest";
  std::optional<Waits::Guard> being_written;  // nobody waits for the others
  if (!is_beside_rounds)
    waits_.begin(being_written, WaitCause::kCheckpoint, "checkpoint", "disk",
                 [this, &one] { return one.doing + servers_.longest_silent(); });
  disk_.duty->begin();  // who waits from here on is heeded
  if (is_postponed_) disk_.duty->hurry();
  is_due_ = is_postponed_ = false;
  checkpoint_begun_ = clock_.now();
  CENTROID_CO_TRY(co_await freeze(one));
  const auto written = co_await write_files(one);
  const Round covered = written.ok() ? written->info.round : Round();
  if (one.is_spread) co_await round_servers_.thaw_servers(covered);
  if (table_servers_) co_await table_servers_->thaw(written.ok());
  if (written.ok()) co_return note_written(one, *written);
  probe_.checkpoint_failed();
  co_return written.error();
}

/// A state that is being read would look like one of rows only.
Task<Status> Checkpointer::await_state() {
  if (use_.is_loading) {
    BlockedOn on{WaitCause::kCheckpoint, "checkpoint", "state",
                 [] { return "the one that the job goes on with, which is being read"; }};
    const auto is_read = [this] { return !use_.is_loading; };
    const bool goes_on = co_await until(is_read, std::move(on));
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
  if (replay_)
    co_return Error(ErrorCode::kUnavailable,
                    "the journal is being replayed: " + replay_->reason() + "; repeat");
  co_return Status();
}

/// Behind another one, and until the newest values are here and announced. False: another one has
/// written the same state meanwhile. It may have been kept when it was announced; rounds go on.
Task<Result<bool>> Checkpointer::await_turn(bool may_announce, Writing& one) {
  bool has_waited = false;
  for (;;) {
    if (use_.is_writing) {
      has_waited = true;
      BlockedOn on{WaitCause::kCheckpoint, "checkpoint", "checkpoint",
                   [] { return "the one before, which is being written or read"; }};
      const bool goes_on = co_await until_written(std::move(on));
      if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
    }
    if (use_.is_loading || replay_)  // since it waited
      co_return Error(ErrorCode::kUnavailable, "the state is being read: repeat");
    if (!job_.shard) co_return true;
    // Another one asked for the same state: it is the one that was wanted here too.
    if (has_waited && job_.last_written && !job_.is_checkpoint_lost &&
        job_.last_written->version == job_.store().version().value &&
        (table_servers_ ? !table_servers_->needs_checkpoint()
                        : rows_.store().changes() == rows_checkpointed_))
      co_return false;
    const bool announces = may_announce && announces_checkpoint();
    if (job_.store().is_current() && !announces) co_return true;
    if (announces) announcement_wanted_ = true;
    ++state_waiters_;  // the round loop does both before the next round
    changed_.notify_all();
    const auto what = [this, announces] {
      return "the end of " + present_round(job_) +
             (announces ? ": the workers are told of it" : ", and the state of a worker");
    };
    const auto is_done = [this, announces] {
      if (stopping_.is_closing || use_.is_loading || replay_ || !job_.shard) return true;
      if (!announces) return job_.store().is_current();
      return stopping_.rounds_ended || (!announcement_wanted_ && spread_.freezes == 0);
    };
    BlockedOn on{WaitCause::kCheckpoint, "checkpoint", "round loop", what};
    const bool goes_on = co_await until(is_done, std::move(on));
    --state_waiters_;
    has_waited = true;  // another one may have written this state meanwhile
    if (!goes_on || stopping_.is_closing)
      co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (announces && !use_.is_writing) one.snapshot = take_frozen();
    if (one.snapshot) co_return true;
  }
}

/// Rows, what was pushed, and the model, at one moment.
Task<Status> Checkpointer::freeze(Writing& one) {
  if (table_servers_) {
    auto kept = co_await table_servers_->freeze();
    if (!kept.ok()) {
      co_await table_servers_->thaw(false);
      if (one.snapshot) co_await round_servers_.thaw_servers(Round());
      probe_.checkpoint_failed();
      co_return kept.error();
    }
    one.rows = std::move(kept).value();
  }
  // Between the first chunk of a round's update and its commit there is no consistent state to
  // freeze.
  const auto is_lost = [this] { return spread_.lost_since || servers_.has_lost_server(); };
  bool goes_on = one.has_model;
  while (goes_on && !one.snapshot) {
    if (!spread_.has_others())
      one.snapshot = job_.store().begin_snapshot(loader_.snapshot_budget(), context_.notifier());
    if (spread_.has_others()) one.snapshot = co_await frozen_servers();
    if (one.snapshot || is_lost()) break;
    if (spread_.has_others()) {  // another server has not done it: it is asked again
      goes_on = co_await sleep_until(clock_.now() + kRetryPause);  // lint-ok: a retry
      continue;
    }
    const auto may_begin = [this, is_lost] {
      return spread_.has_others() || job_.store().may_begin_snapshot() || is_lost();
    };
    BlockedOn on{WaitCause::kCheckpoint, "checkpoint", "round loop", [this] {
                   return "the end of " + present_round(job_) + ": no version is at rest";
                 }};
    if (!one.is_beside_rounds) on = kShownElsewhere;
    goes_on = co_await until(may_begin, std::move(on));
  }
  if (one.has_model && !one.snapshot) {
    one.rows.reset();
    if (table_servers_) co_await table_servers_->thaw(false);
    co_return Error(ErrorCode::kCancelled, servers_.has_lost_server()
                                               ? "a server is gone with its chunks"
                                               : "the server is stopping");
  }
  one.begin = clock_.now();
  one.is_spread = spread_.has_others();
  one.info = one.is_spread ? spread_.frozen_info : checkpoint_info();
  // Rounds wait for a snapshot whose copies would not fit: that is read without rests, and so are
  // the rows, which are written before it.
  const bool rests =
      one.is_beside_rounds && !one.is_spread && !(one.snapshot && one.snapshot->is_full());
  one.rows_changes = rows_.store().changes();
  if (!table_servers_) one.rows = rows_.begin_snapshot(rests ? disk_.duty : nullptr);
  one.rows_journal = one.rows ? one.rows->journal() : 0;
  if (!one.is_spread) journal_.checkpoint_begins(one.info.round);
  one.doing = "version " + to_string(one.info.version) + ", which is written to " +
              checkpoints_->root().string();
  co_return Status();
}

/// The thread of files works on the snapshot to its end, whatever happens to this task.
Task<Result<CheckpointEntry>> Checkpointer::write_files(Writing& one) {
  Manifest manifest;
  if (one.has_model) manifest = job_.store().plan().manifest();
  PlaneReader reader;
  if (one.has_model) reader = snapshot_reader(one.snapshot);
  if (one.has_model && one.is_beside_rounds && !one.is_spread && !table_servers_) {
    // Rounds wait for a snapshot whose copies would not fit: that is read without rests.
    reader = [read = std::move(reader), duty = disk_.duty, snapshot = one.snapshot](
                 std::size_t plane, std::uint64_t offset, std::span<float> into) {
      if (!snapshot->is_full()) duty->rest();
      return read(plane, offset, into);
    };
  }
  if (one.has_model && policy_.nonfinite != NonFinitePolicy::kPropagate)
    reader = finite_only(std::move(reader), manifest);
  std::vector<CheckpointPart> parts;
  if (one.rows) parts = table_servers_ ? table_servers_->parts(one.rows) : one.rows->parts();
  auto write =
      [&directory = *checkpoints_, info = one.info, manifest, snapshot = std::move(one.snapshot),
       reader, rows = std::move(one.rows), parts = std::move(parts), curves = job_.curves,
       keep = config_.checkpoint.keep, keep_every = config_.checkpoint.keep_every,
       writes_journal = config_.writes_journal(), journal_dir = config_.journal.dir]() mutable {
        directory.set_keep(keep, keep_every);  // the folder belongs to this thread
        if (!curves.points().empty()) info.extra[kCurves] = curves.to_text();
        auto written = directory.write(info, manifest, reader, parts);
        reader = nullptr;
        snapshot.reset();
        parts.clear();
        rows.reset();
        if (written.ok() && !writes_journal) {
          remove_needless(journal::segments_of(journal_dir));
          remove_needless(rows_journal::segments_of(journal_dir));
        }
        return written;
      };
  reader = nullptr;
  auto written = co_await run_on(disk_.executor, std::move(write));
  one.is_there = !written.ok() && written.error().code() == ErrorCode::kAlreadyExists;
  if (!one.is_there) co_return written;
  auto find = [&directory = *checkpoints_, version = one.info.version] {
    return entry_of(directory, version);
  };
  co_return co_await run_on(disk_.executor, std::move(find));
}

CheckpointView checkpoint_view(const CheckpointEntry& entry) {
  return {.path = entry.path.string(),
          .problem = entry.problem,
          .version = entry.version.value,
          .number = entry.number,
          .round = entry.info.round.value,
          .bytes = entry.bytes,
          .created_unix_seconds = entry.info.created_unix_seconds};
}

CheckpointView Checkpointer::note_written(const Writing& one, const CheckpointEntry& written) {
  job_.checkpointed = one.info.version;
  job_.is_checkpoint_lost = false;
  job_.counted.forget_before(first_counted());
  rows_checkpointed_ = one.rows_changes;
  if (!needs_checkpoint()) is_due_ = is_postponed_ = false;  // rounds were skipped
  journal_.checkpoint_written(written.info.round);  // of one that was there: an earlier one
  rows_.journal().prune(one.rows_journal);
  job_.last_written = checkpoint_view(written);
  if (one.is_there) return *job_.last_written;
  const TimePoint end = clock_.now();
  const double elapsed = std::chrono::duration<double>(end - one.begin).count();
  trace::Lane("checkpoints").span(trace::Stage::kCheckpoint, one.begin, end, one.info.round.value);
  probe_.checkpoint_written(elapsed, written.bytes, clock_.unix_seconds());
  tell(events_, log::Level::kInfo, "checkpoint.written",
       {{"path", written.path.string()},
        {"version", one.info.version.value},
        {"bytes", written.bytes},
        {"seconds", elapsed}});
  return *job_.last_written;
}

bool Checkpointer::announces_checkpoint() const {
  if (stopping_.rounds_ended || job_.store().version().value == 0 ||
      job_.announced == job_.store().version())
    return false;
  return std::any_of(members_.present.begin(), members_.present.end(),
                     [](const auto& entry) { return entry.second->own_state.is_present; });
}

/// Between rounds: what error feedback has left belongs to this state now, and to no other one
/// later.
void Checkpointer::announce_checkpoint() {
  announcement_wanted_ = false;
  job_.announced = job_.store().version();
  for (const auto& [id, worker] : members_.present) {
    if (!worker->own_state.is_present) continue;
    worker->own_state.keep = Round(job_.round.value - 1);
    worker->wake.notify_all();
  }
  if (spread_.has_others()) ++spread_.freezes;  // the same round's state, before the next one
  changed_.notify_all();
}

Task<void> Checkpointer::checkpoint_in_background(bool may_rest) {
  const Raised asked(is_asked_, changed_);
  // While the journal is broken nothing else keeps what is trained.
  const auto written = co_await write_checkpoint(true, may_rest && !journal_.state().is_broken);
  if (!written.ok() && written.error().code() != ErrorCode::kCancelled)
    tell(events_, log::Level::kError, "checkpoint.failed",
         {{"why", written.error()},
          {"when", stopping_.rounds_ended ? "after the last round" : "training goes on"}});
}

/// Write a checkpoint for a caller who may leave before it is done. Runs as a task of the server.
Task<void> Checkpointer::checkpoint_for(std::shared_ptr<CheckpointOutcome> outcome) {
  outcome->emplace(co_await write_checkpoint(true));
  changed_.notify_all();
}

/// Who may still ask whether its contribution counted has one of the rounds from here on.
Round Checkpointer::first_counted() const {
  return Round(job_.round.value - std::min(job_.round.value, kCountedRounds));
}

CheckpointInfo Checkpointer::checkpoint_info() const {
  CheckpointInfo info;
  info.run_id = job_.run_id;
  info.created_unix_seconds = clock_.unix_seconds();
  if (!job_.shard || job_.store().version().value == 0) return info;  // rows only
  info.version = job_.store().version();
  info.round = Round(job_.round.value - 1);
  info.epoch = job_.epoch;
  info.offset = job_.offset;
  info.optimizer_step = job_.store().optimizer_step();
  info.seed = config_.seed;
  info.optimizer = config_.optimizer.name;
  info.slot_names = job_.store().optimizer().slot_names();
  if (job_.store().stores_residual()) {
    info.slot_names.emplace_back(kResidualSlot);
    info.extra["codec_down_rounds"] = std::to_string(job_.shard->encoder().rounds());
    info.extra["codec_down_generation"] = to_string(job_.replies_committed);
  }
  if (config_.local.fragments > 1)
    info.extra["fragments"] = std::to_string(config_.local.fragments);
  if (job_.steps_before > 0) info.extra["local_steps"] = std::to_string(job_.steps_before);
  if (const std::string returned = data_.untrained(false); !returned.empty())
    info.extra["returned"] = returned;
  info.extra["generation"] = to_string(members_.roster.generation());
  for (const auto& [name, round] : job_.counted.newest(first_counted(), kCountedBytes))
    if (is_utf8(name)) info.extra[kCountedPrefix + name] = to_string(round);
  if (job_.agreed) info.extra["model"] = job_.agreed->model;
  if (job_.agreed || job_.resumed_from)
    info.extra["codec"] = job_.agreed ? job_.agreed->codec : codec_in(job_.resumed_from->info);
  if (const auto data = loader_.agreed_data()) {
    info.extra["train_samples"] = std::to_string(data->samples);
    info.extra["data_fingerprint"] = std::to_string(data->fingerprint);
  }
  return info;
}

/// One was found damaged, or was deleted: is it the one that has the present state?
void Checkpointer::checkpoint_lost(Version version) {
  const bool has_state = (job_.shard && job_.store().version().value > 0) || rows_.has_tables();
  if (has_state && version == job_.checkpointed) job_.is_checkpoint_lost = true;
}

/// Between two rounds: keep the present version on all servers for a checkpoint.
Task<Status> Checkpointer::freeze_servers() {
  CENTROID_CO_TRY(co_await moves_.finish_moves());
  proto::ServerState state;
  state.version = job_.store().version();
  state.optimizer_step = job_.store().optimizer_step();
  state.round = Round(job_.round.value - 1);
  auto head = proto::encode(state);
  const auto kept =
      co_await shards_.ask_all(spread_.others(), ServersKind::kFreeze, std::move(head));
  if (!kept.ok()) co_return kept.error();
  spread_.frozen = job_.store().begin_snapshot(loader_.snapshot_budget(), context_.notifier());
  if (!spread_.frozen) co_return Error(ErrorCode::kInternal, "no snapshot between two rounds");
  spread_.frozen_info = checkpoint_info();
  journal_.checkpoint_begins(state.round);  // now: rounds go on before the caller does
  co_return Status();
}

/// The version that is kept on all servers for a checkpoint, or nullptr: not yet, or there is one
/// server only. While rounds are made their loop keeps it between two of them.
Task<std::shared_ptr<Snapshot>> Checkpointer::frozen_servers() {
  if (!spread_.has_others()) co_return nullptr;
  BlockedOn on{WaitCause::kCheckpoint, "checkpoint", "statistics",
               [] { return "their end: a version is kept aside for them"; }};
  const auto is_free = [this] { return !use_.is_measured; };
  const bool goes_on = co_await until(is_free, std::move(on));
  if (!goes_on) co_return nullptr;
  if (!stopping_.rounds_ended && !use_.is_loop_writing) {
    ++spread_.freezes;
    changed_.notify_all();
    BlockedOn frozen{WaitCause::kCheckpoint, "checkpoint", "round loop", [this] {
                       return "the end of " + present_round(job_) +
                              ": a version is kept on all servers between rounds";
                     }};
    const auto is_done = [this] {
      return spread_.freezes == 0 || spread_.lost_since || stopping_.rounds_ended;
    };
    const bool is_frozen = co_await until(is_done, std::move(frozen));
    if (!is_frozen || spread_.frozen || !stopping_.rounds_ended) co_return take_frozen();
  }
  const Status kept = co_await freeze_servers();
  if (!kept.ok()) log::warn("checkpoint.freeze_failed", {{"why", kept.error()}});
  co_return take_frozen();
}

std::shared_ptr<Snapshot> Checkpointer::take_frozen() {
  changed_.notify_all();  // chunks may move again
  return std::exchange(spread_.frozen, nullptr);
}

/// The round loop calls it between two rounds, for a checkpoint that is to be written.
Task<Status> Checkpointer::freeze_for_checkpoint() {
  if (spread_.frozen && spread_.frozen->version() != job_.store().version()) spread_.frozen.reset();
  if (!spread_.frozen) {
    const Status kept = co_await freeze_servers();
    if (!kept.ok()) log::warn("checkpoint.freeze_failed", {{"why", kept.error()}});
    if (!kept.ok()) spread_.frozen.reset();
  }
  spread_.freezes = 0;
  changed_.notify_all();
  co_return Status();
}

/// In the round loop, between two rounds: one that is yet to begin waits for it, with several
/// servers.
Task<Status> Checkpointer::finish_writing() {
  while (use_.is_writing) {
    if (spread_.freezes > 0) CENTROID_CO_TRY(co_await freeze_for_checkpoint());
    BlockedOn on{WaitCause::kCheckpoint, present_round(job_), "checkpoint",
                 [] { return "the one that is being written comes first"; }};
    const auto moves = [this] {
      (void)disk_.hurried();
      return !use_.is_writing || spread_.freezes > 0;
    };
    const bool goes_on = co_await until(moves, std::move(on));
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
  co_return Status();
}

/// The kept version, chunk by chunk wherever it lies. Runs on the blocking thread.
class Checkpointer::SpreadReader {
 public:
  SpreadReader(Checkpointer& around, std::shared_ptr<Snapshot> mine)
      : around_(around),
        plan_(around.job_.store().plan()),
        owners_(around.spread_.route.owners),
        mine_(std::move(mine)) {}

  Status read(std::size_t plane, std::uint64_t offset, std::span<float> into) {
    const auto chunks = plan_.chunks();
    auto chunk = std::partition_point(chunks.begin(), chunks.end(), [&](const Chunk& one) {
      return one.position + one.elements <= offset;
    });
    for (; !into.empty(); ++chunk) {
      const std::uint64_t skip = offset - chunk->position;
      const auto count =
          static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), chunk->elements - skip));
      const bool is_mine = owners_.empty() || owners_[chunk->id.value] == kLeaderServer;
      if (is_mine) {
        CENTROID_TRY(mine_->read(plane, offset, into.first(count)));
      } else {
        CENTROID_TRY(fetch(plane, *chunk));
        std::memcpy(into.data(), values_.data() + skip * sizeof(float), count * sizeof(float));
      }
      into = into.subspan(count);
      offset += count;
    }
    return {};
  }

 private:
  Status fetch(std::size_t plane, const Chunk& chunk) {
    if (held_ == std::pair(plane, chunk.id)) return {};
    proto::ServerChunk head;
    head.version = mine_->version();
    head.plane = static_cast<std::uint8_t>(plane);
    head.chunk = chunk.id;
    head.frozen = true;
    auto fetched = wait_on(around_.executor_, around_.servers_.fetch_chunk(head));
    if (!fetched.ok()) return fetched.error();
    values_ = std::move(fetched).value();
    held_ = std::pair(plane, chunk.id);
    return {};
  }

  Checkpointer& around_;
  const ChunkPlan plan_;
  const std::vector<std::uint16_t> owners_;
  std::shared_ptr<Snapshot> mine_;
  std::optional<std::pair<std::size_t, ChunkId>> held_;
  std::vector<std::byte> values_;
};

Checkpointer::PlaneReader Checkpointer::snapshot_reader(std::shared_ptr<Snapshot> snapshot) {
  auto reader = std::make_shared<SpreadReader>(*this, std::move(snapshot));
  return [reader](std::size_t plane, std::uint64_t offset, std::span<float> into) {
    return reader->read(plane, offset, into);
  };
}

}  // namespace centroid::server
