#include "server/store/rows_journal_writer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::server {

using rows_journal::Head;
using rows_journal::Kind;

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kRepeat{200};
/// A batch is closed when it has as much: a copy that stays in the cache until it is written.
constexpr std::size_t kBatchBytes = std::size_t{1} << 20;
constexpr std::size_t kSpareBatches = 4;

TimePoint now() { return std::chrono::steady_clock::now(); }
double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
/// Of `may_write`: no file operation fails so.
bool is_fenced(const Status& status) { return status.error().code() == ErrorCode::kAborted; }

}  // namespace

RowsJournalWriter::RowsJournalWriter(Options options, Position position)
    : options_(std::move(options)),
      segment_(position.segment),
      batches_written_(position.batches) {}

Result<std::unique_ptr<RowsJournalWriter>> RowsJournalWriter::start(Options options,
                                                                    Position position) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error)
    return Error(ErrorCode::kFailedPrecondition,
                 "journal folder " + options.folder.string() + ": " + error.message());
  std::unique_ptr<RowsJournalWriter> writer(new RowsJournalWriter(std::move(options), position));
  for (const LogSegment& old : rows_journal::segments_of(writer->options_.folder))
    writer->parts_.push_back({old.path, old.number, old.bytes});
  {
    const file::ScopedFaultHook hook(writer->options_.faults ? writer->options_.faults
                                                             : [](auto, const auto&) { return 0; });
    CENTROID_TRY(writer->open_segment(position.segment, false));
  }
  writer->writer_ = std::thread([raw = writer.get()] { raw->run(); });
  if (writer->options_.sync_every.count() > 0)
    writer->syncer_ = std::thread([raw = writer.get()] { raw->run_sync(); });
  return writer;
}

RowsJournalWriter::~RowsJournalWriter() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = gives_up_ = true;
    changed_.notify_all();
  }
  if (writer_.joinable()) writer_.join();
  if (syncer_.joinable()) syncer_.join();
}

std::uint64_t RowsJournalWriter::append(const rows_journal::Entry& entry) {
  const std::lock_guard lock(mutex_);
  if (is_broken_) return asked_;
  if (batches_.empty() || batches_.back().bytes.size() >= kBatchBytes) batches_.emplace_back();
  if (batches_.back().bytes.empty() && !spare_.empty()) {
    batches_.back().bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  rows_journal::append(entry, batches_.back().bytes);
  queued_bytes_ += rows_journal::size_of(entry);
  has_entries_ = true;
  batches_.back().last = ++asked_;
  changed_.notify_all();
  return asked_;
}

std::uint64_t RowsJournalWriter::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

bool RowsJournalWriter::is_done(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

bool RowsJournalWriter::has_room() const {
  const std::lock_guard lock(mutex_);
  return queued_bytes_ < kQueueBytes;
}

std::uint64_t RowsJournalWriter::rotate() {
  const std::lock_guard lock(mutex_);
  if (!has_entries_ && !is_broken_) return segment_;
  ++segment_;
  Batch first;
  first.last = asked_;
  first.segment = segment_;
  first.follows_gap = std::exchange(is_broken_, false);
  if (first.follows_gap) trouble_.clear();
  batches_.push_back(std::move(first));
  has_entries_ = false;
  changed_.notify_all();
  return segment_;
}

void RowsJournalWriter::prune(std::uint64_t first) {
  const std::lock_guard lock(mutex_);
  prune_below_ = std::max(prune_below_, first);
  changed_.notify_all();
}

void RowsJournalWriter::give_up() {
  const std::lock_guard lock(mutex_);
  gives_up_ = true;
  changed_.notify_all();
}

RowsJournalWriter::State RowsJournalWriter::state() const {
  const std::lock_guard lock(mutex_);
  State state;
  state.trouble = trouble_;
  state.is_broken = is_broken_;
  state.gave_up = gives_up_;
  for (const Part& part : parts_) state.bytes += part.bytes;
  state.written = written_;
  state.queued_bytes = queued_bytes_;
  if (unsynced_since_ != TimePoint::max())
    state.unsynced_seconds = seconds(now() - unsynced_since_);
  return state;
}

void RowsJournalWriter::tell() {
  if (options_.on_progress) options_.on_progress();
}

void RowsJournalWriter::break_off(const Error& why) {
  const std::lock_guard lock(mutex_);
  is_broken_ = true;
  trouble_ = why.message();
  batches_.clear();
  queued_bytes_ = 0;
  done_ = asked_;
}

void RowsJournalWriter::run() {
  const file::ScopedFaultHook hook(options_.faults ? options_.faults
                                                   : [](auto, const auto&) { return 0; });
  std::vector<Batch> taken;
  std::uint64_t pruned = 0;
  for (;;) {
    std::uint64_t prune = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stops_ || !batches_.empty() || prune_below_ > pruned; });
      if (batches_.empty() && prune_below_ <= pruned) break;
      prune = prune_below_;
      while (!batches_.empty() && (taken.empty() || batches_.front().segment == 0)) {
        taken.push_back(std::move(batches_.front()));
        batches_.pop_front();
      }
    }
    const Status status = taken.empty() ? Status() : write(taken);
    if (prune > pruned) prune_now(prune);
    pruned = prune;
    if (taken.empty()) continue;
    if (status.ok()) {
      const std::lock_guard lock(mutex_);
      done_ = std::max(done_, taken.back().last);  // it may have been broken off meanwhile
      for (Batch& batch : taken) {
        queued_bytes_ -= std::min(queued_bytes_, batch.bytes.size());
        if (spare_.size() >= kSpareBatches) continue;
        batch.bytes.clear();
        spare_.push_back(std::move(batch.bytes));
      }
    } else {
      break_off(status.error());
      log::error("rows_journal.broken",
                 {{"error", status.error()},
                  {"action", "pushes are not written until the next checkpoint is"}});
    }
    taken.clear();
    tell();
  }
  if (const Status synced = sync_now(); !synced.ok())
    log::error("rows_journal.sync_failed", {{"error", synced.error()}, {"when", "at the end"}});
}

