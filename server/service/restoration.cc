#include "server/service/restoration.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/restore_mark.h"
#include "server/service/replay.h"
#include "server/service/waits.h"

namespace centroid::server {

/// In the round loop, between two rounds.
Task<Status> Restoration::restore_wanted() {
  const auto wanted = restore_;
  wanted->is_begun = true;
  wanted->doing = "the checkpoint that is being written comes first";
  CENTROID_CO_TRY(co_await checkpointer_.finish_writing());
  // A checkpoint of the state that is given up would undo this.
  const Raised none(use_.is_writing, changed_);
  wanted->doing = "the files of checkpoint " + to_string(wanted->version) + " are looked at";
  (void)co_await moves_.finish_moves();  // where they are does not matter: they are placed anew
  auto outcome = co_await restore(wanted->version, wanted->deletes_newer);
  if (!outcome.ok()) log::warn("checkpoint.restore_failed", {{"why", outcome.error()}});
  const bool is_half = wanted->is_half && !outcome.ok();
  Status status;
  if (is_half) status = outcome.error();  // there is nothing to go on with
  wanted->outcome.emplace(std::move(outcome));
  changed_.notify_all();
  if (wanted->is_abandoned && restore_ == wanted) restore_.reset();
  co_return status;
}

Task<Result<RestoreView>> Restoration::restore(Version version, bool delete_newer) {
  // Nothing is touched before everything has been looked at.
  CENTROID_CO_ASSIGN(const auto folder, co_await look(version, delete_newer));
  const CheckpointEntry entry = **folder->found;
  const bool is_marked = config_.writes_journal() || folder->has_journal;
  RestoreView view;
  view.path = entry.path.string();
  view.version = version.value;
  view.round = entry.info.round.value;
  view.from_version = job_.version().value;
  restore_->doing = "the workers leave, to come back to checkpoint " + to_string(version);
  const Raised loading(use_.is_loading, changed_);  // nobody joins the state that is given up
  co_await dismiss_everybody("the job goes back to checkpoint " + entry.path.string());
  const auto mark = std::make_shared<RestoreMark>();
  mark->run_id = job_.run_id;
  mark->version = version;
  // When it fails the job goes on with the state that it has: nothing of that has been touched.
  if (is_marked)
    CENTROID_CO_TRY(co_await write_mark(mark, folder));
  else
    CENTROID_CO_TRY(co_await remove_newer(folder));
  co_await journal_.stop(disk_.executor);  // it begins anew behind the rounds of the checkpoint
  restore_->is_half = true;
  replay_.reset();
  open_ = OpenRound(policy_);
  job_.drop_model();  // in no checkpoint from here on, whatever happens
  restore_->doing = "newer checkpoints and the journal are removed";
  if (is_marked) CENTROID_CO_TRY(co_await complete(mark));
  for (const CheckpointEntry& other : folder->newer) {
    ++view.deleted;
    tell(events_, log::Level::kInfo, "checkpoint.deleted",
         {{"path", other.path.string()},
          {"version", other.version.value},
          {"why", "newer than the one that was restored"}});
  }
  restore_->doing = "the files of checkpoint " + to_string(version) + " are read";
  const auto chosen = std::make_shared<const CheckpointEntry>(entry);
  CENTROID_CO_ASSIGN(JobState next, co_await loader_.load_checkpoint(chosen));
  start_.go_on_from(std::move(next));
  job_.curves.forget_from(job_.round.value);
  fault::point("restore.loaded");
  servers_.forget_servers();  // the chunks are here, and are placed anew
  job_.gather_again();
  tell(events_, log::Level::kWarn, "checkpoint.restored",
       {{"path", view.path},
        {"version", view.version},
        {"round", view.round},
        {"from_version", view.from_version}});
  co_return view;
}

Result<Restoration::Folder> Restoration::read_folder(Version version) const {
  Folder folder;
  folder.found.emplace(checkpoints_->find(version, true));
  CENTROID_ASSIGN(const auto entries, checkpoints_->entries(false));
  for (const CheckpointEntry& other : entries)
    if (other.version > version) folder.newer.push_back(other);
  CENTROID_ASSIGN(const auto segments, journal::segments_of(config_.journal.dir));
  folder.has_journal = !segments.empty();
  return folder;
}

/// What lies in the folder, and whether the job may go back to that. The folder is the thread of
/// files'.
Task<Result<std::shared_ptr<const Restoration::Folder>>> Restoration::look(Version version,
                                                                           bool delete_newer) {
  auto read = [this, version] {
    return std::make_shared<const Result<Folder>>(read_folder(version));
  };
  const auto looked = co_await run_on(disk_.hurried(), std::move(read));
  if (!looked->ok()) co_return looked->error();
  const auto folder = std::shared_ptr<const Folder>(looked, &looked->value());
  if (!folder->found->ok()) co_return folder->found->error();
  const CheckpointEntry& entry = **folder->found;
  const std::string which = "checkpoint " + entry.path.string();
  if (entry.is_unreadable)
    co_return Error(ErrorCode::kUnavailable, which + " is unreadable: " + entry.problem);
  if (!entry.problem.empty()) {
    checkpointer_.checkpoint_lost(version);
    co_return Error(ErrorCode::kDataLoss, which + " is damaged: " + entry.problem);
  }
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition, why);
  };
  if (version == Version())
    co_return refuse(which +
                     " has no model, only tables of sparse rows: the server takes those when it "
                     "starts with `resume`");
  if (entry.info.run_id != job_.run_id)
    co_return refuse(which + " belongs to run '" + entry.info.run_id + "', not to '" + job_.run_id +
                     "'");
  const std::vector<CheckpointEntry>& newer = folder->newer;
  if (!newer.empty() && !delete_newer)
    co_return refuse("there are " + std::to_string(newer.size()) + " newer checkpoints, up to " +
                     newer.front().path.string() +
                     ", with the versions that the job will make again: say "
                     "{\"delete_newer\": true}, or take the newest");
  if ((config_.writes_journal() || folder->has_journal) && rows_.has_tables() && !newer.empty())
    co_return refuse("the rows of the tables are in the newest checkpoint, " +
                     newer.front().path.string() +
                     ", and in the journal behind it: with tables and a journal a job goes back "
                     "to the newest one only");
  co_return folder;
}

