#include "server/store/rows_journal_writer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::server {

namespace {

namespace fs = std::filesystem;

/// Size at which a batch is closed: a copy that stays in the cache until it is written.
constexpr std::size_t kBatchBytes = std::size_t{1} << 20;
constexpr std::size_t kSpareBatches = 4;

}  // namespace

RowsJournalWriter::RowsJournalWriter(Options options, Position position)
    : LogWriter(options, {.goes_on = "rows_journal.recovered",
                          .waits = "rows_journal.stalled",
                          .waits_action = "pushes wait until it can be written",
                          .broken = "rows_journal.broken",
                          .broken_action = "pushes are not written until the next checkpoint is",
                          .sync_failed = "rows_journal.sync_failed",
                          .prune_failed = "rows_journal.prune_failed",
                          .removed = "rows_journal.segment_removed"}),
      run_id_(std::move(options.run_id)),
      tables_(std::move(options.tables)),
      segment_(position.segment),
      batches_written_(position.batches) {}

Result<std::unique_ptr<RowsJournalWriter>> RowsJournalWriter::start(Options options,
                                                                    Position position) {
  CENTROID_TRY(make_folder(options.folder));
  std::unique_ptr<RowsJournalWriter> writer(new RowsJournalWriter(std::move(options), position));
  CENTROID_ASSIGN(const auto earlier, rows_journal::segments_of(writer->log_.folder));
  for (const LogSegment& old : earlier)
    writer->parts_.push_back({old.path, old.number, old.number, old.bytes});
  CENTROID_TRY(writer->open_segment(position.segment, false));
  writer->start_threads();
  return writer;
}

RowsJournalWriter::~RowsJournalWriter() { join(); }

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

void RowsJournalWriter::sync() {
  const std::lock_guard lock(mutex_);
  if (is_broken_) return;
  batches_.emplace_back();
  batches_.back().syncs = true;
  batches_.back().last = ++asked_;
  changed_.notify_all();
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

void RowsJournalWriter::break_off() {
  batches_.clear();
  queued_bytes_ = 0;
  done_ = asked_;
}

void RowsJournalWriter::run() {
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
      done_ = std::max(done_, taken.back().last);  // the journal may have been broken meanwhile
      for (Batch& batch : taken) {
        queued_bytes_ -= std::min(queued_bytes_, batch.bytes.size());
        if (spare_.size() >= kSpareBatches) continue;
        batch.bytes.clear();
        spare_.push_back(std::move(batch.bytes));
      }
    } else {
      set_broken(status.error());
      log_broken(status.error());
    }
    taken.clear();
    tell();
  }
}

Status RowsJournalWriter::write(std::vector<Batch>& batches) {
  for (const Batch& batch : batches) {
    if (batch.segment != 0)
      CENTROID_TRY(persist([&] { return open_segment(batch.segment, batch.follows_gap); }));
    if (!batch.bytes.empty()) CENTROID_TRY(write_batch(batch));
  }
  fault::point("rows_journal.written");
  const bool syncs = std::ranges::any_of(batches, &Batch::syncs);
  if (log_.sync_every.count() > 0 && !syncs) return {};
  CENTROID_TRY(sync_now());
  fault::point("rows_journal.synced");
  return {};
}

/// At the end of the present segment. The leftovers of a failed attempt are overwritten by the
/// next.
Status RowsJournalWriter::write_batch(const Batch& batch) {
  rows_journal::Head head;
  head.kind = rows_journal::Kind::kBatch;
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
  parts_.back().bytes = sound_end_ = end_;
  if (unsynced_since_ == TimePoint::max()) unsynced_since_ = centroid::now();
  return {};
}

Status RowsJournalWriter::open_segment(std::uint64_t number, bool follows_gap) {
  if (file_ && !follows_gap)
    CENTROID_TRY(sync_now());  // it begins when everything before is on the disk
  const fs::path path = log_.folder / rows_journal::segment_name(number);
  (void)file::remove(path);  // of an attempt that failed
  CENTROID_ASSIGN(file::Descriptor created, file::create(path));
  fault::point("rows_journal.segment_created");
  rows_journal::Base base;
  base.run_id = run_id_;
  base.batches = batches_written_;
  base.follows_gap = follows_gap;
  base.tables = tables_;
  const auto payload = rows_journal::encode(base);
  rows_journal::Head head;
  head.kind = rows_journal::Kind::kBase;
  head.number = number;
  head.payload_bytes = payload.size();
  head.payload_crc = crc32c(payload);
  auto bytes = rows_journal::encode(head);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  CENTROID_TRY(file::write_at(created, path, 0, bytes));
  CENTROID_TRY(file::sync(created, path));
  CENTROID_TRY(file::sync_directory(log_.folder));
  fault::point("rows_journal.segment_begun");
  const std::lock_guard lock(mutex_);
  take_file(std::move(created), {path, number, number, bytes.size()});
  return {};
}

}  // namespace centroid::server
