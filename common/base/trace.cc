#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/log.h"
#include "common/base/process_metrics.h"
#include "common/base/trace_events.h"

namespace centroid::trace {
namespace {

constexpr std::size_t kSpans = 1u << 16, kMarks = 4096, kSamples = 1u << 14;
constexpr std::size_t kMaxLanes = 256, kMaxText = 200;
constexpr std::chrono::milliseconds kTurn{500};  // between two samples, and between two writes
constexpr std::string_view kHead = "[", kTail = "\n]\n";

enum class Kind : std::uint8_t { kStage, kPeriod, kNamed };

struct Span {
  std::int64_t begin_ns = 0;  // of the steady clock
  std::uint64_t round = 0;
  std::uint32_t duration_us = 0;
  std::uint16_t lane = 0;
  std::uint8_t what = 0;  // Stage, Period, or a number of names_
  Kind kind = Kind::kStage;
  std::int64_t end_ns() const { return begin_ns + std::int64_t{1000} * duration_us; }
};
struct Mark {
  std::int64_t end_at_ns = 0;
  std::uint16_t lane = 0;
  std::string name, text;
  std::int64_t end_ns() const { return end_at_ns; }
};
struct Sample {
  std::int64_t end_at_ns = 0;
  double value = 0;
  std::uint16_t track = 0;
  std::int64_t end_ns() const { return end_at_ns; }
};

std::int64_t ns_of(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
std::int64_t now_ns() { return ns_of(std::chrono::steady_clock::now()); }

/// From the steady clock to microseconds since 1970, determined at the start: setting the clock
/// later moves nothing within one file.
std::int64_t unix_offset_ns() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() - now_ns();
}

std::uint64_t resident_bytes() {
  unsigned long long pages = 0;
  if (std::FILE* const file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<unsigned long long>(::sysconf(_SC_PAGESIZE));
}

/// The newest `most` of the added items, numbered from 0.
template <class One>
class Newest {
 public:
  explicit Newest(std::size_t most) : most_(most) {}
  void add(One one) {
    if (ring_.size() < most_)
      ring_.push_back(std::move(one));
    else
      ring_[next_ % most_] = std::move(one);
    ++next_;
  }
  std::uint64_t next() const { return next_; }
  /// Each of those from number `first` on that ended at `since` or later.
  template <class Take>
  void each(std::uint64_t first, std::int64_t since, const Take& take) const {
    for (std::uint64_t at = std::max(first, next_ - ring_.size()); at < next_; ++at)
      if (const One& one = ring_[at % most_]; one.end_ns() >= since) take(one);
  }

 private:
  std::size_t most_;
  std::deque<One> ring_;  // number n is at n % most_
  std::uint64_t next_ = 0;
};

/// Position of a reader.
struct Place {
  std::uint64_t span = 0, mark = 0, sample = 0;
};

class Recorder {
 public:
  static Recorder& instance() {
    static auto* const only = new Recorder;  // never destroyed: threads may still end spans
    return *only;
  }

  std::uint16_t lane(std::string_view name) {
    const std::lock_guard lock(mutex_);
    return number_of(lanes_, std::string(name), std::string("others"));
  }
  void add(const Span& span) {
    const std::lock_guard lock(mutex_);
    spans_.add(span);
  }
  void add(Span span, std::string_view name) {
    const std::lock_guard lock(mutex_);
    span.kind = Kind::kNamed;
    static_assert(kMaxLanes <= 256);
    span.what =
        static_cast<std::uint8_t>(number_of(names_, std::string(name), std::string("others")));
    spans_.add(span);
  }
  void add(Mark mark) {
    const std::lock_guard lock(mutex_);
    marks_.add(std::move(mark));
  }
  void set_process(std::string name) {
    const std::lock_guard lock(mutex_);
    process_ = std::move(name);
  }
  void add_source(std::function<void(const RecordSample&)> source) {
    const std::lock_guard lock(sources_mutex_);
    sources_.push_back(std::move(source));
  }

  void start() {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable() || is_finishing_) return;
    spent_ = metrics::processor_seconds();
    measured_ns_ = now_ns();
    thread_ = std::thread([this] { run(); });
  }

  Capture capture(double seconds) {
    const std::lock_guard lock(mutex_);
    return from({}, now_ns() - static_cast<std::int64_t>(1e9 * seconds));
  }

  Status write_to(const std::string& path, std::uint64_t limit) {
    if (file_ >= 0) return Error(ErrorCode::kAlreadyExists, "a trace is being written already");
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
      return Error(ErrorCode::kInvalidArgument,
                   "trace file " + path + " cannot be made: " + std::strerror(errno));
    {
      const std::lock_guard lock(mutex_);
      limit_ = limit;
      path_ = path;
      written_ = end();
      file_ = file;
      Capture nothing;
      nothing.process = process_;
      std::string out = std::string(kHead) + "\n";
      append_events(out, nothing, process_id_);
      append(out);
    }
    start();
    return {};
  }

  void finish() {
    {
      const std::lock_guard lock(mutex_);
      if (!thread_.joinable()) return;
      is_finishing_ = true;
    }
    wake_.notify_all();
    thread_.join();
    if (file_ >= 0) ::close(file_);
  }

 private:
  template <class Name>
  static std::uint16_t number_of(std::vector<Name>& names, const Name& name, const Name& others) {
    const auto find = [&](const Name& of) { return std::find(names.begin(), names.end(), of); };
    auto at = find(name);
    if (at == names.end() && names.size() + 1 >= kMaxLanes) at = find(others);
    if (at != names.end()) return static_cast<std::uint16_t>(at - names.begin());
    names.push_back(names.size() + 1 >= kMaxLanes ? others : name);
    return static_cast<std::uint16_t>(names.size() - 1);
  }

  std::string name_of(const Span& span) const {
    if (span.kind == Kind::kNamed) return names_[span.what];
    return span.kind == Kind::kPeriod ? kPeriodNames[span.what] : kStageNames[span.what];
  }
  double us_of(std::int64_t ns) const { return static_cast<double>(ns + offset_ns_) / 1000; }
  Place end() const { return {spans_.next(), marks_.next(), samples_.next()}; }

  /// Requires the mutex.
  Capture from(const Place& place, std::int64_t since) const {
    Capture out;
    out.process = process_;
    out.lanes = lanes_;
    out.tracks = tracks_;
    spans_.each(place.span, since, [&](const Span& span) {
      out.spans.push_back({.begin_us = us_of(span.begin_ns),
                           .duration_us = static_cast<double>(span.duration_us),
                           .round = span.round,
                           .lane = span.lane,
                           .is_period = span.kind == Kind::kPeriod,
                           .name = name_of(span)});
    });
    marks_.each(place.mark, since, [&](const Mark& mark) {
      out.marks.push_back({us_of(mark.end_at_ns), mark.lane, mark.name, mark.text});
    });
    samples_.each(place.sample, since, [&](const Sample& sample) {
      out.samples.push_back({us_of(sample.end_at_ns), sample.value, sample.track});
    });
    return out;
  }

  void sample() {
    const std::int64_t now = now_ns();
    std::vector<std::pair<std::pair<std::string, std::string>, double>> numbers;
    const RecordSample record = [&](std::string_view name, std::string_view what, double value) {
      numbers.push_back({{std::string(name), std::string(what)}, value});
    };
    const double spent = metrics::processor_seconds();
    const double passed = 1e-9 * static_cast<double>(now - measured_ns_);
    record("processors", "busy", passed > 0 ? (spent - spent_) / passed : 0);
    record("memory", "resident_bytes", static_cast<double>(resident_bytes()));
    measured_ns_ = now;
    spent_ = spent;
    {
      const std::lock_guard lock(sources_mutex_);
      for (const auto& source : sources_) source(record);
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [track, value] : numbers)
      samples_.add({now, value, number_of(tracks_, track, {"others", "value"})});
  }

  void run() {
    for (bool is_last = false; !is_last;) {
      {
        std::unique_lock lock(mutex_);
        is_last = wake_.wait_for(lock, kTurn, [this] { return is_finishing_; });
      }
      sample();
      write();
    }
  }

  /// Write what was added since the last time.
  void write() {
    Capture fresh;
    {
      const std::lock_guard lock(mutex_);
      if (file_ < 0 || is_full_) return;
      fresh = from(std::exchange(written_, end()), INT64_MIN);
    }
    std::string out;
    const std::size_t before = written_lanes_;
    written_lanes_ = fresh.lanes.size();
    fresh.process.clear();  // was written at the beginning
    append_events(out, fresh, process_id_, before);
    if (!out.empty()) append(",\n" + out);
  }

  /// One write over the tail of the one before: complete JSON before and after it.
  void append(const std::string& text) {
    if (text.empty() || is_full_) return;
    if (size_ + text.size() > limit_) {
      is_full_ = true;
      log::warn("trace.limit_reached", {{"file", path_}, {"bytes", size_}});
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
  Newest<Span> spans_{kSpans};
  Newest<Mark> marks_{kMarks};
  Newest<Sample> samples_{kSamples};
  std::vector<std::string> lanes_{"process"}, names_;
  std::vector<std::pair<std::string, std::string>> tracks_;
  std::string process_ = "centroid";
  const std::int64_t offset_ns_ = unix_offset_ns();
  const long process_id_ = ::getpid();
  std::mutex sources_mutex_;
  std::vector<std::function<void(const RecordSample&)>> sources_;
  // Of the thread: the last sample's time, and the processor time then.
  std::int64_t measured_ns_ = 0;
  double spent_ = 0;
  // Of the file.
  int file_ = -1;
  std::string path_;
  std::uint64_t limit_ = 0, size_ = 0;
  Place written_;
  std::size_t written_lanes_ = 0;
  bool is_full_ = false, is_finishing_ = false;
  std::thread thread_;
};

}  // namespace

Lane::Lane(std::string_view name) : number_(Recorder::instance().lane(name)) {}
EventLane::EventLane(std::string_view name) : number_(Recorder::instance().lane(name)) {}

namespace {

Span span_of(TimePoint begin, TimePoint end, std::uint64_t round) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(end - begin).count();
  Span span;
  span.begin_ns = ns_of(begin);
  span.round = round;
  span.duration_us =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(us, 0, std::int64_t{UINT32_MAX}));
  return span;
}

}  // namespace

void Lane::span(Stage stage, TimePoint begin, TimePoint end, std::uint64_t round) const {
  Span span = span_of(begin, end, round);
  span.lane = number_;
  span.what = static_cast<std::uint8_t>(stage);
  Recorder::instance().add(span);
}

void EventLane::period(Period period, TimePoint begin, TimePoint end, std::uint64_t number) const {
  Span span = span_of(begin, end, number);
  span.lane = number_;
  span.what = static_cast<std::uint8_t>(period);
  span.kind = Kind::kPeriod;
  Recorder::instance().add(span);
}

void EventLane::span(std::string_view name, TimePoint begin, TimePoint end) const {
  Span span = span_of(begin, end, 0);
  span.lane = number_;
  Recorder::instance().add(span, name);
}

void EventLane::mark(std::string_view name, std::string_view text) const {
  Recorder::instance().add(
      Mark{now_ns(), number_, std::string(name), std::string(text.substr(0, kMaxText))});
}

void set_process(std::string name) { Recorder::instance().set_process(std::move(name)); }

void start_sampling() { Recorder::instance().start(); }
void add_source(std::function<void(const RecordSample&)> source) {
  Recorder::instance().add_source(std::move(source));
}

Capture capture(double seconds) { return Recorder::instance().capture(seconds); }

std::string to_json(double seconds) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  append_events(out, capture(seconds), ::getpid());
  return out + "\n]}\n";
}

Status write_to(const std::string& path, std::uint64_t limit_bytes) {
  return Recorder::instance().write_to(path, limit_bytes);
}

void finish() { Recorder::instance().finish(); }

}  // namespace centroid::trace
