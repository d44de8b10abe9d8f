#include "common/base/log.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/rows_journal.h"
#include "common/storage/file.h"
#include "server/service/cluster.h"

namespace centroid::server {

namespace {
/// Between two checkpoints that the tables' journal calls for.
constexpr std::chrono::seconds kAgain{10};
}  // namespace

/// The thread of files, for what somebody waits for: a checkpoint that it writes beside rounds is
/// written without rests from here on.
const Executor& Cluster::blocking() {
  duty_->hurry();
  return blocking_;
}

/// The state is in no checkpoint.
bool Cluster::needs_checkpoint() const {
  if (replay_) return false;  // the journal has more than the state
  if (job_.store && job_.store->version().value > 0 &&
      (job_.store->version() != job_.checkpointed || job_.is_checkpoint_lost))
    return true;
  if (rows_servers_) return rows_servers_->needs_checkpoint() || job_.is_checkpoint_lost;
  return rows_.changes() != rows_checkpointed_ || job_.is_checkpoint_lost;
}

/// One was found damaged, or was deleted: is it the one that has the present state?
void Cluster::checkpoint_lost(Version version) {
  const bool has_state = (job_.store && job_.store->version().value > 0) || rows_.has_tables();
  if (has_state && version == job_.checkpointed) job_.is_checkpoint_lost = true;
}

bool Cluster::is_checkpoint_due() const {
  if (gate_.is_beginning()) return false;  // what is there is being read
  const Duration since = clock_.now() - std::max(checkpoint_begun_, started_);
  const bool is_long =
      rows_.journal_wants_checkpoint(config_.journal_rows_bytes) ||
      (rows_servers_ && rows_servers_->journal_wants_checkpoint(config_.journal_rows_bytes));
  if (is_long && checkpointing_) duty_->hurry();
  if (is_long && !checkpointing_ && since >= kAgain) return true;
  if (epoch_checkpoint_due_ && !checkpointing_ && needs_checkpoint()) return true;
  return config_.checkpoint_interval.count() > 0 && !checkpointing_ && needs_checkpoint() &&
         since >= config_.checkpoint_interval;
}

/// What checkpoint.every_rounds and every_epochs call for. The end of an epoch comes seldom: where
/// its checkpoint cannot begin now, for another one is being written, it does as soon as it can.
void Cluster::checkpoint_behind_round() {
  const std::uint64_t every = config_.checkpoint_every_rounds;
  if (epoch_checkpoint_due_) (void)blocking();
  const bool is_due = epoch_checkpoint_due_ || (every > 0 && (job_.round.value - 1) % every == 0);
  if (is_due && needs_checkpoint() && !checkpointing_ && !data_.goal_reached())
    tasks_.spawn(checkpoint_in_background());
}

Task<void> Cluster::checkpoint_in_background(bool may_rest) {
  // While the journal is broken nothing else keeps what is trained.
  const auto written = co_await write_checkpoint(true, may_rest && !journal_.state().is_broken);
  if (!written.ok() && written.error().code() != ErrorCode::kCancelled)
    tell(events_, log::Level::kError, "checkpoint.failed",
         {{"why", written.error()}, {"when", "training goes on"}});
}

/// A task of the server's own: whoever asked for the checkpoint may go, it is written and its end
/// is heard of.
Task<void> Cluster::checkpoint_for(std::shared_ptr<CheckpointOutcome> outcome) {
  outcome->emplace(co_await write_checkpoint(true));
  checkpoint_done_.notify_all();
}

bool Cluster::announces_checkpoint() const {
  if (rounds_ended_ || job_.store->version().value == 0 || job_.announced == job_.store->version())
    return false;
  return std::any_of(members_.links.begin(), members_.links.end(),
                     [](const auto& entry) { return entry.second->keeps_state; });
}

/// Between rounds: what error feedback has left belongs to this state now, and to no other one
/// later.
void Cluster::announce_checkpoint() {
  announcement_wanted_ = false;
  job_.announced = job_.store->version();
  for (const auto& [id, link] : members_.links)
    if (link->keeps_state) link->keep = Round(job_.round.value - 1);
  outgoing_.notify_all();
  if (!spread_.has_others()) return state_fetched_.notify_all();
  ++spread_.freezes;  // the same round's state, before the next one: that notifies
}

/// `may_announce`: workers that keep their error feedback on disk are to save it with this state.
/// Of tasks that only the end of the server cancels: it must hear how the writing ended.
/// `is_beside_rounds`: nobody waits for it, until somebody does (blocking()).
Task<Result<CheckpointView>> Cluster::write_checkpoint(bool may_announce, bool is_beside_rounds) {
  bool has_waited = false;
  std::shared_ptr<Snapshot> snapshot;
  if (is_loading_) {  // the store has no values: it would look like one of rows only
    const auto waits = waits_.begin(WaitCause::kCheckpoint, "checkpoint", "state",
                                    "the one that the job goes on with, which is being read");
    while (is_loading_) {
      const bool goes_on = co_await changed_.wait(TimePoint::max());
      if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
    }
  }
  if (replay_)
    co_return Error(ErrorCode::kUnavailable,
                    "the journal is being replayed: " + replay_->reason() + "; repeat");
  for (;;) {
    if (checkpointing_) {
      const auto waits = waits_.begin(WaitCause::kCheckpoint, "checkpoint", "checkpoint",
                                      "the one before, which is being written or read");
      for (; checkpointing_; has_waited = true) {
        (void)blocking();
        if (!co_await checkpoint_done_.wait(TimePoint::max()))
          co_return Error(ErrorCode::kCancelled, "the server is stopping");
      }
    }
    if (is_loading_ || replay_)  // since it waited
      co_return Error(ErrorCode::kUnavailable, "the state is being read: repeat");
    if (!job_.store) break;
    // Another one asked for the same state: it is the one that was wanted here too.
    if (has_waited && job_.last_written && !job_.is_checkpoint_lost &&
        job_.last_written->version == job_.store->version().value &&
        (rows_servers_ ? !rows_servers_->needs_checkpoint()
                       : rows_.changes() == rows_checkpointed_))
      co_return *job_.last_written;
    const bool announces = may_announce && announces_checkpoint();
    if (job_.store->is_current() && !announces) break;
    if (announces) announcement_wanted_ = true;
    ++state_waiters_;  // the round loop does both before the next round
    changed_.notify_all();
    const auto waits =
        waits_.begin(WaitCause::kCheckpoint, "checkpoint", "round loop", [this, announces] {
          return "the end of " + present_round(job_) +
                 (announces ? ": the workers are told of it" : ", and the state of a worker");
        });
    const bool goes_on = co_await state_fetched_.wait(TimePoint::max());
    --state_waiters_;
    has_waited = true;  // another one may have written this state meanwhile
    if (!goes_on || closing_) co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (announces && !checkpointing_) snapshot = std::exchange(spread_.frozen, nullptr);
    if (snapshot) break;  // kept when it was announced; rounds go on
  }
  const bool has_model = job_.store && job_.store->version().value > 0;
  if (!has_model && !rows_.has_tables())
    co_return Error(ErrorCode::kFailedPrecondition,
                    "there are no parameters yet: no worker has sent the initial ones");
  // Nothing has changed: it would be the same once more.
  if (rows_.has_tables() && job_.last_written && !needs_checkpoint()) {
    if (snapshot) co_await round_servers_.thaw_servers(Round());
    co_return *job_.last_written;
  }
  const Raised writing(checkpointing_, checkpoint_done_);
  std::string written_what = "a version that is at rest";
  std::optional<Waits::Guard> being_written;  // nobody waits for the others
  if (!is_beside_rounds)
    waits_.begin(being_written, WaitCause::kCheckpoint, "checkpoint", "disk",
                 [this, &written_what] { return written_what + servers_.longest_silent(); });
  duty_->begin();  // who waits from here on is heeded
  epoch_checkpoint_due_ = false;
  checkpoint_begun_ = clock_.now();
  std::shared_ptr<RowsSnapshot> rows;
  if (rows_servers_) {
    auto kept = co_await rows_servers_->freeze();
    if (!kept.ok()) {
      co_await rows_servers_->thaw(false);
      if (snapshot) co_await round_servers_.thaw_servers(Round());
      probe_.checkpoint_failed();
      co_return kept.error();
    }
    rows = std::move(kept).value();
  }
  // Between the first chunk of a round's update and its commit there is no consistent state to
  // freeze.
  while (has_model && !snapshot) {
    if (!spread_.has_others()) snapshot = job_.store->begin_snapshot(snapshot_budget_);
    if (spread_.has_others()) snapshot = co_await frozen_servers();
    if (snapshot || spread_.lost_since || servers_.has_lost_server()) break;
    if (!co_await sleep_until(clock_.now() + std::chrono::milliseconds(1))) break;
  }
  if (has_model && !snapshot) {
    rows.reset();
    if (rows_servers_) co_await rows_servers_->thaw(false);
    co_return Error(ErrorCode::kCancelled, servers_.has_lost_server()
                                               ? "a server is gone with its chunks"
                                               : "the server is stopping");
  }
  const TimePoint begin = clock_.now();
  const bool is_spread = spread_.has_others();
  const CheckpointInfo info = is_spread ? spread_.frozen_info : checkpoint_info();
  // Rounds wait for a snapshot whose copies would not fit: that is read without rests, and so are
  // the rows, which are written before it.
  const bool rests = is_beside_rounds && !is_spread && !(snapshot && snapshot->is_full());
  // Rows, what was pushed, and the model, at one moment.
  const std::uint64_t rows_changes = rows_.changes();
  if (!rows_servers_) rows = rows_.begin_snapshot(rests ? duty_ : nullptr);
  const std::uint64_t rows_journal = rows ? rows->journal() : 0;
  journal_.checkpoint_begins(info.round);
  written_what = "version " + to_string(info.version) + ", which is written to " +
                 checkpoints_->root().string();
  Manifest manifest;
  if (has_model) manifest = job_.store->plan().manifest();
  std::function<Status(std::size_t, std::uint64_t, std::span<float>)> reader;
  if (has_model) reader = snapshot_reader(snapshot);
  if (has_model && is_beside_rounds && !is_spread && !rows_servers_) {
    // Rounds wait for a snapshot whose copies would not fit: that is read without rests.
    reader = [read = std::move(reader), duty = duty_, snapshot](
                 std::size_t plane, std::uint64_t offset, std::span<float> into) {
      if (!snapshot->is_full()) duty->rest();
      return read(plane, offset, into);
    };
  }
  std::vector<CheckpointPart> parts;
  if (rows) parts = rows_servers_ ? rows_servers_->parts(rows) : rows->parts();
  auto write = [&directory = *checkpoints_, info, manifest, snapshot = std::move(snapshot), reader,
                rows = std::move(rows), parts = std::move(parts), keep = config_.checkpoint_keep,
                keep_every = config_.checkpoint_keep_every, keeps_journal = config_.keeps_journal(),
                journal_dir = config_.journal_dir]() mutable {
    directory.set_keep(keep, keep_every);  // the folder belongs to this thread
    auto written = std::make_optional(directory.write(info, manifest, reader, parts));
    reader = nullptr;
    snapshot.reset();
    parts.clear();
    rows.reset();
    if (written->ok() && !keeps_journal)  // of a time when there was one
      for (const LogSegment& old : journal::segments_of(journal_dir)) (void)file::remove(old.path);
    if (written->ok() && !keeps_journal)
      for (const LogSegment& old : rows_journal::segments_of(journal_dir))
        (void)file::remove(old.path);
    return written;
  };
  // The blocking thread works on the snapshot to its end, whatever happens to this task.
  auto outcome = co_await run_on(blocking_, std::move(write));
  Result<CheckpointEntry>& written = *outcome;
  if (is_spread) co_await round_servers_.thaw_servers(written.ok() ? info.round : Round());
  if (rows_servers_) co_await rows_servers_->thaw(written.ok());
  if (!written.ok()) {
    probe_.checkpoint_failed();
    // What was damaged has been mended meanwhile.
    if (written.error().code() == ErrorCode::kAlreadyExists) job_.is_checkpoint_lost = false;
    co_return std::move(written).error();
  }
  job_.checkpointed = info.version;
  job_.is_checkpoint_lost = false;
  std::erase_if(job_.counted,
                [this](const auto& one) {  // who may still ask has one of the last rounds
                  return one.second.value + kCountedRounds < job_.round.value;
                });
  rows_checkpointed_ = rows_changes;
  if (!needs_checkpoint()) epoch_checkpoint_due_ = false;  // skipped rounds have changed nothing
  journal_.checkpoint_written(info.round);
  rows_.checkpoint_written(rows_journal);
  const TimePoint end = clock_.now();
  const double elapsed = std::chrono::duration<double>(end - begin).count();
  trace::Lane("checkpoints").span(trace::Stage::kCheckpoint, begin, end, info.round.value);
  probe_.checkpoint_written(elapsed, written->bytes, clock_.unix_seconds());
  tell(events_, log::Level::kInfo, "checkpoint.written",
       {{"path", written->path.string()},
        {"version", info.version.value},
        {"bytes", written->bytes},
        {"seconds", elapsed}});
  CheckpointView view;
  view.path = written->path.string();
  view.version = info.version.value;
  view.number = written->number;
  view.round = info.round.value;
  view.bytes = written->bytes;
  view.created_unix_seconds = info.created_unix_seconds;
  job_.last_written = view;
  co_return view;
}

}  // namespace centroid::server
