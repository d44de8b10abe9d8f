#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "client/online.h"
#include "client/top_sharded.h"

/// top: what every worker does now, from the difference of two refreshes. Of a job without a server
/// its ranks (top_sharded.h).
namespace centroid::client {

namespace {

using Clock = std::chrono::steady_clock;

/// Sums since a worker joined.
struct Sums {
  double samples = 0, rounds = 0, compute = 0, wait = 0, in = 0, out = 0;
  double joined = 0;  ///< when that was
};

/// A worker's activity between two refreshes; per second, and seconds per round.
struct Line {
  std::string name, state;
  double samples = 0, rounds = 0, compute = 0, wait = 0, in = 0, out = 0;
  double waited_for = 0;  ///< seconds that the open round has waited for it
};

Sums sums_of(const Json& worker) {
  return {number_of(worker, "samples"),
          number_of(worker, "rounds"),
          number_of(worker, "compute_seconds"),
          number_of(worker, "wait_seconds"),
          number_of(worker, "bytes_in"),
          number_of(worker, "bytes_out"),
          number_of(worker, "joined_unix_seconds")};
}

class Top {
 public:
  Top(const Session& session, std::string order) : session_(session), order_(std::move(order)) {}

  Result<std::string> look() {
    CENTROID_ASSIGN(const Json cluster, get_json(session_, "/v1/cluster"));
    CENTROID_ASSIGN(const Json workers, get_list(session_, "/v1/workers", "workers"));
    CENTROID_ASSIGN(const Json rounds, get_json(session_, "/v1/rounds?limit=1"));
    CENTROID_ASSIGN(const Answer metrics, ask(session_.remote, "GET", "/metrics"));
    const auto now = Clock::now();
    const double seconds = last_ ? std::chrono::duration<double>(now - *last_).count() : 0;
    auto lines = lines_of(workers, rounds["rounds"], seconds);
    const auto stages = stages_of(metrics.body, seconds);
    last_ = now;
    return session_.style.is_json ? json_of(lines, stages, seconds)
                                  : text_of_all(cluster, lines, stages);
  }

 private:
  /// Only present workers; sums of others are dropped.
  std::vector<Line> lines_of(const Json& workers, const Json& rounds, double seconds) {
    std::map<std::string, double> waited;
    for (const Json& round : rounds)
      if (text_of(round, "outcome").empty())
        for (const Json& name : round["missing"])
          waited[name.get<std::string>()] = number_of(round, "seconds");
    std::map<std::string, Sums> seen;
    std::vector<Line> lines;
    for (const Json& worker : workers) {
      const std::string state = text_of(worker, "state"), member = text_of(worker, "member");
      if (state == "left" || state == "dead" || state == "fenced") continue;
      const Sums now = sums_of(worker);
      const auto before = sums_.find(member);
      // A restarted server counts from 0, and may have given this number to another worker.
      const bool is_other = before == sums_.end() || before->second.joined != now.joined;
      const Sums then = is_other ? now : before->second;
      seen[member] = now;
      Line line{.name = text_of(worker, "name"), .state = state};
      const double rounds_done = now.rounds - then.rounds;
      if (seconds > 0) {
        line.samples = (now.samples - then.samples) / seconds;
        line.rounds = rounds_done / seconds;
        line.in = (now.in - then.in) / seconds;
        line.out = (now.out - then.out) / seconds;
      }
      if (rounds_done > 0) {
        line.compute = (now.compute - then.compute) / rounds_done;
        line.wait = (now.wait - then.wait) / rounds_done;
      }
      line.waited_for = waited.contains(line.name) ? waited[line.name] : 0;
      lines.push_back(std::move(line));
    }
    sums_ = std::move(seen);
    std::ranges::stable_sort(lines, [this](const Line& a, const Line& b) {
      if (order_ == "name") return a.name < b.name;
      if (order_ == "compute") return a.compute > b.compute;
      if (order_ == "wait") return a.wait > b.wait;
      return a.samples > b.samples;
    });
    return lines;
  }

