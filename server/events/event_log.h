#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"

namespace centroid::server {

/// One event. Names of types and fields live as long as the program.
struct EventRecord {
  std::uint64_t id = 0;
  double unix_seconds = 0;
  std::string_view type;  ///< one of kEventTypes
  std::vector<std::pair<std::string_view, log::Field::Value>> fields;
};

/// All types, in the order of docs/reference/rest.md; the OpenAPI document has a schema for each.
std::span<const std::string_view> event_types();

/// The latest events, for queries and listeners.
///
/// ids     grow, also over a restart (they begin with the time), so "after id" has one meaning
/// bounds  the newest `capacity` events; texts are cut to 512 bytes
/// thread  any
class EventLog {
 public:
  explicit EventLog(const Clock& clock, std::size_t capacity = 4096);

  /// Aborts if the type is not in `event_types`.
  void publish(std::string_view type, log::Fields fields);

  struct Page {
    std::vector<EventRecord> events;  ///< oldest first
    std::uint64_t last = 0;           ///< id of the last event read: continue after it
    std::uint64_t lost = 0;           ///< events after `after` that are not retained any more
    bool has_more = false;
  };
  /// Events after `after` (0: from the oldest retained), at most `limit`, that pass the filter.
  using Filter = std::function<bool(std::string_view type)>;
  Page read(std::uint64_t after, std::size_t limit, const Filter& takes) const;
  std::uint64_t last_id() const;
  struct Usage {
    std::uint64_t retained = 0, capacity = 0, dropped = 0;
  };
  Usage usage() const;

  /// Called after each event by the publishing thread; it must not publish. One listener, set and
  /// unset while nothing is published or by an owner that outlives the publishers.
  void listen(std::function<void()> listener);

 private:
  const Clock& clock_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<EventRecord> events_;
  std::uint64_t first_, next_;
  std::function<void()> listener_;
};

/// Write a line to the log and publish it as an event.
void tell(EventLog& events, log::Level level, std::string_view type, log::Fields fields);

}  // namespace centroid::server
