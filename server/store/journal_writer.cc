#include "server/store/journal_writer.h"

#include <algorithm>
#include <system_error>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/journal_reader.h"

namespace centroid::server {

using journal::Head;
using journal::Kind;

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxCopies = std::size_t{64} << 20;  // memory_need counts them

}  // namespace

JournalWriter::JournalWriter(Options options)
    : LogWriter(std::move(options),
                {.goes_on = "journal.recovered",
                 .waits = "journal.stalled",
                 .waits_action = "the round waits until it can be written",
                 .broken = "journal.broken",
                 .broken_action = "rounds are not written until the next checkpoint is",
                 .sync_failed = "journal.sync_failed",
                 .prune_failed = "journal.prune_failed",
                 .removed = "journal.segment_removed"}) {}

Result<std::unique_ptr<JournalWriter>> JournalWriter::start(Options options, journal::Base base,
                                                            journal::Route route) {
  CENTROID_TRY(make_folder(options.folder));
  std::unique_ptr<JournalWriter> writer(new JournalWriter(std::move(options)));
  writer->route_ = std::move(route);
  CENTROID_ASSIGN(const auto earlier, journal::segments_of(writer->log_.folder));
  for (const LogSegment& old : earlier)
    writer->parts_.push_back(
        {old.path, old.number, std::max(old.number, base.round.value), old.bytes});
  CENTROID_TRY(writer->open_segment(base));
  writer->start_threads();
  return writer;
}

JournalWriter::~JournalWriter() { join(); }

std::uint64_t JournalWriter::ask(Job job) {
  const std::lock_guard lock(mutex_);
  queued_bytes_ += job.owned.size();
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++asked_;
}

JournalWriter::Job JournalWriter::chunk_of(Round round, std::uint32_t attempt, ChunkId chunk,
                                           journal::Form form) {
  Job job{};
  job.what = Job::What::kChunk;
  job.head.kind = Kind::kChunk;
  job.head.form = form;
  job.head.round = round;
  job.head.attempt = attempt;
  job.head.chunk = chunk;
  return job;
}

void JournalWriter::chunk(Round round, std::uint32_t attempt, ChunkId chunk, journal::Form form,
                          Bytes memory) {
  Job job = chunk_of(round, attempt, chunk, form);
  job.memory = memory;
  ask(std::move(job));
}

void JournalWriter::chunk_copy(Round round, std::uint32_t attempt, ChunkId chunk,
                               journal::Form form, Bytes memory) {
  Job job = chunk_of(round, attempt, chunk, form);
  job.owned.assign(memory.begin(), memory.end());
  ask(std::move(job));
}

std::uint64_t JournalWriter::end_round(Kind kind, Round round, std::uint32_t attempt,
                                       journal::Commit commit) {
  Job job{};
  job.what = Job::What::kEnd;
  job.head.kind = kind;
  job.head.round = round;
  job.head.attempt = attempt;
  job.commit = std::move(commit);
  return ask(std::move(job));
}

void JournalWriter::route(journal::Route route) {
  Job job{};
  job.what = Job::What::kRoute;
  job.route = std::move(route);
  ask(std::move(job));
}

void JournalWriter::drop_attempt() {
  {
    const std::lock_guard lock(mutex_);
    // The one that is being written is no longer in the queue.
    const auto gone = std::erase_if(jobs_, [this](const Job& job) {
      if (job.what == Job::What::kChunk) queued_bytes_ -= job.owned.size();
      return job.what == Job::What::kChunk;
    });
    done_ += gone;
  }
  Job job{};
  job.what = Job::What::kRewind;
  ask(std::move(job));
}

void JournalWriter::begin_segment(journal::Base base) {
  Job job{};
  job.what = Job::What::kSegment;
  job.base = std::move(base);
  ask(std::move(job));
}

void JournalWriter::prune(Round checkpointed) {
  Job job{};
  job.what = Job::What::kPrune;
  job.head.round = checkpointed;
  ask(std::move(job));
}

bool JournalWriter::has_room() const {
  const std::lock_guard lock(mutex_);
  return queued_bytes_ < kMaxCopies || is_broken_ || is_abandoned_;
}

void JournalWriter::run() {
  for (;;) {
    Job job{};
    bool is_broken = false, frees = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
      if (jobs_.empty()) break;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      frees = queued_bytes_ >= kMaxCopies;
      queued_bytes_ -= job.owned.size();
      frees = frees && queued_bytes_ < kMaxCopies;
      is_broken = is_broken_;
    }
    const bool repairs = job.what == Job::What::kSegment || job.what == Job::What::kPrune;
    if (job.what == Job::What::kRoute) route_ = std::move(job.route);
    Status status;
    if (!is_broken || repairs) status = perform(job);
    if (!status.ok()) set_broken(status.error());  // before it is done
    bool tells = job.what == Job::What::kEnd || frees || !status.ok();
    {
      const std::lock_guard lock(mutex_);
      ++done_;
      tells = tells || jobs_.empty();
    }
    if (!status.ok()) log_broken(status.error());
    if (tells) tell();
  }
}

