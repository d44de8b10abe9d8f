#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace centroid::server {

struct EventField {
  enum class Kind : std::uint8_t { kText, kCount, kNumber, kNumberOrNull };
  std::string_view name;
  Kind kind = Kind::kText;
  std::string_view text;
  int least = 0;  ///< of a count
};

/// A type of events, and its meaning. Besides `fields` an event has its id and its time.
struct EventType {
  std::string_view name, text;
  std::vector<EventField> fields;
};

/// Every type of the log.
std::span<const EventType> described_events();

/// Only in a stream of events: the server dropped some before it could send them. It has no time.
const EventType& lost_events();

}  // namespace centroid::server
