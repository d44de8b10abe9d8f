#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/async/task_group.h"
#include "common/base/metrics.h"
#include "server/api/http.h"
#include "server/events/event_log.h"

namespace centroid::server {

/// Which events a client wants: "member,round.aborted" takes every type that begins with "member."
/// and that one; empty takes all.
/// fails  invalid_argument: no type is called or begins so.
Result<std::set<std::string_view>> event_filter(std::string_view text);

/// One event as JSON: id, type, unix_seconds, and its fields.
std::string to_json_text(const EventRecord& event);

/// Streams of events to those who listen (Server-Sent Events).
///
/// thread  its executor; publishers of events are on any
/// bounds  what one client may be behind is what the event log keeps: who is further behind is cut
///         off; how long one piece may take to be taken is the HTTP server's write timeout
/// source  WHATWG HTML, section 9.2, "Server-sent events"
class EventFeed {
 public:
  EventFeed(Executor executor, EventLog& events, metrics::Counter dropped_lagging,
            std::chrono::milliseconds heartbeat);
  ~EventFeed();
  EventFeed(const EventFeed&) = delete;
  EventFeed& operator=(const EventFeed&) = delete;

  EventLog& events() { return events_; }
  /// Events of these types after `after`, without end. A client that missed some that are no longer
  /// kept is told so by an event of type events.lost.
  std::shared_ptr<BodyStream> stream(std::uint64_t after, std::set<std::string_view> types);
  /// Ends every stream, those begun later too.
  void close();

 private:
  class Stream;
  /// What a publisher touches: it may come when the feed has gone.
  struct Bell {
    explicit Bell(Executor on) : executor(on), rung(on) {}
    Executor executor;
    Event rung;
    std::atomic<bool> is_ringing{false};
  };
  static void ring(const std::shared_ptr<Bell>& bell);

  EventLog& events_;
  metrics::Counter dropped_lagging_;
  const std::chrono::milliseconds heartbeat_;
  const std::shared_ptr<Bell> bell_;
  bool is_closed_ = false;
};

}  // namespace centroid::server
