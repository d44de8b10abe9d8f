#include "common/base/trace_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "common/base/trace_events.h"

namespace centroid::trace {
namespace {

/// From `begin` to `end`, microseconds.
struct Interval {
  double begin = 0, end = 0;
};
/// Sorted and disjoint.
using Intervals = std::vector<Interval>;

std::string percent(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", whole > 0 ? 100 * part / whole : 0);
  return text;
}

void merge(Intervals& intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  Intervals apart;
  for (const Interval& next : intervals) {
    if (!apart.empty() && next.begin <= apart.back().end)
      apart.back().end = std::max(apart.back().end, next.end);
    else
      apart.push_back(next);
  }
  intervals = std::move(apart);
}

double length(const Intervals& intervals) {
  double sum = 0;
  for (const Interval& one : intervals) sum += one.end - one.begin;
  return sum;
}

/// The parts of `window` that no interval covers.
Intervals gaps(const Intervals& busy, Interval window) {
  Intervals out;
  double at = window.begin;
  for (const Interval& one : busy) {
    if (one.begin > at) out.push_back({at, std::min(one.begin, window.end)});
    at = std::max(at, one.end);
  }
  if (at < window.end) out.push_back({at, window.end});
  return out;
}

/// Microseconds in both.
double overlap(const Intervals& a, const Intervals& b) {
  double sum = 0;
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max(0.0, std::min(a[i].end, b[k].end) - std::max(a[i].begin, b[k].begin));
    (a[i].end < b[k].end ? i : k) += 1;
  }
  return sum;
}

struct LaneWork {
  std::size_t spans = 0;
  Intervals busy;
  std::map<std::string, Intervals> stages;
  bool is_device() const { return stages.contains("compute"); }
};

/// By lane; those without stages are empty.
std::vector<LaneWork> work_of(const Capture& capture) {
  std::vector<LaneWork> lanes(capture.lanes.size());
  for (const Capture::Span& span : capture.spans) {
    if (span.is_period || span.lane >= lanes.size()) continue;
    LaneWork& lane = lanes[span.lane];
    ++lane.spans;
    lane.busy.push_back({span.begin_us, span.end_us()});
    lane.stages[span.name].push_back({span.begin_us, span.end_us()});
  }
  for (LaneWork& lane : lanes) {
    merge(lane.busy);
    for (auto& [stage, intervals] : lane.stages) merge(intervals);
  }
  return lanes;
}

Interval window_of(const std::vector<LaneWork>& lanes) {
  Interval window{1e300, 0};
  for (const LaneWork& lane : lanes) {
    if (lane.busy.empty()) continue;
    window.begin = std::min(window.begin, lane.busy.front().begin);
    window.end = std::max(window.end, lane.busy.back().end);
  }
  return window;
}

Gap gap_of(std::size_t process, const std::string& lane, const Interval& of) {
  return {.process_number = process, .lane = lane, .begin_us = of.begin, .end_us = of.end};
}

/// GPU use by samples: each sample covers the time since the one before.
struct GpuUse {
  Interval window;
  double busy_us = 0;
  Intervals idle;
};
GpuUse use_of(const Capture& capture, std::uint32_t track, const GapOptions& options) {
  GpuUse use;
  const Capture::Sample* before = nullptr;
  Intervals quiet;
  for (const Capture::Sample& sample : capture.samples) {
    if (sample.track != track) continue;
    if (before == nullptr) use.window.begin = sample.at_us;
    if (before != nullptr) {
      use.busy_us += std::clamp(sample.value, 0.0, 1.0) * (sample.at_us - before->at_us);
      if (sample.value < options.gpu_ratio) quiet.push_back({before->at_us, sample.at_us});
    }
    use.window.end = sample.at_us;
    before = &sample;
  }
  merge(quiet);
  for (const Interval& one : quiet)
    if (1e-6 * (one.end - one.begin) >= options.least_gpu_seconds) use.idle.push_back(one);
  return use;
}

constexpr std::string_view kUtilization = " utilization";

/// "gpu 0" for the track "gpu 0 utilization"; else "".
std::string gpu_of(const std::string& track) {
  if (!track.starts_with("gpu ") || !track.ends_with(kUtilization)) return {};
  return track.substr(0, track.size() - kUtilization.size());
}

void note_gaps(LaneSummary& row, const Intervals& idle) {
  row.gaps = idle.size();
  for (const Interval& gap : idle)
    row.longest_gap_seconds = std::max(row.longest_gap_seconds, 1e-6 * (gap.end - gap.begin));
}

LaneSummary summary_of(const std::vector<LaneWork>& lanes, std::size_t number,
                       const Interval& window) {
  const LaneWork& lane = lanes[number];
  const Intervals idle = gaps(lane.busy, window);
  LaneSummary row;
  for (const auto& [stage, intervals] : lane.stages)
    row.stages.append(row.stages.empty() ? "" : " ").append(stage);
  row.spans = lane.spans;
  row.window_seconds = 1e-6 * (window.end - window.begin);
  row.busy_seconds = 1e-6 * length(lane.busy);
  row.idle_seconds = 1e-6 * length(idle);
  note_gaps(row, idle);
  row.is_device = lane.is_device();
  if (!row.is_device) return row;
  std::map<std::string, double> meanwhile;
  for (const LaneWork& other : lanes) {
    if (&other == &lane) continue;
    for (const auto& [stage, intervals] : other.stages)
      if (const double both = 1e-6 * overlap(idle, intervals); both > 0) meanwhile[stage] += both;
  }
  row.meanwhile_seconds.assign(meanwhile.begin(), meanwhile.end());
  return row;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    const char c = text[i];
    if (c == '"' || c == '\\') out += '\\';
    if (length == 0)
      out += '?';
    else if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';
    else
      out += text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return out + "\"";
}

std::string csv_field(std::string_view text) {
  std::string out;
  if (!text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos)
    out = "'";
  for (std::size_t i = 0; i < text.size();) {  // no terminal that shows it is controlled
    const std::size_t length = utf8_length(text, i);
    const auto c = static_cast<unsigned char>(text[i]);
    if (length == 0)
      out += '?';
    else if (c < 0x20 || c == 0x7f)
      out += ' ';
    else
      out += text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  if (out.find_first_of(",\"\r\n") == std::string::npos) return out;
  std::string cell = "\"";
  for (const char c : out) {
    if (c == '"') cell += '"';
    cell += c;
  }
  return cell + '"';
}

std::string seconds_text(double us) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6f", 1e-6 * us);
  return text;
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return follows(1) ? 2 : 0;
  if (lead >= 0xE0 && lead < 0xF0) {
    const bool is_long = lead != 0xE0 || byte(1) >= 0xA0, is_half = lead == 0xED && byte(1) >= 0xA0;
    return is_long && !is_half && follows(1) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead < 0xF5) {
    const bool is_valid = (lead != 0xF0 || byte(1) >= 0x90) && (lead != 0xF4 || byte(1) < 0x90);
    return is_valid && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    const char c = text[i];
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if (length == 0 || static_cast<unsigned char>(c) < 0x20)
      out += length == 0 ? '?' : ' ';
    else
      out += text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

void append_events(std::string& out, const Capture& capture, long process_id,
                   std::size_t lanes_before) {
  bool is_first = true;
  const auto begin = [&](const char* form, const std::string& name) -> std::string& {
    if (!std::exchange(is_first, false)) out += ",\n";
    out.append("{\"ph\":\"").append(form).append("\",\"name\":").append(name);
    return out.append(",\"pid\":").append(std::to_string(process_id));
  };
  const auto name_event = [&](const char* what, std::size_t lane, const std::string& name) {
    begin("M", quoted(what)).append(",\"tid\":").append(std::to_string(lane));
    out.append(",\"args\":{\"name\":").append(quoted(name)).append("}}");
  };
  char text[128];
  const auto at = [&](double us) {
    std::snprintf(text, sizeof text, ",\"ts\":%.3f", us);
    out += text;
  };
  if (!capture.process.empty()) name_event("process_name", 0, capture.process);
  for (std::size_t i = lanes_before; i < capture.lanes.size(); ++i)
    name_event("thread_name", i, capture.lanes[i]);
  for (const Capture::Span& span : capture.spans) {
    begin("X", quoted(span.name)).append(",\"tid\":").append(std::to_string(span.lane));
    if (span.is_period) out += ",\"cat\":\"period\"";
    at(span.begin_us);
    std::snprintf(text, sizeof text, ",\"dur\":%.0f,\"args\":{\"%s\":%llu}}", span.duration_us,
                  span.name == "epoch" ? "epoch" : "round",
                  static_cast<unsigned long long>(span.round));
    out += text;
  }
  for (const Capture::Mark& mark : capture.marks) {
    begin("i", quoted(mark.name)).append(",\"s\":\"t\",\"tid\":").append(std::to_string(mark.lane));
    at(mark.at_us);
    out.append(",\"args\":{\"text\":").append(quoted(mark.text)).append("}}");
  }
  for (const Capture::Sample& sample : capture.samples) {
    if (sample.track >= capture.tracks.size()) continue;
    const auto& [track, what] = capture.tracks[sample.track];
    begin("C", quoted(track));
    at(sample.at_us);
    std::snprintf(text, sizeof text, ":%.10g}}", sample.value);
    out.append(",\"args\":{").append(quoted(what)).append(text);
  }
}

std::vector<LaneSummary> summarize(std::span<const Capture> captures, const GapOptions& options) {
  std::vector<LaneSummary> rows;
  const auto put = [&](LaneSummary row, std::size_t process, const std::string& lane) {
    row.process_number = process;
    row.process = captures[process].process;
    row.lane = lane;
    rows.push_back(std::move(row));
  };
  for (std::size_t c = 0; c < captures.size(); ++c) {
    const auto lanes = work_of(captures[c]);
    const Interval window = window_of(lanes);
    for (std::size_t i = 0; i < lanes.size(); ++i)
      if (lanes[i].spans > 0) put(summary_of(lanes, i, window), c, captures[c].lanes[i]);
  }
  for (std::size_t c = 0; c < captures.size(); ++c)
    for (std::uint32_t t = 0; t < captures[c].tracks.size(); ++t) {
      const std::string gpu = gpu_of(captures[c].tracks[t].first);
      if (gpu.empty()) continue;
      const GpuUse use = use_of(captures[c], t, options);
      LaneSummary row;
      row.stages = "utilization";
      row.window_seconds = 1e-6 * (use.window.end - use.window.begin);
      row.busy_seconds = 1e-6 * use.busy_us;
      row.idle_seconds = row.window_seconds - row.busy_seconds;
      note_gaps(row, use.idle);
      put(std::move(row), c, gpu);
    }
  return rows;
}

std::vector<std::string> summary_heads() {
  return {"process", "lane", "stages", "busy", "idle", "gaps", "longest", "while idle"};
}

std::vector<std::string> summary_cells(const LaneSummary& lane, std::string (*duration)(double)) {
  std::string meanwhile;
  for (const auto& [stage, seconds] : lane.meanwhile_seconds)
    meanwhile.append(meanwhile.empty() ? "" : ", ")
        .append(stage)
        .append(" ")
        .append(percent(seconds, lane.idle_seconds));
  return {lane.process,
          lane.lane,
          lane.stages,
          percent(lane.busy_seconds, lane.window_seconds),
          percent(lane.idle_seconds, lane.window_seconds),
          std::to_string(lane.gaps),
          duration(lane.longest_gap_seconds),
          meanwhile};
}

std::vector<Gap> gaps_of(std::span<const Capture> captures, const GapOptions& options) {
  std::vector<Gap> out;
  for (std::size_t c = 0; c < captures.size(); ++c) {
    const Capture& capture = captures[c];
    const auto lanes = work_of(capture);
    const Interval window = window_of(lanes);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (!lanes[i].is_device()) continue;
      for (const Interval& one : gaps(lanes[i].busy, window))
        if (1e-6 * (one.end - one.begin) >= options.least_seconds)
          out.push_back(gap_of(c, capture.lanes[i], one));
    }
    for (std::uint32_t t = 0; t < capture.tracks.size(); ++t)
      if (const std::string gpu = gpu_of(capture.tracks[t].first); !gpu.empty())
        for (const Interval& one : use_of(capture, t, options).idle)
          out.push_back(gap_of(c, gpu, one));
  }
  std::ranges::stable_sort(out, {}, &Gap::begin_us);
  return out;
}

std::string_view query_format(std::string_view query) {
  constexpr std::string_view kName = "format=";
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('&'));
    if (one.starts_with(kName)) return one.substr(kName.size());
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
  }
  return "json";
}

