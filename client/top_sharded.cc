#include "client/top_sharded.h"

#include <chrono>
#include <vector>

namespace centroid::client {

namespace {

using Row = std::vector<std::string>;

double within(const Json& rank, const char* object, const char* name) {
  const auto at = rank.find(object);
  return at == rank.end() || !at->is_object() ? 0 : number_of(*at, name);
}

/// "shard 1 of 3, copy of 0"; with stages "layers 4-7, shard 0 of 2"; "waits".
std::string part_text(const Json& rank) {
  if (number_of(rank, "shards") == 0) return "waits";
  std::string out;
  if (const double layers = number_of(rank, "layers"); layers > 0) {
    const double first = number_of(rank, "first_layer");
    out = "layers " + number_text(first) + "-" + number_text(first + layers - 1) + ", ";
  }
  out += "shard " + text_of(rank, "shard") + " of " + text_of(rank, "shards");
  const std::string copied = text_of(rank, "copied_shard");
  return copied.empty() ? out : out + ", copy of " + copied;
}

std::string list_text(const Json& change, const char* name) {
  std::string out;
  const auto at = change.find(name);
  if (at == change.end() || !at->is_array()) return out;
  for (const Json& one : *at) out += (out.empty() ? "" : ", ") + one.dump();
  return out;
}

std::string change_text(const Json& change) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string out = duration_text(now.count() - number_of(change, "unix_seconds")) + " ago:";
  const std::string lost = list_text(change, "lost"), joined = list_text(change, "joined");
  if (!lost.empty()) out += " lost worker " + lost + ",";
  if (!joined.empty()) out += " worker " + joined + " joined,";
  return out + " " + text_of(change, "world") + " ranks go on from step " +
         text_of(change, "step") + " of the " + text_of(change, "from") + ", after " +
         duration_text(number_of(change, "seconds"));
}

}  // namespace

Result<std::string> ShardedTop::look() {
  CENTROID_ASSIGN(const Json job, get_json(session_, "/v1/sharded"));
  if (!job.contains("ranks") || !job["ranks"].is_array())
    return Error(ErrorCode::kDataLoss,
                 session_.remote.origin.to_string() + "/v1/sharded answered without its ranks");
  return session_.style.is_json ? line_of(job) : text(job);
}

/// What each rank did in the steps between its last two different numbers.
std::string ShardedTop::doing(const Json& ranks) {
  std::map<std::uint64_t, std::pair<Json, Json>> seen;
  std::vector<Row> rows;
  double samples_of_all = 0;
  for (const Json& rank : ranks) {
    const auto worker = static_cast<std::uint64_t>(number_of(rank, "worker"));
    std::pair<Json, Json> two(Json::object(), rank);
    if (const auto at = seen_.find(worker); at != seen_.end()) {
      const double before = number_of(at->second.second, "steps");
      two = at->second;
      if (before != number_of(rank, "steps")) two = {std::move(two.second), rank};
      if (before > number_of(rank, "steps")) two.first = Json::object();  // another process
    }
    const auto& [then, now] = two;
    const double steps = number_of(now, "steps") - number_of(then, "steps");
    const double seconds = number_of(now, "seconds") - number_of(then, "seconds");
    const auto a_second = [&](double more) { return seconds > 0 ? more / seconds : 0; };
    const auto a_step = [&](double more) { return duration_text(steps > 0 ? more / steps : 0); };
    const double computing = number_of(now, "compute_seconds") - number_of(then, "compute_seconds");
    const double samples = a_second(number_of(now, "samples") - number_of(then, "samples"));
    samples_of_all += samples;
    Row row = {text_of(rank, "rank"), text_of(rank, "name"), number_text(samples),
               a_step(computing)};
    for (const char* name : {"gather", "reduce", "copy", "activations", "agree"})
      row.push_back(a_step(within(now, "wait_seconds", name) - within(then, "wait_seconds", name)));
    row.push_back(seconds > 0 ? share_text(1 - computing / seconds) : "-");
    row.push_back(share_text(number_of(now, "bubble_ratio")));
    for (const char* name : {"bytes_in", "bytes_out"})
      row.push_back(size_text(a_second(number_of(now, name) - number_of(then, name))));
    rows.push_back(std::move(row));
    seen[worker] = std::move(two);
  }
  seen_ = std::move(seen);
  return number_text(samples_of_all) + " samples/s\n\n" +
         table({"rank", "worker", "samples/s", "compute", "gather", "reduce", "copy", "activations",
                "agree", "waiting", "bubble", "in/s", "out/s"},
               rows);
}

std::string ShardedTop::text(const Json& job) {
  std::string out = "step " + text_of(job, "step") + ", " + text_of(job, "state");
  if (const std::string end = text_of(job, "end"); !end.empty()) out += " (" + end + ")";
  out += ", loss " + number_text(number_of(job, "loss")) + ", " + text_of(job, "world") +
         " ranks in generation " + text_of(job, "generation");
  if (number_of(job, "missing") > 0) out += " (" + text_of(job, "missing") + " missing)";
  if (const std::string what = text_of(job, "waiting_for"); !what.empty())
    out += " (some wait for " + what + ")";
  out += ", sharding " + text_of(job, "sharding") + "; last step " +
         duration_text(number_of(job, "step_age_seconds")) + " ago, ";
  out += doing(job["ranks"]) + "\n";
  std::vector<Row> rows;
  for (const Json& rank : job["ranks"]) {
    Row row = {text_of(rank, "rank"), text_of(rank, "worker"), text_of(rank, "name"),
               part_text(rank), text_of(rank, "elements")};
    for (const char* kind : {"parameters", "gradients", "state", "activations", "process"})
      row.push_back(size_text(within(rank, "memory_bytes", kind)));
    rows.push_back(std::move(row));
  }
  out += table({"rank", "number", "worker", "has", "elements", "parameters", "gradients", "state",
                "activations", "process"},
               rows);
  if (const auto changes = job.find("changes"); changes != job.end() && changes->is_array())
    for (const Json& change : *changes) out += "\n" + change_text(change);
  return out.back() == '\n' ? out : out + "\n";
}

}  // namespace centroid::client
