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

constexpr std::chrono::milliseconds kRepeat{200};
constexpr std::size_t kMaxCopies = std::size_t{64} << 20;

TimePoint now() { return std::chrono::steady_clock::now(); }
double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
/// Of `may_write`: no file operation fails so.
bool is_fenced(const Status& status) { return status.error().code() == ErrorCode::kAborted; }

}  // namespace

Result<std::unique_ptr<JournalWriter>> JournalWriter::start(Options options, journal::Base base,
                                                            journal::Route route) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error)
    return Error(ErrorCode::kFailedPrecondition,
                 "journal folder " + options.folder.string() + ": " + error.message());
  std::unique_ptr<JournalWriter> writer(new JournalWriter(std::move(options)));
  writer->route_ = std::move(route);
  for (const LogSegment& old : journal::segments_of(writer->options_.folder))
    writer->parts_.push_back(
        {old.path, Round(old.number), std::max(Round(old.number), base.round), old.bytes});
  writer->committed_ = writer->durable_ = base.round;
  {
    const file::ScopedFaultHook hook(writer->options_.faults ? writer->options_.faults
                                                             : [](auto, const auto&) { return 0; });
    CENTROID_TRY(writer->open_segment(base));
  }
  writer->writer_ = std::thread([raw = writer.get()] { raw->run(); });
  if (writer->options_.sync_every.count() > 0)
    writer->syncer_ = std::thread([raw = writer.get()] { raw->run_sync(); });
  return writer;
}

JournalWriter::~JournalWriter() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = gives_up_ = true;
    changed_.notify_all();
  }
  if (writer_.joinable()) writer_.join();
  if (syncer_.joinable()) syncer_.join();
}

std::uint64_t JournalWriter::ask(Job job) {
  const std::lock_guard lock(mutex_);
  queued_bytes_ += job.owned.size();
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++asked_;
}

void JournalWriter::chunk(Round round, std::uint32_t attempt, ChunkId chunk, journal::Form form,
                          Bytes memory) {
  Job job{};
  job.what = Job::What::kChunk;
  job.head.kind = Kind::kChunk;
  job.head.form = form;
  job.head.round = round;
  job.head.attempt = attempt;
  job.head.chunk = chunk;
  job.memory = memory;
  ask(std::move(job));
}

void JournalWriter::chunk_copy(Round round, std::uint32_t attempt, ChunkId chunk,
                               journal::Form form, Bytes memory) {
  {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return queued_bytes_ < kMaxCopies || is_broken_ || gives_up_; });
  }
  Job job{};
  job.what = Job::What::kChunk;
  job.head.kind = Kind::kChunk;
  job.head.form = form;
  job.head.round = round;
  job.head.attempt = attempt;
  job.head.chunk = chunk;
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

void JournalWriter::give_up() {
  const std::lock_guard lock(mutex_);
  gives_up_ = true;
  changed_.notify_all();
  room_.notify_all();
}

std::uint64_t JournalWriter::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

bool JournalWriter::is_done(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

JournalWriter::State JournalWriter::state() const {
  const std::lock_guard lock(mutex_);
  State state;
  state.trouble = trouble_;
  state.is_broken = is_broken_;
  for (const Part& part : parts_) state.bytes += part.bytes;
  state.written = written_;
  state.queued_bytes = queued_bytes_;
  state.durable = durable_;
  if (unsynced_since_ != TimePoint::max())
    state.unsynced_seconds = seconds(now() - unsynced_since_);
  return state;
}

void JournalWriter::tell() {
  if (options_.on_progress) options_.on_progress();
}

void JournalWriter::run() {
  const file::ScopedFaultHook hook(options_.faults ? options_.faults
                                                   : [](auto, const auto&) { return 0; });
  for (;;) {
    Job job{};
    bool is_broken = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
      if (jobs_.empty()) break;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      queued_bytes_ -= job.owned.size();
      is_broken = is_broken_;
    }
    const bool mends = job.what == Job::What::kSegment || job.what == Job::What::kPrune;
    if (job.what == Job::What::kRoute) route_ = std::move(job.route);
    Status status;
    if (!is_broken || mends) status = perform(job);
    bool tells = job.what == Job::What::kEnd;
    {
      const std::lock_guard lock(mutex_);
      ++done_;
      room_.notify_all();
      if (!status.ok()) {
        is_broken_ = true;
        trouble_ = status.error().message();
        tells = true;
      }
      tells = tells || jobs_.empty();
    }
    if (!status.ok())
      log::error("journal.broken",
                 {{"error", status.error()},
                  {"action", "rounds are not written until the next checkpoint is"}});
    if (tells) tell();
  }
  if (const Status synced = sync_now(); !synced.ok())
    log::error("journal.sync_failed", {{"error", synced.error()}, {"when", "at the end"}});
}

