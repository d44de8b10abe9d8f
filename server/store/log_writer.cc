#include "server/store/log_writer.h"

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::server {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kRepeat{200};

/// Of `may_write`: no file operation fails so.
bool is_fenced(const Status& status) { return status.error().code() == ErrorCode::kAborted; }

}  // namespace

Status LogWriter::make_folder(const fs::path& folder) {
  std::error_code error;
  file::create_directories(folder, error);
  if (!error) return {};
  const ErrorCode code = error == std::errc::no_space_on_device ? ErrorCode::kResourceExhausted
                         : error == std::errc::io_error         ? ErrorCode::kUnavailable
                                                                : ErrorCode::kFailedPrecondition;
  return Error(code, "journal folder " + folder.string() + ": " + error.message());
}

void LogWriter::start_threads() {
  storage::Storage* const storage = &storage::current();
  writer_ = Thread("journal", [this, storage] {
    const storage::ScopedStorage own(*storage);
    run();
    if (const Status synced = sync_now(); !synced.ok())
      log::error(names_.sync_failed, {{"error", synced.error()}, {"when", "at the end"}});
  });
  if (log_.sync_every.count() > 0) {
    syncer_ = Thread("journal-sync", [this, storage] {
      const storage::ScopedStorage own(*storage);
      run_sync();
    });
  }
}

void LogWriter::join() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = is_abandoned_ = true;
    changed_.notify_all();
  }
  writer_.join();
  syncer_.join();
}

void LogWriter::give_up() {
  const std::lock_guard lock(mutex_);
  is_abandoned_ = true;
  changed_.notify_all();
}

void LogWriter::tell() const {
  if (log_.on_progress) log_.on_progress();
}

void LogWriter::log_broken(const Error& why) const {
  log::error(names_.broken, {{"error", why}, {"action", names_.broken_action}});
}

void LogWriter::set_broken(const Error& why) {
  const std::lock_guard lock(mutex_);
  is_broken_ = true;
  trouble_ = why.message();
  break_off();
}

std::uint64_t LogWriter::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

bool LogWriter::is_done(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

LogWriter::State LogWriter::state() const {
  const std::lock_guard lock(mutex_);
  State state;
  state.trouble = trouble_;
  state.is_broken = is_broken_;
  state.is_abandoned = is_abandoned_;
  for (const Part& part : parts_) state.bytes += part.bytes;
  state.written = written_;
  state.queued_bytes = queued_bytes_;
  state.durable = durable_mark_;
  if (unsynced_since_ != TimePoint::max())
    state.unsynced_seconds = seconds(now() - unsynced_since_);
  return state;
}

/// Whether an attempt is final; false: repeat it after a while.
bool LogWriter::may_end(const Status& status, bool is_held) {
  std::unique_lock lock(mutex_);
  if (status.ok()) {
    if (!trouble_.empty()) log::info(names_.goes_on, {});
    trouble_.clear();
    return true;
  }
  if (is_abandoned_ || (!is_held && (!log_.waits || is_fenced(status)))) return true;
  const bool is_new = trouble_.empty();
  trouble_ = status.error().message();
  lock.unlock();
  if (is_new) {
    log::error(names_.waits, {{"error", status.error()}, {"action", names_.waits_action}});
    tell();
  }
  lock.lock();
  changed_.wait_for(lock, kRepeat, [this] { return is_abandoned_; });
  return false;
}

void LogWriter::take_file(file::Descriptor created, Part part) {
  end_ = sound_end_ = durable_end_ = part.bytes;
  sound_mark_ = durable_mark_ = part.last;
  file_ = std::make_shared<file::Descriptor>(std::move(created));
  parts_.push_back(std::move(part));
  unsynced_since_ = TimePoint::max();
}

void LogWriter::prune_now(std::uint64_t first) {
  for (;;) {
    if (log_.may_write && !log_.may_write().ok()) return;
    fs::path path;
    {
      const std::lock_guard lock(mutex_);
      if (parts_.size() < 2 || parts_.front().last >= first) return;
      path = parts_.front().path;
      parts_.pop_front();
    }
    const Status removed = file::remove(path);
    if (!removed.ok())
      log::warn(names_.prune_failed, {{"path", path.string()}, {"reason", removed.error()}});
    fault::point(names_.removed);
  }
}

Status LogWriter::sync_now() {
  std::shared_ptr<file::Descriptor> file;
  fs::path path;
  std::uint64_t end = 0, mark = 0;
  {
    const std::lock_guard lock(mutex_);
    if (is_broken_ || durable_end_ == sound_end_) return {};
    file = file_;
    path = parts_.back().path;
    end = sound_end_;
    mark = sound_mark_;
    unsynced_since_ = TimePoint::max();
  }
  const TimePoint begin = now();
  // Never repeated: after a failed sync the system may have dropped the pages and report the next
  // one as a success.
  CENTROID_TRY(file::sync_data(*file, path));
  const double took = seconds(now() - begin);
  {
    const std::lock_guard lock(mutex_);
    if (file == file_) {
      durable_end_ = end;
      durable_mark_ = mark;
      if (sound_end_ != end && unsynced_since_ == TimePoint::max()) unsynced_since_ = begin;
    }
  }
  if (log_.on_sync) log_.on_sync(took);  // last: its receiver may read the state
  return {};
}

void LogWriter::run_sync() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    changed_.wait_for(lock, log_.sync_every, [this] { return stops_; });
    if (stops_) return;
    lock.unlock();
    if (const Status synced = sync_now(); !synced.ok()) {
      set_broken(synced.error());
      log_broken(synced.error());
      tell();
    }
    lock.lock();
  }
}

}  // namespace centroid::server
