#include "client/program_trace.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/trace_events.h"

namespace centroid::client::program_trace {

namespace {

constexpr std::size_t kMaxName = 64, kMaxDepth = 256;

struct OpenSpan {
  std::string name;
  TimePoint at;
};

thread_local std::vector<OpenSpan> open_spans;
thread_local std::optional<trace::EventLane> own_lane;

const trace::EventLane& lane_here() {
  static std::atomic<unsigned> threads{0};
  if (!own_lane) {
    const unsigned number = ++threads;
    std::string name = "program";
    if (number > 1) name.append(" ").append(std::to_string(number));
    own_lane.emplace(name);
  }
  return *own_lane;
}

Status named(std::string_view name) {
  if (!name.empty() && name.size() <= kMaxName) return {};
  return Error(ErrorCode::kInvalidArgument,
               "a name in a trace has 1 to 64 bytes, not " + std::to_string(name.size()));
}

}  // namespace

Status open(const std::string& path, std::string process, std::uint64_t limit_bytes) {
  trace::set_process(std::move(process));
  CENTROID_TRY(trace::write_to(path, limit_bytes));
  static const pid_t opener = ::getpid();
  // The child of a fork does not have the writing thread.
  (void)std::atexit([] {
    if (::getpid() == opener) trace::finish();
  });
  return {};
}

void close() { trace::finish(); }

Status begin(std::string_view name) {
  CENTROID_TRY(named(name));
  if (open_spans.size() >= kMaxDepth)
    return Error(ErrorCode::kResourceExhausted,
                 "256 spans of this thread have begun and not ended, the innermost is '" +
                     open_spans.back().name + "'");
  open_spans.push_back({std::string(name), std::chrono::steady_clock::now()});
  return {};
}

Status end() {
  if (open_spans.empty())
    return Error(ErrorCode::kFailedPrecondition, "no span of this thread has begun");
  const OpenSpan begun = std::move(open_spans.back());
  open_spans.pop_back();
  lane_here().span(begun.name, begun.at, std::chrono::steady_clock::now());
  return {};
}

Status mark(std::string_view name, std::string_view text) {
  CENTROID_TRY(named(name));
  lane_here().mark(name, text);
  return {};
}

Status lane(std::string_view name) {
  CENTROID_TRY(named(name));
  own_lane.emplace(name);
  return {};
}

}  // namespace centroid::client::program_trace