template <class Attempt>
Status JournalWriter::persist(Attempt attempt) {
  for (;;) {
    Status allowed = options_.may_write ? options_.may_write() : Status();
    const bool is_held = !allowed.ok() && allowed.error().code() == ErrorCode::kUnavailable;
    Status status = allowed.ok() ? attempt() : std::move(allowed);
    std::unique_lock lock(mutex_);
    if (status.ok()) {
      if (!trouble_.empty()) log::info("journal.goes_on", {});
      trouble_.clear();
      return status;
    }
    if (gives_up_ || (!is_held && (!options_.waits || is_fenced(status)))) return status;
    const bool is_new = trouble_.empty();
    trouble_ = status.error().message();
    lock.unlock();
    if (is_new) {
      log::error("journal.waits", {{"error", status.error()},
                                   {"action", "the round waits until it can be written"}});
      tell();
    }
    lock.lock();
    changed_.wait_for(lock, kRepeat, [this] { return gives_up_; });
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
      const std::uint64_t to = committed_end_;  // only this thread changes it
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
      prune_now(job.head.round);
      return {};
  }
  return {};
}

/// At the end of the present segment. What a failed attempt left is written over by the next.
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
    committed_end_ = end_;
    committed_ = parts_.back().last = job.head.round;
    if (unsynced_since_ == TimePoint::max()) unsynced_since_ = now();
  }
  if (options_.sync_every.count() > 0) return {};
  CENTROID_TRY(sync_now());
  fault::point("journal.synced");
  return {};
}

/// Behind the last round, so that no repeated attempt cuts it off.
Status JournalWriter::write_route() {
  if (route_.servers.empty()) return {};
  Head head;
  head.kind = Kind::kRoute;
  head.round = committed_;  // only this thread changes it
  CENTROID_TRY(write_record(head, journal::encode(route_)));
  fault::point("servers.route_written");
  const std::lock_guard lock(mutex_);
  committed_end_ = end_;
  return {};
}

/// Segments behind these rounds are of rounds that do not count: the newest goes first, so that
/// what is left always fits together.
Status JournalWriter::remove_later(Round base) {
  for (;;) {
    fs::path path;
    {
      const std::lock_guard lock(mutex_);
      if (parts_.empty() || parts_.back().base <= base) return {};
      path = parts_.back().path;
      parts_.pop_back();
    }
    log::warn("journal.segment_given_up", {{"path", path.string()}, {"round", base.value}});
    std::error_code error;
    fs::remove(path, error);
    if (error)
      return Error(ErrorCode::kFailedPrecondition,
                   "remove " + path.string() + ": " + error.message());
    CENTROID_TRY(file::sync_directory(options_.folder));
  }
}

Status JournalWriter::open_segment(const journal::Base& base) {
  if (file_) CENTROID_TRY(sync_now());  // a segment begins when all before it is on the disk
  CENTROID_TRY(remove_later(base.round));
  const fs::path path = options_.folder / journal::segment_name(base.round);
  journal::Base full = base;
  {
    const std::lock_guard lock(mutex_);
    full.follows_gap = is_broken_;
  }
  if (file_ && !parts_.empty() && parts_.back().path == path && parts_.back().last == base.round &&
      !full.follows_gap)
    return {};  // no round in it yet
  std::error_code ignored;
  fs::remove(path, ignored);
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
  CENTROID_TRY(file::sync_directory(options_.folder));
  fault::point("journal.segment_begun");
  const std::lock_guard lock(mutex_);
  std::erase_if(parts_, [&](const Part& part) { return part.path == path; });
  file_ = std::make_shared<file::Descriptor>(std::move(created));
  parts_.push_back({path, base.round, base.round, bytes.size()});
  end_ = committed_end_ = durable_end_ = bytes.size();
  committed_ = durable_ = base.round;
  unsynced_since_ = TimePoint::max();
  is_broken_ = false;
  trouble_.clear();
  return {};
}

void JournalWriter::prune_now(Round checkpointed) {
  for (;;) {
    if (options_.may_write && !options_.may_write().ok()) return;
    fs::path path;
    {
      const std::lock_guard lock(mutex_);
      if (parts_.size() < 2 || parts_.front().last > checkpointed) return;
      path = parts_.front().path;
      parts_.pop_front();
    }
    std::error_code error;
    fs::remove(path, error);
    if (error)
      log::warn("journal.prune_failed", {{"path", path.string()}, {"reason", error.message()}});
    fault::point("journal.segment_removed");
  }
}

/// What is committed goes to the disk. Callable from both threads.
Status JournalWriter::sync_now() {
  std::shared_ptr<file::Descriptor> file;
  fs::path path;
  std::uint64_t end = 0;
  Round round;
  {
    const std::lock_guard lock(mutex_);
    if (is_broken_ || durable_end_ == committed_end_) return {};
    file = file_;
    path = parts_.back().path;
    end = committed_end_;
    round = committed_;
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
  durable_ = round;
  if (committed_end_ != end && unsynced_since_ == TimePoint::max()) unsynced_since_ = begin;
  return {};
}

void JournalWriter::run_sync() {
  const file::ScopedFaultHook hook(options_.faults ? options_.faults
                                                   : [](auto, const auto&) { return 0; });
  std::unique_lock lock(mutex_);
  while (!stops_) {
    changed_.wait_for(lock, options_.sync_every, [this] { return stops_; });
    if (stops_) return;
    lock.unlock();
    const Status synced = sync_now();
    if (!synced.ok()) {
      log::error("journal.broken",
                 {{"error", synced.error()},
                  {"action", "rounds are not written until the next checkpoint is"}});
      const std::lock_guard again(mutex_);
      is_broken_ = true;
      trouble_ = synced.error().message();
    }
    if (!synced.ok()) tell();
    lock.lock();
  }
}

}  // namespace centroid::server