/// Without a journal nothing has to be decided at one moment.
Task<Status> Restoration::remove_newer(std::shared_ptr<const Folder> folder) {
  auto remove = [this, folder, may_write = gate_.may_write()]() -> Status {
    for (const CheckpointEntry& other : folder->newer) {
      if (may_write) CENTROID_TRY(may_write());
      CENTROID_TRY(checkpoints_->remove(other));
    }
    return {};
  };
  co_return co_await run_on(disk_.hurried(), std::move(remove));
}

/// The mark decides: whoever starts the server after it is written goes back to the checkpoint.
Task<Status> Restoration::write_mark(std::shared_ptr<RestoreMark> mark,
                                     std::shared_ptr<const Folder> folder) {
  {
    const auto waits = round_journal_.begin_wait();
    co_await journal_.drop_attempt();  // from here on nothing is written to it
  }
  for (const CheckpointEntry& other : folder->newer)
    mark->newer.push_back(other.path.filename().string());
  auto decide = [this, mark, may_write = gate_.may_write(), writer = gate_.writer()]() -> Status {
    CENTROID_ASSIGN(const auto segments, journal::segments_of(config_.journal.dir));
    for (const LogSegment& one : segments)
      mark->segments.push_back({one.path.filename().string(), one.bytes});
    return mark->write(config_.journal.dir, may_write, writer);
  };
  co_return co_await run_on(disk_.hurried(), std::move(decide));
}

/// Remove what the mark names.
Task<Status> Restoration::complete(std::shared_ptr<RestoreMark> mark) {
  auto remove = [this, mark, may_write = gate_.may_write()] {
    return mark->complete(config_.journal.dir, *checkpoints_, may_write);
  };
  co_return co_await gate_.act(disk_.hurried(), std::move(remove));
}

/// End every membership so that the workers come back, and wait until nothing uses the store.
Task<void> Restoration::dismiss_everybody(std::string why) {
  std::vector<std::weak_ptr<WorkerSession>> leaving;
  std::vector<MemberId> members;
  for (const auto& [id, worker] : members_.present) {
    leaving.push_back(worker);
    members.push_back(id);
  }
  for (const MemberId id : members)
    if (members_.roster.leave(id, why))
      control_.member_gone(id, Error(ErrorCode::kAborted, "fenced: " + why + "; join again"));
  const TimePoint limit = clock_.now() + config_.timeouts.drain;
  const auto are_gone = [&leaving] {
    return std::ranges::all_of(leaving, [](const auto& one) { return one.expired(); });
  };
  const BlockedOn on{WaitCause::kOperator, "restore", "workers",
                     [] { return "the end of their connections"; }};
  const bool have_left = co_await until(are_gone, on, limit);
  if (have_left || clock_.now() < limit) co_return;
  for (const auto& one : leaving)  // it does not take our goodbye
    if (const auto worker = one.lock()) worker->session->close(Error(ErrorCode::kAborted, why));
  (void)co_await until(are_gone, on);
}

}  // namespace centroid::server
