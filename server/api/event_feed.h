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

/// The event types of a filter: "member,round.aborted" selects every type that begins with
/// "member." and that one; empty selects all.
/// fails  invalid_argument: no type has this name or prefix.
Result<std::set<std::string_view>> event_filter(std::string_view text);

/// One event as JSON: id, type, unix_seconds, and its fields.
std::string to_json_text(const EventRecord& event);

/// Streams of events to clients (Server-Sent Events).
///
/// thread  its executor; publishers of events are on any
/// bounds  a client may be behind by the retained events: one further behind is disconnected; the
///         HTTP server's write timeout bounds the sending of one piece
/// source  WHATWG HTML, section 9.2, "Server-sent events"
class EventFeed {
 public:
  EventFeed(Executor executor, EventLog& events, metrics::Counter dropped_lagging,
            std::chrono::milliseconds heartbeat);
  ~EventFeed();
  EventFeed(const EventFeed&) = delete;
  EventFeed& operator=(const EventFeed&) = delete;

  EventLog& events() { return events_; }
  /// Events of these types after `after`, without end. If some of them are not retained any more,
  /// the client receives an event of type events.lost.
  std::shared_ptr<BodyStream> stream(std::uint64_t after, std::set<std::string_view> types);
  /// End every stream, also later ones.
  void close();

 private:
  class Stream;
  /// The part that publishers touch: it may outlive the feed.
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