template <class Attempt>
Status RowsJournalWriter::persist(Attempt attempt) {
  for (;;) {
    Status allowed = options_.may_write ? options_.may_write() : Status();
    const bool is_held = !allowed.ok() && allowed.error().code() == ErrorCode::kUnavailable;
    Status status = allowed.ok() ? attempt() : std::move(allowed);
    std::unique_lock lock(mutex_);
    if (status.ok()) {
      if (!trouble_.empty()) log::info("rows_journal.goes_on", {});
      trouble_.clear();
      return status;
    }
    if (gives_up_ || (!is_held && (!options_.waits || is_fenced(status)))) return status;
    const bool is_new = trouble_.empty();
    trouble_ = status.error().message();
    lock.unlock();
    if (is_new) {
      log::error("rows_journal.waits",
                 {{"error", status.error()}, {"action", "pushes wait until it can be written"}});
      tell();
    }
    lock.lock();
    changed_.wait_for(lock, kRepeat, [this] { return gives_up_; });
  }
}

Status RowsJournalWriter::write(std::vector<Batch>& batches) {
  for (const Batch& batch : batches) {
    if (batch.segment != 0)
      CENTROID_TRY(persist([&] { return open_segment(batch.segment, batch.follows_gap); }));
    if (!batch.bytes.empty()) CENTROID_TRY(write_batch(batch));
  }
  fault::point("rows_journal.written");
  if (options_.sync_every.count() > 0) return {};
  CENTROID_TRY(sync_now());
  fault::point("rows_journal.synced");
  return {};
}

/// At the end of the present segment. What a failed attempt left is written over by the next.
Status RowsJournalWriter::write_batch(const Batch& batch) {
  Head head;
  head.kind = Kind::kBatch;
  head.number = batches_written_ + 1;
  head.payload_bytes = batch.bytes.size();
  head.payload_crc = crc32c(batch.bytes);
  {
    const std::lock_guard lock(mutex_);
    head.durable_bytes = durable_end_;
  }
  const auto bytes = rows_journal::encode(head);
  const fs::path& path = parts_.back().path;
  const auto write_at_end = [&]() -> Status {
    CENTROID_TRY(file::write_at(*file_, path, end_, bytes));
    fault::point("rows_journal.head_written");
    const std::size_t half = batch.bytes.size() / 2;
    const Bytes payload(batch.bytes);
    CENTROID_TRY(file::write_at(*file_, path, end_ + bytes.size(), payload.first(half)));
    fault::point("rows_journal.batch_torn");
    return file::write_at(*file_, path, end_ + bytes.size() + half, payload.subspan(half));
  };
  CENTROID_TRY(persist(write_at_end));
  end_ += bytes.size() + batch.bytes.size();
  ++batches_written_;
  const std::lock_guard lock(mutex_);
  written_ += bytes.size() + batch.bytes.size();
  parts_.back().bytes = written_end_ = end_;
  if (unsynced_since_ == TimePoint::max()) unsynced_since_ = now();
  return {};
}