  /// Seconds per second of each stage of the server, from its metrics.
  std::map<std::string, double> stages_of(const std::string& metrics, double seconds) {
    static constexpr std::string_view kPrefix = "centroid_server_stage_seconds_sum{stage=\"";
    std::map<std::string, double> now, rates;
    std::istringstream in(metrics);
    for (std::string text; std::getline(in, text);) {
      if (!text.starts_with(kPrefix)) continue;
      const auto end = text.find('"', kPrefix.size());
      const auto value = text.rfind(' ');
      if (end == std::string::npos || value == std::string::npos) continue;
      const std::string stage = text.substr(kPrefix.size(), end - kPrefix.size());
      now[stage] = std::strtod(text.c_str() + value, nullptr);
      if (seconds > 0 && stages_.contains(stage) && now[stage] >= stages_[stage])
        rates[stage] = (now[stage] - stages_[stage]) / seconds;
    }
    stages_ = std::move(now);
    return rates;
  }

  std::string text_of_all(const Json& cluster, const std::vector<Line>& lines,
                          const std::map<std::string, double>& stages) const {
    std::string out = "round " + text_of(cluster, "round") + ", " + text_of(cluster, "state") +
                      ", " + number_text(number_of(cluster, "samples_per_second")) +
                      " samples/s, loss " + number_text(number_of(cluster, "loss")) + ", " +
                      text_of(cluster, "world") + " workers in generation " +
                      text_of(cluster, "generation") + "\nserver ";
    for (const auto& [stage, share] : stages) out += " " + stage + " " + share_text(share);
    out += stages.empty() ? "(times follow with the second refresh)\n\n" : "\n\n";
    std::vector<std::vector<std::string>> rows;
    for (const Line& line : lines) {
      const double round = line.compute + line.wait;
      rows.push_back({line.name, line.state, number_text(line.samples), number_text(line.rounds),
                      duration_text(line.compute), duration_text(line.wait),
                      round > 0 ? share_text(line.wait / round) : "-", size_text(line.in),
                      size_text(line.out),
                      line.waited_for > 0 ? duration_text(line.waited_for) : "-"});
    }
    return out + table({"worker", "state", "samples/s", "rounds/s", "compute", "wait", "waiting",
                        "in/s", "out/s", "waited for"},
                       rows);
  }

  static std::string json_of(const std::vector<Line>& lines,
                             const std::map<std::string, double>& stages, double seconds) {
    Json out, all = Json::array();
    for (const Line& line : lines) {
      Json one;
      one["worker"] = line.name;
      one["state"] = line.state;
      one["samples_per_second"] = line.samples;
      one["rounds_per_second"] = line.rounds;
      one["compute_seconds"] = line.compute;
      one["wait_seconds"] = line.wait;
      one["bytes_in_per_second"] = line.in;
      one["bytes_out_per_second"] = line.out;
      one["waited_for_seconds"] = line.waited_for;
      all.push_back(std::move(one));
    }
    out["seconds"] = seconds;
    out["workers"] = std::move(all);
    out["server_stages"] = stages;
    return line_of(out);
  }

  const Session& session_;
  std::string order_;
  std::optional<Clock::time_point> last_;
  std::map<std::string, Sums> sums_;
  std::map<std::string, double> stages_;
};

}  // namespace

void add_top(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const top = app.add_subcommand(
      "top", "What each worker does now, again and again: rate, compute, wait, traffic.");
  const auto every = std::make_shared<double>(1);
  const auto count = std::make_shared<std::uint64_t>(0);
  const auto order = std::make_shared<std::string>("rate");
  top->add_option("--every", *every, "seconds between two refreshes")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  top->add_option("--count", *count, "number of refreshes; 0: until Ctrl-C");
  top->add_option("--sort", *order, "order of the workers")
      ->check(CLI::IsMember({"rate", "name", "compute", "wait"}))
      ->capture_default_str();
  top->callback([=, &status] {
    Top view(*session, *order);
    ShardedTop ranks(*session);
    bool is_sharded = false;
    status = show_again(*session, *every, *count, [&]() -> Result<std::string> {
      if (is_sharded) return ranks.look();
      auto shown = view.look();
      // A worker has no cluster.
      is_sharded = !shown.ok() && shown.error().code() == ErrorCode::kNotFound;
      return is_sharded ? ranks.look() : shown;
    });
  });
}

}  // namespace centroid::client
