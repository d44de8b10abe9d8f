#include "common/base/trace.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/log.h"

namespace centroid::trace {
namespace {

constexpr std::size_t kSpans = 1u << 16;
constexpr std::size_t kMaxLanes = 256;
constexpr std::chrono::milliseconds kFlushTime{500};
constexpr std::string_view kHead = "[", kTail = "\n]\n";

struct Span {
  std::int64_t begin_ns = 0;  // of the steady clock
  std::uint64_t round = 0;
  std::uint32_t duration_us = 0;
  std::uint16_t lane = 0;
  Stage stage = Stage::kCompute;
};

std::int64_t ns_of(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// From the steady clock to microseconds since 1970, as found at the start: a clock that is set
/// later moves nothing within one file.
std::int64_t unix_offset_ns() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() -
         ns_of(std::chrono::steady_clock::now());
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

double processor_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::uint64_t resident_bytes() {
  unsigned long long pages = 0;
  if (std::FILE* const file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<unsigned long long>(::sysconf(_SC_PAGESIZE));
}

class Recorder {
 public:
  static Recorder& instance() {
    static auto* const only = new Recorder;  // never destroyed: threads may still end spans
    return *only;
  }

  std::uint16_t lane(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(lanes_.begin(), lanes_.end(), name);
    if (found != lanes_.end()) return static_cast<std::uint16_t>(found - lanes_.begin());
    if (lanes_.size() + 1 >= kMaxLanes) name = "others";
    if (lanes_.size() < kMaxLanes) lanes_.emplace_back(name);
    return static_cast<std::uint16_t>(lanes_.size() - 1);
  }

  void add(const Span& span) {
    const std::lock_guard lock(mutex_);
    spans_[next_ % kSpans] = span;
    ++next_;
  }

  void set_process(std::string name) {
    const std::lock_guard lock(mutex_);
    process_ = std::move(name);
  }

  std::string to_json(double seconds) {
    const std::int64_t since =
        ns_of(std::chrono::steady_clock::now()) - static_cast<std::int64_t>(1e9 * seconds);
    std::vector<Span> spans;
    std::vector<std::string> lanes;
    {
      const std::lock_guard lock(mutex_);
      lanes = lanes_;
      for (std::uint64_t at = next_ - std::min<std::uint64_t>(next_, kSpans); at < next_; ++at) {
        const Span& span = spans_[at % kSpans];
        if (span.begin_ns + std::int64_t{1000} * span.duration_us >= since) spans.push_back(span);
      }
    }
    std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    out += name_event("process_name", 0, process_);
    for (std::size_t i = 0; i < lanes.size(); ++i)
      out += ",\n" + name_event("thread_name", i, lanes[i]);
    for (const Span& span : spans) out += ",\n" + event(span);
    return out + "\n]}\n";
  }

  Status write_to(const std::string& path, std::uint64_t limit) {
    if (file_ >= 0) return Error(ErrorCode::kAlreadyExists, "a trace is being written already");
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0)
      return Error(ErrorCode::kInvalidArgument,
                   "trace file " + path + " cannot be made: " + std::strerror(errno));
    limit_ = limit;
    path_ = path;
    {
      const std::lock_guard lock(mutex_);
      written_ = next_;
    }
    append(std::string(kHead) + "\n" + name_event("process_name", 0, process_));
    writer_ = std::thread([this] { write_again_and_again(); });
    return {};
  }

  void finish() {
    if (!writer_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      is_finishing_ = true;
    }
    wake_.notify_all();
    writer_.join();
    ::close(file_);
  }

 private:
  std::string name_event(const char* what, std::size_t lane, const std::string& name) const {
    return std::string("{\"ph\":\"M\",\"name\":\"") + what +
           "\",\"pid\":" + std::to_string(process_id_) + ",\"tid\":" + std::to_string(lane) +
           ",\"args\":{\"name\":" + quoted(name) + "}}";
  }

  std::string event(const Span& span) const {
    char text[192];
    std::snprintf(text, sizeof text,
                  "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%u,\"ts\":%.3f,\"dur\":%u,"
                  "\"args\":{\"round\":%llu}}",
                  to_string(span.stage), process_id_, span.lane,
                  static_cast<double>(span.begin_ns + offset_ns_) / 1000, span.duration_us,
                  static_cast<unsigned long long>(span.round));
    return text;
  }

  /// Processors that the process keeps busy, on average since the last time, and its memory.
  std::string resources() {
    const std::int64_t now = ns_of(std::chrono::steady_clock::now());
    const double spent = processor_seconds();
    const double passed = 1e-9 * static_cast<double>(now - measured_ns_);
    const double busy = measured_ns_ > 0 && passed > 0 ? (spent - spent_) / passed : 0;
    measured_ns_ = now;
    spent_ = spent;
    char text[320];
    const char* const form =
        ",\n{\"ph\":\"C\",\"name\":\"processors\",\"pid\":%ld,\"ts\":%.3f,\"args\":{\"busy\":%.3f}}"
        ",\n{\"ph\":\"C\",\"name\":\"memory\",\"pid\":%ld,\"ts\":%.3f,\"args\":{\"resident_bytes\":"
        "%llu}}";
    const double at = static_cast<double>(now + offset_ns_) / 1000;
    std::snprintf(text, sizeof text, form, process_id_, at, busy, process_id_, at,
                  static_cast<unsigned long long>(resident_bytes()));
    return text;
  }

  void write_again_and_again() {
    std::unique_lock lock(mutex_);
    while (!is_finishing_) {
      wake_.wait_for(lock, kFlushTime, [this] { return is_finishing_; });
      const std::uint64_t oldest = next_ - std::min<std::uint64_t>(next_, kSpans);
      std::vector<Span> spans;
      for (std::uint64_t at = std::max(written_, oldest); at < next_; ++at)
        spans.push_back(spans_[at % kSpans]);
      written_ = next_;
      const std::vector<std::string> lanes(
          lanes_.begin() + static_cast<std::ptrdiff_t>(told_lanes_), lanes_.end());
      lock.unlock();
      std::string out;
      for (const std::string& name : lanes)
        out += ",\n" + name_event("thread_name", told_lanes_++, name);
      for (const Span& span : spans) out += ",\n" + event(span);
      append(out + resources());
      lock.lock();
    }
  }

  /// One write over the tail of the one before: whole JSON before and after it.
  void append(const std::string& text) {
    if (text.empty() || is_full_) return;
    if (size_ + text.size() > limit_) {
      is_full_ = true;
      log::warn("trace.full", {{"file", path_}, {"bytes", size_}});
      return;
    }
    const std::string block = text + std::string(kTail);
    const auto done = ::pwrite(file_, block.data(), block.size(), static_cast<off_t>(size_));
    if (done != static_cast<ssize_t>(block.size())) {
      is_full_ = true;
      if (::ftruncate(file_, static_cast<off_t>(size_)) == 0)
        (void)!::pwrite(file_, kTail.data(), kTail.size(), static_cast<off_t>(size_));
      log::warn("trace.write_failed", {{"file", path_}, {"why", std::strerror(errno)}});
      return;
    }
    size_ += text.size();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Span> spans_ = std::vector<Span>(kSpans);
  std::uint64_t next_ = 0;  // number of the next span; its place is next_ % kSpans
  std::vector<std::string> lanes_{"process"};
  std::string process_ = "centroid";
  const std::int64_t offset_ns_ = unix_offset_ns();
  const long process_id_ = ::getpid();
  // of the file
  int file_ = -1;
  std::string path_;
  std::uint64_t limit_ = 0, size_ = 0, written_ = 0;
  std::size_t told_lanes_ = 0;
  std::int64_t measured_ns_ = 0;  // when `resources` was asked last
  double spent_ = 0;              // of processor time then
  bool is_full_ = false, is_finishing_ = false;
  std::thread writer_;
};

}  // namespace

Lane::Lane(std::string_view name) : number_(Recorder::instance().lane(name)) {}

void Lane::span(Stage stage, TimePoint begin, TimePoint end, std::uint64_t round) const {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(end - begin).count();
  Recorder::instance().add({.begin_ns = ns_of(begin),
                            .round = round,
                            .duration_us = static_cast<std::uint32_t>(
                                std::clamp<std::int64_t>(us, 0, std::int64_t{UINT32_MAX})),
                            .lane = number_,
                            .stage = stage});
}

void set_process(std::string name) { Recorder::instance().set_process(std::move(name)); }

std::string to_json(double seconds) { return Recorder::instance().to_json(seconds); }

Status write_to(const std::string& path, std::uint64_t limit_bytes) {
  return Recorder::instance().write_to(path, limit_bytes);
}

void finish() { Recorder::instance().finish(); }

}  // namespace centroid::trace
