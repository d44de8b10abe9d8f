#include <algorithm>
#include <cstdio>
#include <map>

#include "common/base/trace_report.h"

namespace centroid::trace {
namespace {

constexpr std::size_t kColumns = 800, kLabel = 200, kMostLanes = 64, kMostCurves = 16;
constexpr std::size_t kMostGaps = 100, kMostMarks = 500;
constexpr std::size_t kRow = 16, kCurve = 40;

struct Window {
  double begin_us = 1e300, end_us = 0;
  void take(double from, double to) {
    begin_us = std::min(begin_us, from);
    end_us = std::max(end_us, to);
  }
  double column(double at_us) const {
    return (at_us - begin_us) / std::max(end_us - begin_us, 1.0) * static_cast<double>(kColumns);
  }
};

Window window_of(std::span<const Capture> captures) {
  Window window;
  for (const Capture& of : captures) {
    for (const auto& span : of.spans)
      if (!span.is_period) window.take(span.begin_us, span.end_us());
    for (const auto& sample : of.samples) window.take(sample.at_us, sample.at_us);
    for (const auto& mark : of.marks) window.take(mark.at_us, mark.at_us);
  }
  return window;
}

std::string number(double value, const char* form = "%.3g") {
  char text[40];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

std::string seconds(double value) {
  if (value < 1e-3) return number(1e6 * value) + " µs";
  if (value < 1) return number(1e3 * value) + " ms";
  return number(value, "%.4g") + " s";
}

/// Time after the beginning.
std::string after(double at_us, const Window& window) {
  std::string text(1, '+');
  return text.append(seconds(1e-6 * (at_us - window.begin_us)));
}

/// The page's colour of a stage; unknown stages are grey.
std::string class_of(const std::string& stage) {
  constexpr std::string_view kKnown =
      " compute evaluate encode send exchange wait receive aggregate apply checkpoint decode "
      "journal ";
  const bool is_known = kKnown.find(" " + stage + " ") != std::string_view::npos;
  return is_known ? "s-" + stage : "s-other";
}

std::string text_at(double x, double y, const std::string& of, const char* more = "") {
  return "<text x=\"" + number(x, "%.1f") + "\" y=\"" + number(y, "%.1f") + "\"" + more + ">" +
         escaped(of) + "</text>\n";
}

/// One rectangle for spans of a stage that touch in the picture.
void draw_lane(std::string& out, const Capture& of, std::uint32_t lane, const Window& window,
               double y) {
  struct Drawn {
    double begin_us, end_us;
    std::size_t spans;
  };
  std::map<std::string, std::vector<Drawn>> stages;
  const double column_us = std::max(window.end_us - window.begin_us, 1.0) / kColumns;
  std::vector<const Capture::Span*> spans;
  for (const auto& span : of.spans)
    if (span.lane == lane) spans.push_back(&span);
  std::ranges::sort(spans, {}, [](const Capture::Span* span) { return span->begin_us; });
  for (const Capture::Span* const span : spans) {
    if (span->end_us() < window.begin_us) continue;
    auto& drawn = stages[span->is_period ? "period" : span->name];
    const double begin = std::max(span->begin_us, window.begin_us);
    if (!drawn.empty() && begin - drawn.back().end_us < column_us && !span->is_period) {
      drawn.back().end_us = std::max(drawn.back().end_us, span->end_us());
      ++drawn.back().spans;
    } else if (drawn.size() < kColumns) {
      drawn.push_back({begin, span->end_us(), 1});
    }
  }
  for (const auto& [stage, drawn] : stages)
    for (const Drawn& one : drawn) {
      const double x = window.column(one.begin_us);
      const double width = std::max(window.column(one.end_us) - x, 0.5);
      const bool is_period = stage == "period";
      out += "<rect class=\"" + (is_period ? std::string("period") : class_of(stage)) + "\" x=\"" +
             number(kLabel + x, "%.1f") + "\" y=\"" + number(y + 1, "%.0f") + "\" width=\"" +
             number(width, "%.1f") + "\" height=\"" + number(kRow - 2.0, "%.0f") + "\"><title>" +
             escaped(stage) + ", " + std::to_string(one.spans) + " spans, " +
             seconds(1e-6 * (one.end_us - one.begin_us)) + " at " + after(one.begin_us, window) +
             "</title></rect>\n";
    }
}

void draw_curve(std::string& out, const Capture& of, std::uint32_t track, const Window& window,
                double y) {
  double most = 0;
  std::vector<const Capture::Sample*> samples;
  for (const auto& sample : of.samples)
    if (sample.track == track) samples.push_back(&sample);
  for (const auto* const sample : samples) most = std::max(most, sample->value);
  const auto& [name, what] = of.tracks[track];
  out += text_at(0, y + 14, name);
  out += text_at(0, y + 28, what + ", at most " + number(most, "%.4g"), " class=\"faint\"");
  const std::size_t step = samples.size() / kColumns + 1;
  std::string points;
  for (std::size_t i = 0; i < samples.size(); i += step) {
    const double height = most > 0 ? std::max(samples[i]->value, 0.0) / most : 0;
    if (!points.empty()) points += ' ';
    points += number(kLabel + window.column(samples[i]->at_us), "%.1f");
    points += ',';
    points += number(y + 2 + (kCurve - 4.0) * (1 - height), "%.1f");
  }
  out += "<polyline points=\"" + points + "\"/>\n";
}

void draw_process(std::string& out, const Capture& of, const Window& window) {
  std::vector<std::uint32_t> lanes;
  for (std::uint32_t i = 0; i < of.lanes.size(); ++i) {
    const auto is_there = [i](const auto& one) { return one.lane == i; };
    if (std::ranges::any_of(of.spans, is_there) || std::ranges::any_of(of.marks, is_there))
      lanes.push_back(i);
  }
  const std::size_t drawn = std::min(lanes.size(), kMostLanes);
  const std::size_t curves = std::min(of.tracks.size(), kMostCurves);
  const std::size_t height = kRow * drawn + kCurve * curves + 4;
  out += "<h2>" + escaped(of.process) + "</h2>\n";
  if (drawn < lanes.size())
    out += "<p class=\"faint\">" + std::to_string(lanes.size() - drawn) + " more lanes</p>\n";
  out += "<svg viewBox=\"0 0 " + std::to_string(kLabel + kColumns) + " " + std::to_string(height) +
         "\" role=\"img\">\n<title>" + escaped("What " + of.process + " did over time") +
         "</title>\n";
  double y = 0;
  for (std::size_t i = 0; i < drawn; ++i, y += kRow) {
    out += text_at(0, y + 12, of.lanes[lanes[i]]);
    draw_lane(out, of, lanes[i], window, y);
    for (const auto& mark : of.marks)
      if (mark.lane == lanes[i])
        out += "<rect class=\"mark\" x=\"" + number(kLabel + window.column(mark.at_us), "%.1f") +
               "\" y=\"" + number(y, "%.0f") + "\" width=\"1.5\" height=\"" + std::to_string(kRow) +
               "\"><title>" + escaped(mark.name + " " + mark.text) + "</title></rect>\n";
  }
  for (std::uint32_t i = 0; i < curves; ++i, y += kCurve) draw_curve(out, of, i, window, y);
  out += "</svg>\n";
}

void table(std::string& out, const std::string& title, const std::vector<std::string>& head,
           const std::vector<std::vector<std::string>>& rows) {
  out += "<h2>" + escaped(title) + "</h2>\n";
  if (rows.empty()) {
    out += "<p class=\"faint\">none</p>\n";
    return;
  }
  out += "<table><thead><tr>";
  for (const std::string& cell : head) out += "<th scope=\"col\">" + escaped(cell) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += "<td>" + escaped(cell) + "</td>";
    out += "</tr>\n";
  }
  out += "</tbody></table>\n";
}

constexpr std::string_view kStyle = R"(:root{color-scheme:light dark}
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em auto;max-width:70em;padding:0 1em}
svg{width:100%;height:auto;display:block}
text{font:11px system-ui,sans-serif;fill:currentColor}
.faint{opacity:.65}
table{border-collapse:collapse}th,td{text-align:left;padding:.15em .8em .15em 0;border-bottom:1px solid #8884}
polyline{fill:none;stroke:#3b82f6;stroke-width:1.2}
.key span{display:inline-block;padding:0 .5em;margin:0 .4em .2em 0;color:#000}
.mark{fill:#dc2626}.period{fill:none;stroke:#8888;stroke-width:1}
.s-compute{fill:#4ade80;background:#4ade80}.s-evaluate{fill:#a3e635;background:#a3e635}
.s-encode{fill:#c084fc;background:#c084fc}.s-send{fill:#60a5fa;background:#60a5fa}
.s-exchange{fill:#38bdf8;background:#38bdf8}.s-wait{fill:#fbbf24;background:#fbbf24}
.s-receive{fill:#67e8f9;background:#67e8f9}.s-aggregate{fill:#f472b6;background:#f472b6}
.s-apply{fill:#fb923c;background:#fb923c}.s-checkpoint{fill:#a8a29e;background:#a8a29e}
.s-decode{fill:#d9f99d;background:#d9f99d}.s-journal{fill:#fca5a5;background:#fca5a5}
.s-other{fill:#9ca3af;background:#9ca3af}
)";

}  // namespace

std::string to_html(std::span<const Capture> captures, const GapOptions& options) {
  const Window window = window_of(captures);
  const double length = std::max(0.0, 1e-6 * (window.end_us - window.begin_us));
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>Centroid trace</title>\n<style>\n";
  out.append(kStyle).append("</style></head><body>\n<h1>Centroid trace</h1>\n");
  if (length == 0) out += "<p>Nothing was recorded.</p>\n";
  if (length > 0)
    out += "<p>" + seconds(length) + " from " + number(1e-6 * window.begin_us, "%.3f") +
           " s since 1970</p>\n<p class=\"key\">";
  std::map<std::string, std::string> stages;
  for (const Capture& of : captures)
    for (const auto& span : of.spans)
      if (!span.is_period) stages[span.name] = class_of(span.name);
  for (const auto& [stage, style] : stages)
    out += "<span class=\"" + style + "\">" + escaped(stage) + "</span>";
  if (length > 0) out += "</p>\n";
  for (const Capture& of : captures) draw_process(out, of, window);

  std::vector<std::vector<std::string>> rows;
  for (const LaneSummary& lane : summarize(captures, options))
    rows.push_back(summary_cells(lane, seconds));
  table(out, "How busy each was", summary_heads(), rows);

  auto gaps = gaps_of(captures, options);
  std::ranges::stable_sort(gaps,
                           [](const Gap& a, const Gap& b) { return a.seconds() > b.seconds(); });
  gaps.resize(std::min(gaps.size(), kMostGaps));
  rows.clear();
  for (const Gap& gap : gaps)
    rows.push_back({captures[gap.process_number].process, gap.lane, after(gap.begin_us, window),
                    seconds(gap.seconds())});
  table(out, "Longest gaps of devices", {"process", "device", "at", "idle for"}, rows);

  rows.clear();
  for (const Capture& of : captures)
    for (const auto& mark : of.marks)
      if (rows.size() < kMostMarks)
        rows.push_back({of.process, after(mark.at_us, window), mark.name, mark.text});
  table(out, "What happened", {"process", "at", "what", ""}, rows);
  return out + "</body></html>\n";
}

}  // namespace centroid::trace
