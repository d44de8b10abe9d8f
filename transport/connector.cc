#include "transport/connector.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/refusal.h"

namespace centroid::transport {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCall{10'000}, kCallOfSeveral{1500};
constexpr milliseconds kLongestPauseOfSeveral{400}, kLongestPauseNotReady{1000};
/// A server that takes this long to refuse has already waited for us: the pause starts short again.
constexpr milliseconds kWaitedForUs{300};

/// Errors that another try cannot repair.
bool is_final(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnimplemented:
    case ErrorCode::kInternal:
      return true;
    default:
      return false;
  }
}

}  // namespace

Task<bool> Pulse::rest() {
  standstill.look(now(), 2 * beat);
  const bool goes_on = co_await sleep_until(now() + beat);  // lint-ok: a tick
  standstill.look(now(), 2 * beat);
  co_return goes_on;
}

Status Pulse::check(TimePoint then, const std::string& peer) const {
  const auto silent = std::chrono::duration_cast<milliseconds>(now() - standstill.since(then));
  if (silent <= silence) return {};
  return Error(ErrorCode::kDeadlineExceeded,
               peer + " was silent for " + std::to_string(silent.count()) + " ms");
}

Connector::Connector(Executor executor, Options options)
    : options_(std::move(options)),
      servers_(options_.servers),
      stopped_(executor),
      pause_(options_.first_pause),
      jitter_(random_seed()) {}

TimePoint Connector::call_limit(Deadline deadline) const {
  return std::min(deadline, now() + (is_several() ? kCallOfSeveral : kCall));
}

Pulse Connector::pulse(milliseconds lease) const {
  if (!is_several()) return {lease / 4, 3 * lease};
  return {std::min(kPulseOfSeveral.beat, lease / 4), kPulseOfSeveral.silence};
}

void Connector::try_begins() {
  if (called_ == TimePoint::max()) answered_ = now();
  called_ = now();
}

Task<Result<std::unique_ptr<Session>>> Connector::connect(Transport& transport, Greeting greeting,
                                                          Deadline deadline) {
  try_begins();
  const TimePoint limit = call_limit(std::min(deadline, time_limit()));
  co_return co_await connect_session(transport, present(), std::move(greeting), limit);
}

void Connector::joined() {
  servers_.joined();
  is_joined_ = true;
}

milliseconds Connector::next_pause() {
  const auto half = static_cast<std::uint64_t>(pause_.count() / 2);
  return pause_ - milliseconds(half) + milliseconds(jitter_() % (half + 1));
}

Task<Status> Connector::retry(Error why, Deadline deadline) {
  const bool is_not_ready = refusal_of<NotReady>(why) != nullptr;
  if (std::exchange(is_joined_, false)) {
    answered_ = now();
    pause_ = options_.first_pause;
  }
  if (is_not_ready) answered_ = now();
  if (is_not_ready && now() >= called_ && now() - called_ >= kWaitedForUs)
    pause_ = options_.first_pause;
  if (is_final(why) || now() >= deadline) co_return why;
  const Endpoint called = present();
  if (servers_.failed(why)) {
    log::info("server.switched",
              {{"server", called.to_string()}, {"why", why}, {"next", present().to_string()}});
    co_return Status();
  }
  if (!is_not_ready && now() + pause_ >= time_limit())
    co_return Error(ErrorCode::kUnavailable, "could not join " + called.to_string() + " after " +
                                                 std::to_string(options_.timeout.count()) +
                                                 " ms (" + options_.timeout_name +
                                                 "): " + why.message());
  const milliseconds pause = next_pause();
  const TimePoint again = now() + pause;
  if (again >= deadline) co_return why;
  if (options_.logs_pauses)
    log::warn("server.connection_failed",
              {{"server", called.to_string()}, {"why", why}, {"retry_ms", pause.count()}});
  bool is_over = false;
  while (!is_stopped_ && !is_over) is_over = !co_await stopped_.wait(again);
  if (is_stopped_ || now() < again)
    co_return Error(ErrorCode::kCancelled, "stopped before another try");
  if (is_not_ready) answered_ = now();
  milliseconds longest = options_.longest_pause;
  if (is_not_ready) longest = std::min(longest, kLongestPauseNotReady);
  if (is_several()) longest = std::min(longest, kLongestPauseOfSeveral);
  pause_ = std::min(2 * pause_, longest);
  co_return Status();
}

void Connector::stop() {
  is_stopped_ = true;
  stopped_.notify_all();
}

}  // namespace centroid::transport
