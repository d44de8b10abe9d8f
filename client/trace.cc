#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "client/online.h"

/// trace: what the processes did in the last seconds, and what their devices waited for.
namespace centroid::client {

namespace {

/// From `begin` to `end`, microseconds.
struct Interval {
  double begin = 0, end = 0;
};

struct Lane {
  std::string process, name;
  long process_id = 0;
  std::size_t spans = 0;
  std::vector<Interval> busy;                           // sorted, apart from each other
  std::map<std::string, std::vector<Interval>> stages;  // likewise, by stage
  std::string stages_text() const {
    std::string out;
    for (const auto& [stage, intervals] : stages) out += (out.empty() ? "" : " ") + stage;
    return out;
  }
};

void merge(std::vector<Interval>& intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  std::vector<Interval> apart;
  for (const Interval& next : intervals) {
    if (!apart.empty() && next.begin <= apart.back().end)
      apart.back().end = std::max(apart.back().end, next.end);
    else
      apart.push_back(next);
  }
  intervals = std::move(apart);
}

double length(const std::vector<Interval>& intervals) {
  double sum = 0;
  for (const Interval& one : intervals) sum += one.end - one.begin;
  return sum;
}

/// What of `window` none of the intervals covers.
std::vector<Interval> gaps(const std::vector<Interval>& busy, Interval window) {
  std::vector<Interval> out;
  double at = window.begin;
  for (const Interval& one : busy) {
    if (one.begin > at) out.push_back({at, std::min(one.begin, window.end)});
    at = std::max(at, one.end);
  }
  if (at < window.end) out.push_back({at, window.end});
  return out;
}

/// Microseconds in both; each list sorted and its intervals apart.
double overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0;
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max(0.0, std::min(a[i].end, b[k].end) - std::max(a[i].begin, b[k].begin));
    (a[i].end < b[k].end ? i : k) += 1;
  }
  return sum;
}

/// Lanes of all documents, by process and number.
std::vector<Lane> lanes_of(const std::vector<Json>& documents) {
  std::vector<Lane> out;
  for (const Json& document : documents) {
    std::map<std::string, Lane> lanes;
    std::string process;
    for (const Json& event : document) {
      const std::string name = text_of(event, "name"), lane = text_of(event, "tid");
      if (name == "process_name") process = text_of(event.value("args", Json::object()), "name");
      if (name == "thread_name")
        lanes[lane].name = text_of(event.value("args", Json::object()), "name");
      if (text_of(event, "ph") != "X") continue;
      const double begin = number_of(event, "ts");
      const Interval span{begin, begin + number_of(event, "dur")};
      ++lanes[lane].spans;
      lanes[lane].busy.push_back(span);
      lanes[lane].stages[name].push_back(span);
    }
    for (auto& [number, lane] : lanes) {
      if (lane.spans == 0) continue;
      lane.process = process;
      lane.process_id = static_cast<long>(&document - documents.data());
      merge(lane.busy);
      for (auto& [stage, intervals] : lane.stages) merge(intervals);
      out.push_back(std::move(lane));
    }
  }
  return out;
}

Interval window_of(const std::vector<Lane>& lanes, long process) {
  Interval window{1e300, 0};
  for (const Lane& lane : lanes)
    if (lane.process_id == process) {
      window.begin = std::min(window.begin, lane.busy.front().begin);
      window.end = std::max(window.end, lane.busy.back().end);
    }
  return window;
}

std::string percent(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", whole > 0 ? 100 * part / whole : 0);
  return text;
}

/// One row a lane; of a device also what the rest of its process did while it was idle.
Json summary(const std::vector<Lane>& lanes) {
  Json rows = Json::array();
  for (const Lane& lane : lanes) {
    const Interval window = window_of(lanes, lane.process_id);
    const auto idle = gaps(lane.busy, window);
    double longest = 0;
    for (const Interval& gap : idle) longest = std::max(longest, gap.end - gap.begin);
    Json row;
    row["process"] = lane.process;
    row["lane"] = lane.name;
    row["stages"] = lane.stages_text();
    row["spans"] = lane.spans;
    row["window_seconds"] = 1e-6 * (window.end - window.begin);
    row["busy_seconds"] = 1e-6 * length(lane.busy);
    row["idle_seconds"] = 1e-6 * length(idle);
    row["gaps"] = idle.size();
    row["longest_gap_seconds"] = 1e-6 * longest;
    if (lane.stages.contains("compute")) {
      Json meanwhile = Json::object();
      for (const Lane& other : lanes)
        if (other.process_id == lane.process_id && &other != &lane)
          for (const auto& [stage, intervals] : other.stages)
            if (const double both = 1e-6 * overlap(idle, intervals); both > 0)
              meanwhile[stage] = meanwhile.value(stage, 0.0) + both;
      row["meanwhile_seconds"] = std::move(meanwhile);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string summary_table(const Json& rows) {
  std::vector<std::vector<std::string>> cells;
  for (const Json& row : rows) {
    const double window = number_of(row, "window_seconds"), idle = number_of(row, "idle_seconds");
    std::string meanwhile = "-";
    if (row.contains("meanwhile_seconds")) {
      meanwhile.clear();
      for (const auto& [stage, seconds] : row["meanwhile_seconds"].items())
        meanwhile +=
            (meanwhile.empty() ? "" : ", ") + stage + " " + percent(seconds.get<double>(), idle);
    }
    cells.push_back({text_of(row, "process"), text_of(row, "lane"), text_of(row, "stages"),
                     percent(number_of(row, "busy_seconds"), window), percent(idle, window),
                     text_of(row, "gaps"), duration_text(number_of(row, "longest_gap_seconds")),
                     meanwhile});
  }
  return table({"process", "lane", "stages", "busy", "idle", "gaps", "longest", "while idle"},
               cells);
}

/// The spans of one process: of the server, or of a worker at its metrics port.
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
    return Error(ErrorCode::kDataLoss, (where.empty() ? session.remote.to_string() : where) +
                                           " answered with something that is no trace");
  return document["traceEvents"];
}

/// The spans of each process in a file of --trace (a list), or of --out (an object with one).
Result<std::vector<Json>> read_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Error(ErrorCode::kNotFound, path + " cannot be read");
  const Json document = Json::parse(in, nullptr, false);
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

struct Options {
  std::vector<std::string> workers, files;
  std::string out;
  double seconds = 10;
};

int trace(const Session& session, const Options& options) {
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
  if (!options.out.empty()) {
    Json all;
    all["displayTimeUnit"] = "ms";
    all["traceEvents"] = Json::array();
    for (std::size_t i = 0; i < documents.size(); ++i)
      for (Json event : documents[i]) {
        event["pid"] = i + 1;  // processes of several machines may have one number
        all["traceEvents"].push_back(std::move(event));
      }
    std::ofstream file(options.out);
    if (!(file << all.dump() << "\n").flush()) {
      std::fprintf(stderr, "centroidctl: %s cannot be written\n", options.out.c_str());
      return kExitFailed;
    }
  }
  const Json rows = summary(lanes_of(documents));
  const std::string text = session.style.is_json ? rows.dump() + "\n" : summary_table(rows);
  std::fputs(text.c_str(), stdout);
  return kExitDone;
}

}  // namespace

void add_trace(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const tracing = app.add_subcommand(
      "trace",
      "What the server and workers did in the last seconds: how busy each was, and what else went "
      "on while a device was idle.");
  const auto options = std::make_shared<Options>();
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
                      "write all spans to this file, for Perfetto or chrome://tracing");
  tracing->callback([=, &status] { status = trace(*session, *options); });
}

}  // namespace centroid::client