Status RowsJournalWriter::open_segment(std::uint64_t number, bool follows_gap) {
  if (file_ && !follows_gap) CENTROID_TRY(sync_now());  // it begins when all before is on the disk
  const fs::path path = options_.folder / rows_journal::segment_name(number);
  std::error_code ignored;
  fs::remove(path, ignored);  // of an attempt that failed
  CENTROID_ASSIGN(file::Descriptor created, file::create(path));
  fault::point("rows_journal.segment_created");
  rows_journal::Base base;
  base.run_id = options_.run_id;
  base.batches = batches_written_;
  base.follows_gap = follows_gap;
  base.tables = options_.tables;
  const auto payload = rows_journal::encode(base);
  Head head;
  head.kind = Kind::kBase;
  head.number = number;
  head.payload_bytes = payload.size();
  head.payload_crc = crc32c(payload);
  auto bytes = rows_journal::encode(head);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  CENTROID_TRY(file::write_at(created, path, 0, bytes));
  CENTROID_TRY(file::sync(created, path));
  CENTROID_TRY(file::sync_directory(options_.folder));
  fault::point("rows_journal.segment_begun");
  const std::lock_guard lock(mutex_);
  file_ = std::make_shared<file::Descriptor>(std::move(created));
  parts_.push_back({path, number, bytes.size()});
  end_ = written_end_ = durable_end_ = bytes.size();
  unsynced_since_ = TimePoint::max();
  return {};
}

void RowsJournalWriter::prune_now(std::uint64_t first) {
  for (;;) {
    if (options_.may_write && !options_.may_write().ok()) return;
    fs::path path;
    {
      const std::lock_guard lock(mutex_);
      // The present one stays, for its file is open; it goes with the next checkpoint.
      if (parts_.size() < 2 || parts_.front().number >= first) return;
      path = parts_.front().path;
      parts_.pop_front();
    }
    std::error_code error;
    fs::remove(path, error);
    if (error)
      log::warn("rows_journal.prune_failed",
                {{"path", path.string()}, {"reason", error.message()}});
    fault::point("rows_journal.segment_removed");
  }
}

/// What is written goes to the disk. Callable from both threads.
Status RowsJournalWriter::sync_now() {
  std::shared_ptr<file::Descriptor> file;
  fs::path path;
  std::uint64_t end = 0;
  {
    const std::lock_guard lock(mutex_);
    if (is_broken_ || durable_end_ == written_end_) return {};
    file = file_;
    path = parts_.back().path;
    end = written_end_;
    unsynced_since_ = TimePoint::max();
  }
  const TimePoint begin = now();
  // Never repeated: after a failed one the system may have dropped the pages and call the next one
  // a success.
  CENTROID_TRY(file::sync_data(*file, path));
  if (options_.on_sync) options_.on_sync(seconds(now() - begin));
  const std::lock_guard lock(mutex_);
  if (file != file_) return {};
  durable_end_ = end;
  if (written_end_ != end && unsynced_since_ == TimePoint::max()) unsynced_since_ = begin;
  return {};
}

void RowsJournalWriter::run_sync() {
  const file::ScopedFaultHook hook(options_.faults ? options_.faults
                                                   : [](auto, const auto&) { return 0; });
  std::unique_lock lock(mutex_);
  while (!stops_) {
    changed_.wait_for(lock, options_.sync_every, [this] { return stops_; });
    if (stops_) return;
    lock.unlock();
    const Status synced = sync_now();
    if (!synced.ok()) {
      break_off(synced.error());
      log::error("rows_journal.broken",
                 {{"error", synced.error()},
                  {"action", "pushes are not written until the next checkpoint is"}});
      tell();
    }
    lock.lock();
  }
}

}  // namespace centroid::server
