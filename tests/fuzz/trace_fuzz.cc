#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/base/trace_report.h"
#include "tests/fuzz/fuzzer.h"

namespace {

using centroid::trace::Capture;

/// Pieces of the input; zeros behind its end.
class Input {
 public:
  explicit Input(std::string_view rest) : rest_(rest) {}
  bool is_over() const { return rest_.empty(); }
  std::string text() {
    const std::size_t end = std::min(rest_.find('\0'), rest_.size());
    std::string out(rest_.substr(0, end));
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return out;
  }
  template <class T>
  T number() {
    T out{};
    const std::size_t count = std::min(sizeof out, rest_.size());
    std::memcpy(&out, rest_.data(), count);
    rest_.remove_prefix(count);
    return out;
  }

 private:
  std::string_view rest_;
};

}  // namespace

/// Traces with any names, texts and times, as programs and their users make them: the events are
/// JSON, and no row of a table has a control character that a terminal would obey.
CENTROID_FUZZER(trace)(const std::uint8_t* data, std::size_t size) {
  Input in(std::string_view(reinterpret_cast<const char*>(data), size));
  Capture capture;
  capture.process = in.text();
  capture.lanes = {in.text(), in.text()};
  capture.tracks = {{in.text(), in.text()}};
  while (!in.is_over()) {
    const auto kind = in.number<std::uint8_t>();
    const double at = in.number<std::uint32_t>();
    if (kind % 3 == 0)
      capture.spans.push_back({at, static_cast<double>(in.number<std::uint16_t>()), kind, kind & 1u,
                               (kind & 4u) != 0, in.text()});
    else if (kind % 3 == 1)
      capture.marks.push_back({at, kind & 1u, in.text(), in.text()});
    else
      capture.samples.push_back({at, static_cast<double>(in.number<float>()), 0});
  }
  std::string events;
  centroid::trace::append_events(events, capture, 1);
  const std::size_t begin = events.starts_with(",\n") ? 2 : 0;
  if (!nlohmann::json::accept("[" + events.substr(begin) + "]")) std::abort();
  const Capture all[] = {capture};
  for (const char c : centroid::trace::to_csv(all))
    if (c == 0x1b || c == 0x7f || c == '\0') std::abort();
  (void)centroid::trace::to_html(all);
  return 0;
}
