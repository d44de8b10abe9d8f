#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "client/online.h"
#include "common/base/trace_report.h"

/// trace: the processes' work in the last seconds, and what their devices waited for.
namespace centroid::client {

namespace {

/// Parse a process's trace.
trace::Capture capture_of(const Json& document) {
  trace::Capture out;
  std::map<std::string, std::uint32_t> lanes;  // by thread number
  const auto lane_of = [&](const Json& event) {
    const auto [at, is_new] =
        lanes.try_emplace(text_of(event, "tid"), static_cast<std::uint32_t>(out.lanes.size()));
    if (is_new) out.lanes.emplace_back("lane " + at->first);
    return at->second;
  };
  for (const Json& event : document) {
    if (!event.is_object()) continue;
    const std::string name = text_of(event, "name"), form = text_of(event, "ph");
    const Json given = event.value("args", Json::object());
    const Json details = given.is_object() ? given : Json::object();
    const double at = number_of(event, "ts");
    if (name == "process_name" && form == "M") out.process = text_of(details, "name");
    if (name == "thread_name" && form == "M") out.lanes[lane_of(event)] = text_of(details, "name");
    if (form == "X") {
      trace::Capture::Span span;
      span.begin_us = at;
      span.duration_us = number_of(event, "dur");
      span.is_period = text_of(event, "cat") == "period";
      span.round = static_cast<std::uint64_t>(
          std::clamp(number_of(details, name == "epoch" ? "epoch" : "round"), 0.0, 1e18));
      span.lane = lane_of(event);
      span.name = name;
      out.spans.push_back(std::move(span));
    }
    if (form == "i") out.marks.push_back({at, lane_of(event), name, text_of(details, "text")});
    if (form != "C") continue;
    for (const auto& [what, value] : details.items()) {
      if (!value.is_number()) continue;
      const std::pair<std::string, std::string> track(name, what);
      auto known = std::ranges::find(out.tracks, track);
      if (known == out.tracks.end()) known = out.tracks.insert(known, track);
      out.samples.push_back(
          {at, value.get<double>(), static_cast<std::uint32_t>(known - out.tracks.begin())});
    }
  }
  return out;
}

/// One row a lane; for a device also the other stages of its process while it was idle.
Json to_json(const std::vector<trace::LaneSummary>& lanes) {
  Json rows = Json::array();
  for (const trace::LaneSummary& lane : lanes) {
    Json row;
    row["process"] = lane.process;
    row["lane"] = lane.lane;
    row["stages"] = lane.stages;
    row["spans"] = lane.spans;
    row["window_seconds"] = lane.window_seconds;
    row["busy_seconds"] = lane.busy_seconds;
    row["idle_seconds"] = lane.idle_seconds;
    row["gaps"] = lane.gaps;
    row["longest_gap_seconds"] = lane.longest_gap_seconds;
    if (lane.is_device) {
      Json meanwhile = Json::object();
      for (const auto& [stage, seconds] : lane.meanwhile_seconds) meanwhile[stage] = seconds;
      row["meanwhile_seconds"] = std::move(meanwhile);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string summary_table(const std::vector<trace::LaneSummary>& lanes) {
  std::vector<std::vector<std::string>> cells;
  for (const trace::LaneSummary& lane : lanes) {
    cells.push_back(trace::summary_cells(lane, duration_text));
    if (!lane.is_device) cells.back().back() = "-";
  }
  return table(trace::summary_heads(), cells);
}

/// The spans of one process: the server, or a worker at its metrics port.
Result<Json> fetch(const Session& session, const std::string& where, double seconds) {
  Json document;
  if (where.empty()) {
    CENTROID_ASSIGN(document,
                    get_json(session, "/v1/trace?seconds=" + number_text(std::floor(seconds))));
  } else {
    Session worker = session;
    worker.remote.token.clear();  // is the server's
    CENTROID_ASSIGN(const std::string path, worker.remote.set_address(where));
    CENTROID_ASSIGN(document, get_json(worker, path.size() > 1 ? path : "/v1/trace"));
  }
  if (!document.contains("traceEvents") || !document["traceEvents"].is_array())
    return Error(ErrorCode::kDataLoss, (where.empty() ? session.remote.origin.to_string() : where) +
                                           " answered with something that is no trace");
  return document["traceEvents"];
}

/// A list that a program is still writing, or that was killed meanwhile, may end in an incomplete
/// line: the lines before are complete.
Json complete_lines(const std::string& text) {
  if (!text.starts_with('[')) return {};
  const Json all = Json::parse(text + "]", nullptr, false);  // only the tail is missing
  const std::size_t end = text.rfind(",\n");
  if (!all.is_discarded() || end == std::string::npos) return all;
  return Json::parse(text.substr(0, end) + "]", nullptr, false);
}

/// The spans of each process in a file of --trace (a list), or of --out (an object with one).
Result<std::vector<Json>> read_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Error(ErrorCode::kNotFound, path + " cannot be read");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded()) {
    document = complete_lines(text);
    if (document.is_array())
      std::fprintf(stderr,
                   "centroidctl: %s ends in an incomplete line, as a file does while it is "
                   "written: the lines before it were read\n",
                   path.c_str());
  }
  const Json list = document.is_object() ? document.value("traceEvents", Json()) : document;
  if (!list.is_array())
    return Error(ErrorCode::kDataLoss, path + " is no trace: it has no list of events");
  std::map<std::string, Json> processes;
  for (const Json& event : list)
    if (event.is_object()) processes[text_of(event, "pid")].push_back(event);
  std::vector<Json> out;
  for (auto& [number, events] : processes) out.push_back(std::move(events));
  return out;
}

struct TraceOptions {
  std::vector<std::string> workers, files;
  std::string out, format;
  double seconds = 10, idle_ms = 1;
};

/// All processes in one document of the requested format.
std::string exported(const std::vector<trace::Capture>& captures, const std::string& format,
                     const trace::GapOptions& gaps) {
  if (format == "csv") return trace::to_csv(captures, gaps);
  if (format == "html") return trace::to_html(captures, gaps);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (std::size_t i = 0; i < captures.size(); ++i) {
    // Processes of several machines may have the same number.
    std::string events;
    trace::append_events(events, captures[i], static_cast<long>(i + 1));
    if (i > 0 && !events.empty()) out += ",\n";
    out += events;
  }
  return out + "\n]}\n";
}

int run_trace(const Session& session, const TraceOptions& options) {
  std::vector<Json> documents;
  std::vector<std::string> places;
  if (options.files.empty()) places.push_back("");
  places.insert(places.end(), options.workers.begin(), options.workers.end());
  for (const std::string& path : options.files) {
    auto processes = read_file(path);
    if (!processes.ok()) return complain(processes.error());
    std::ranges::move(processes.value(), std::back_inserter(documents));
  }
  for (const std::string& where : places) {
    auto events = fetch(session, where, options.seconds);
    if (!events.ok()) return complain(events.error());
    documents.push_back(std::move(events).value());
  }
  std::vector<trace::Capture> captures;
  for (const Json& document : documents) captures.push_back(capture_of(document));
  trace::GapOptions gaps;
  gaps.least_seconds = 1e-3 * options.idle_ms;
  if (!options.out.empty() || !options.format.empty()) {
    const std::string text =
        exported(captures, options.format.empty() ? "json" : options.format, gaps);
    if (options.out.empty()) {
      std::fputs(text.c_str(), stdout);
      return kExitDone;
    }
    std::ofstream file(options.out);
    if (!(file << text).flush()) {
      std::fprintf(stderr, "centroidctl: %s cannot be written\n", options.out.c_str());
      return kExitFailed;
    }
  }
  const auto lanes = trace::summarize(captures, gaps);
  const std::string text = session.style.is_json ? line_of(to_json(lanes)) : summary_table(lanes);
  std::fputs(text.c_str(), stdout);
  return kExitDone;
}

}  // namespace

void add_trace(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const tracing = app.add_subcommand(
      "trace",
      "What the server and workers did in the last seconds: how busy each was, and what else went "
      "on while a device was idle.");
  const auto options = std::make_shared<TraceOptions>();
  CLI::Option* const places =
      tracing->add_option("HOST:PORT", options->workers, "workers, where they serve metrics");
  tracing
      ->add_option("--from", options->files,
                   "files that programs wrote (setting trace) instead of running ones")
      ->excludes(places);
  tracing->add_option("--seconds", options->seconds, "how far back, of the server")
      ->check(CLI::Range(1, 60))
      ->capture_default_str();
  tracing->add_option("--out", options->out,
                      "write all of it to this file: for Perfetto or chrome://tracing, or as "
                      "--format says");
  tracing
      ->add_option("--format", options->format,
                   "of what is written, to --out or else to standard output in the place of the "
                   "summary: json, csv, or html (a page that needs nothing else)")
      ->check(CLI::IsMember({"json", "csv", "html"}));
  tracing->add_option("--idle-ms", options->idle_ms, "least length of a reported gap of a device")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  tracing->callback([=, &status] { status = run_trace(*session, *options); });
}

}  // namespace centroid::client
