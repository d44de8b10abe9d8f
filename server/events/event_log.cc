#include "server/events/event_log.h"

#include <algorithm>

#include "common/base/result.h"
#include "common/base/trace_events.h"
#include "server/events/event_types.h"

namespace centroid::server {

namespace {

constexpr std::size_t kMaxText = 512;
/// Ids of one millisecond before those of the next would be used: a double represents them exactly.
constexpr double kIdsPerSecond = 1'000'000;

log::Field::Value bounded(log::Field::Value value) {
  if (auto* text = std::get_if<std::string>(&value); text != nullptr && text->size() > kMaxText) {
    text->resize(kMaxText);
    *text += "...";
  }
  return value;
}

std::string text_of(const log::Field::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* real = std::get_if<double>(&value)) return std::to_string(*real);
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  return std::to_string(std::get<std::uint64_t>(value));
}

/// Events appear in the trace, too. Rounds and epochs are there as spans already; the audit is for
/// its readers only.
void mark(const EventRecord& event) {
  if (event.type == "round.committed" || event.type == "audit.recorded") return;
  static const trace::EventLane kLane("events");
  std::string text;
  for (const auto& [name, value] : event.fields)
    text.append(text.empty() ? "" : " ").append(name).append("=").append(text_of(value));
  kLane.mark(event.type, text);
}

}  // namespace

std::span<const std::string_view> event_types() {
  static const std::vector<std::string_view> kNames = [] {
    std::vector<std::string_view> names;
    for (const EventType& type : described_events()) names.push_back(type.name);
    return names;
  }();
  return kNames;
}

EventLog::EventLog(const Clock& clock, std::size_t capacity)
    : clock_(clock),
      capacity_(std::max<std::size_t>(capacity, 1)),
      first_(static_cast<std::uint64_t>(clock.unix_seconds() * kIdsPerSecond) + 1),
      next_(first_) {}

void EventLog::publish(std::string_view type, log::Fields fields) {
  const auto known = std::ranges::find(event_types(), type);
  CENTROID_CHECK(known != event_types().end());
  EventRecord event;
  event.type = *known;
  event.unix_seconds = clock_.unix_seconds();
  event.fields.reserve(fields.size());
  for (const log::Field& field : fields)
    event.fields.emplace_back(field.name, bounded(field.value));
  mark(event);
  std::function<void()> listener;
  {
    const std::scoped_lock lock(mutex_);
    event.id = next_++;
    events_.push_back(std::move(event));
    if (events_.size() > capacity_) events_.pop_front();
    listener = listener_;
  }
  if (listener) listener();
}

EventLog::Page EventLog::read(std::uint64_t after, std::size_t limit, const Filter& takes) const {
  const std::scoped_lock lock(mutex_);
  Page page;
  const std::uint64_t oldest = events_.empty() ? next_ : events_.front().id;
  // An id of an earlier process is before `first_`: the events between are lost, and their number
  // is unknown; those that this process dropped are counted.
  if (after != 0 && after + 1 < oldest) page.lost = oldest - std::max(after + 1, first_ - 1);
  page.last = std::max(after, oldest - 1);
  const auto is_before = [](const EventRecord& event, std::uint64_t id) { return event.id <= id; };
  auto at = std::lower_bound(events_.begin(), events_.end(), after, is_before);
  for (; at != events_.end(); ++at) {
    if (takes && !takes(at->type)) {
      page.last = at->id;
      continue;
    }
    if (page.events.size() == limit) {
      page.has_more = true;
      break;
    }
    page.events.push_back(*at);
    page.last = at->id;
  }
  return page;
}

std::uint64_t EventLog::last_id() const {
  const std::scoped_lock lock(mutex_);
  return next_ - 1;
}

EventLog::Usage EventLog::usage() const {
  const std::scoped_lock lock(mutex_);
  return {events_.size(), capacity_, next_ - first_ - events_.size()};
}

void EventLog::listen(std::function<void()> listener) {
  const std::scoped_lock lock(mutex_);
  listener_ = std::move(listener);
}

void tell(EventLog& events, log::Level level, std::string_view type, log::Fields fields) {
  log::write(level, type, fields);
  events.publish(type, fields);
}

}  // namespace centroid::server