Status JournalWriter::perform(Job& job) {
  switch (job.what) {
    case Job::What::kChunk: {
      const Bytes payload = job.owned.empty() ? job.memory : Bytes(job.owned);
      CENTROID_TRY(write_record(job.head, payload));
      fault::point("journal.chunk_written");
      return {};
    }
    case Job::What::kEnd:
      return end_round_now(job);
    case Job::What::kRoute:
      return write_route();
    case Job::What::kRewind: {
      const std::uint64_t to = sound_end_;  // only this thread changes it
      if (end_ == to) return {};
      CENTROID_TRY(persist([&] { return file::truncate(*file_, parts_.back().path, to); }));
      end_ = to;
      const std::lock_guard lock(mutex_);
      parts_.back().bytes = to;
      return {};
    }
    case Job::What::kSegment:
      return persist([&] { return open_segment(job.base); });
    case Job::What::kPrune:
      prune_now(job.head.round.value + 1);
      return {};
  }
  return {};
}

/// At the end of the present segment. The leftovers of a failed attempt are overwritten by the
/// next.
Status JournalWriter::write_record(const Head& head, Bytes payload) {
  Head full = head;
  full.payload_bytes = payload.size();
  full.payload_crc = crc32c(payload);
  const auto bytes = journal::encode(full);
  const fs::path& path = parts_.back().path;
  const auto write = [&]() -> Status {
    CENTROID_TRY(file::write_at(*file_, path, end_, bytes));
    fault::point("journal.record_torn");
    const std::size_t half = payload.size() / 2;
    CENTROID_TRY(file::write_at(*file_, path, end_ + bytes.size(), payload.first(half)));
    fault::point("journal.payload_torn");
    return file::write_at(*file_, path, end_ + bytes.size() + half, payload.subspan(half));
  };
  CENTROID_TRY(persist(write));
  end_ += bytes.size() + payload.size();
  const std::lock_guard lock(mutex_);
  written_ += bytes.size() + payload.size();
  parts_.back().bytes = end_;
  return {};
}

Status JournalWriter::end_round_now(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    job.commit.durable_bytes = durable_end_;
  }
  CENTROID_TRY(write_record(job.head, journal::encode(job.commit)));
  fault::point("journal.end_written");
  {
    const std::lock_guard lock(mutex_);
    sound_end_ = end_;
    sound_mark_ = parts_.back().last = job.head.round.value;
    if (unsynced_since_ == TimePoint::max()) unsynced_since_ = centroid::now();
  }
  if (log_.sync_every.count() > 0) return {};
  CENTROID_TRY(sync_now());
  fault::point("journal.synced");
  return {};
}

/// After the last round, so that no repeated attempt cuts it off.
Status JournalWriter::write_route() {
  if (route_.servers.empty()) return {};
  Head head;
  head.kind = Kind::kRoute;
  head.round = Round(sound_mark_);  // only this thread changes it
  CENTROID_TRY(write_record(head, journal::encode(route_)));
  fault::point("servers.route_written");
  const std::lock_guard lock(mutex_);
  sound_end_ = end_;
  return {};
}

/// Segments after these rounds do not count: the newest is removed first, so that the rest always
/// fits together.
Status JournalWriter::remove_later(Round base) {
  for (;;) {
    fs::path path;
    {
      const std::lock_guard lock(mutex_);
      if (parts_.empty() || parts_.back().first <= base.value) return {};
      path = parts_.back().path;
      parts_.pop_back();
    }
    log::warn("journal.segment_abandoned", {{"path", path.string()}, {"round", base.value}});
    const Status removed = file::remove(path);
    if (!removed.ok()) return Error(ErrorCode::kFailedPrecondition, removed.error().message());
    CENTROID_TRY(file::sync_directory(log_.folder));
  }
}

Status JournalWriter::open_segment(const journal::Base& base) {
  if (file_) CENTROID_TRY(sync_now());  // a segment begins when everything before it is on the disk
  bool is_broken = false;
  {
    const std::lock_guard lock(mutex_);
    is_broken = is_broken_;
  }
  if (file_ && is_broken)  // the leftovers of a failed write; readers skip them, too
    (void)file::truncate(*file_, parts_.back().path, sound_end_);
  CENTROID_TRY(remove_later(base.round));
  const fs::path path = log_.folder / journal::segment_name(base.round);
  journal::Base full = base;
  full.follows_gap = is_broken;
  if (file_ && !parts_.empty() && parts_.back().path == path &&
      parts_.back().last == base.round.value && !full.follows_gap && base.terms == terms_)
    return {};  // no round in it yet
  (void)file::remove(path);
  CENTROID_ASSIGN(file::Descriptor created, file::create(path));
  fault::point("journal.segment_created");
  std::vector<std::byte> bytes;
  const auto add = [&](Kind kind, const std::vector<std::byte>& payload) {
    Head head;
    head.kind = kind;
    head.round = base.round;
    head.payload_bytes = payload.size();
    head.payload_crc = crc32c(payload);
    const auto encoded = journal::encode(head);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
  };
  add(Kind::kBase, journal::encode(full));
  if (!route_.servers.empty()) add(Kind::kRoute, journal::encode(route_));
  CENTROID_TRY(file::write_at(created, path, 0, bytes));
  CENTROID_TRY(file::sync(created, path));
  CENTROID_TRY(file::sync_directory(log_.folder));
  fault::point("journal.segment_begun");
  const std::lock_guard lock(mutex_);
  std::erase_if(parts_, [&](const Part& part) { return part.path == path; });
  take_file(std::move(created), {path, base.round.value, base.round.value, bytes.size()});
  terms_ = base.terms;
  is_broken_ = false;
  trouble_.clear();
  return {};
}

}  // namespace centroid::server