std::optional<Export> export_as(std::string_view format, double seconds) {
  if (format == "json") return Export{to_json(seconds), "application/json"};
  const Capture one = capture(seconds);
  if (format == "csv") return Export{to_csv({&one, 1}), "text/csv; charset=utf-8"};
  if (format == "html") return Export{to_html({&one, 1}), "text/html; charset=utf-8"};
  return std::nullopt;
}

std::string to_csv(std::span<const Capture> captures, const GapOptions& options) {
  std::string out =
      "kind,process,lane,name,begin_unix_seconds,duration_seconds,round,value,text\r\n";
  const auto row = [&](const char* kind, const Capture& of, std::string_view lane,
                       std::string_view name, double begin_us, const std::string& duration,
                       const std::string& round, const std::string& value, std::string_view text) {
    out.append(kind).append(",").append(csv_field(of.process)).append(",");
    out.append(csv_field(lane)).append(",").append(csv_field(name)).append(",");
    out.append(seconds_text(begin_us)).append(",").append(duration).append(",");
    out.append(round).append(",").append(value).append(",");
    out.append(csv_field(text)).append("\r\n");
  };
  const auto lane_of = [](const Capture& of, std::uint32_t lane) {
    return lane < of.lanes.size() ? std::string_view(of.lanes[lane]) : std::string_view();
  };
  for (const Capture& of : captures) {
    for (const Capture::Span& span : of.spans)
      row(span.is_period ? "period" : "stage", of, lane_of(of, span.lane), span.name, span.begin_us,
          seconds_text(span.duration_us), std::to_string(span.round), "", "");
    for (const Capture::Mark& mark : of.marks)
      row("mark", of, lane_of(of, mark.lane), mark.name, mark.at_us, "", "", "", mark.text);
    for (const Capture::Sample& sample : of.samples) {
      if (sample.track >= of.tracks.size()) continue;
      char value[40];
      std::snprintf(value, sizeof value, "%.10g", sample.value);
      const auto& [track, what] = of.tracks[sample.track];
      row("sample", of, track, what, sample.at_us, "", "", value, "");
    }
  }
  for (const Gap& gap : gaps_of(captures, options))
    row("idle", captures[gap.process_number], gap.lane, "idle", gap.begin_us,
        seconds_text(gap.end_us - gap.begin_us), "", "", "");
  return out;
}

}  // namespace centroid::trace
