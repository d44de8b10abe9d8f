#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/async/until.h"
#include "common/base/clock.h"
#include "server/api/view.h"
#include "server/service/probe.h"

namespace centroid::server {

/// Sets a flag while it lives, also within another one, and notifies those that wait for the end.
/// Of one thread.
class Raised {
 public:
  Raised(bool& flag, Event& over) : flag_(flag), was_(flag), over_(over) { flag_ = true; }
  ~Raised() { flag_ = was_, over_.notify_all(); }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

 private:
  bool& flag_;
  const bool was_;
  Event& over_;
};

/// Pause before a file is read again that another process writes: nobody notifies of that.
inline constexpr std::chrono::milliseconds kSlowPoll{50};
/// Pause before an attempt that failed is repeated.
inline constexpr std::chrono::milliseconds kRetryPause{500};

/// For what a worker, a reader or a round waits while the state is copied, or may not be yet.
inline constexpr const char* kStateCopy = "a copy of the state";

/// What somebody waits for, as GET /v1/waits shows it.
struct BlockedOn {
  WaitCause cause;
  std::string waiter, waits_for;
  std::function<std::string()> what;  ///< asked when somebody looks
};
/// Of a wait that GET /v1/waits shows by other means: the reason of the job's phase, the open
/// round, or a Guard around it.
inline const BlockedOn kShownElsewhere{};

/// What the service waits for at this moment, each with its name. Of one thread.
class Waits {
 public:
  using Text = std::function<std::string()>;
  /// One that is younger is on its way, and nobody's business.
  static constexpr std::chrono::milliseconds kYoung{250};

 private:
  struct Wait {
    WaitCause cause;
    std::string waiter, waits_for;
    Text what;
    TimePoint since;
  };

 public:
  /// Ends the wait; not before the Waits.
  class Guard {
   public:
    Guard(std::list<Wait>& waits, Wait wait)
        : waits_(waits), place_(waits.insert(waits.end(), std::move(wait))) {}
    ~Guard() { waits_.erase(place_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::list<Wait>& waits_;
    std::list<Wait>::iterator place_;
  };

  Waits(const Clock& clock, Event& changed) : clock_(clock), changed_(changed) {}

  /// Wait until `is_true`; GET /v1/waits shows it meanwhile. It is asked whenever `changed` is
  /// notified, so whatever it depends on must do that. Returns whether it is true: not where the
  /// deadline passed first, or the caller is cancelled.
  Task<bool> until(std::function<bool()> is_true, BlockedOn on,
                   TimePoint deadline = TimePoint::max());
  /// Wait for the next change of the state, to look again at all of it. The phase says why.
  Task<bool> next_change(TimePoint deadline = TimePoint::max()) { return changed_.wait(deadline); }

  /// `what` is asked when somebody looks.
  [[nodiscard]] Guard begin(WaitCause cause, std::string waiter, std::string waits_for, Text what) {
    return {waits_,
            {cause, std::move(waiter), std::move(waits_for), std::move(what), clock_.now()}};
  }
  [[nodiscard]] Guard begin(WaitCause cause, std::string waiter, std::string waits_for,
                            const char* what) {
    return begin(cause, std::move(waiter), std::move(waits_for),
                 [what] { return std::string(what); });
  }

  [[nodiscard]] Guard begin(const BlockedOn& on) {
    return begin(on.cause, on.waiter, on.waits_for, on.what);
  }

  /// For as long as `into` has it.
  void begin(std::optional<Guard>& into, WaitCause cause, std::string waiter, std::string waits_for,
             Text what) {
    into.emplace(waits_, Wait{cause, std::move(waiter), std::move(waits_for), std::move(what),
                              clock_.now()});
  }

  void list(std::vector<WaitView>& views) const {
    for (const Wait& wait : waits_)
      if (const Duration age = clock_.now() - wait.since; age >= kYoung)
        views.push_back({.waiter = wait.waiter,
                         .waits_for = wait.waits_for,
                         .what = wait.what(),
                         .seconds = std::chrono::duration<double>(age).count()});
  }
  template <class F>
  void count(const F& add) const {
    for (const Wait& wait : waits_)
      if (clock_.now() - wait.since >= kYoung) add(wait.cause);
  }
  bool has(std::string_view waiter, std::string_view waits_for) const {
    for (const Wait& wait : waits_)
      if (wait.waiter == waiter && wait.waits_for == waits_for) return true;
    return false;
  }
  bool has(WaitCause cause) const {
    for (const Wait& wait : waits_)
      if (wait.cause == cause && clock_.now() - wait.since >= kYoung) return true;
    return false;
  }

 private:
  const Clock& clock_;
  Event& changed_;
  std::list<Wait> waits_;
};

}  // namespace centroid::server
