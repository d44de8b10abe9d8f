#include <cstdio>
#include <ctime>
#include <thread>

#include "client/online.h"

/// events: past and new events.
namespace centroid::client {

namespace {

struct Selection {
  std::string types, since;
  std::uint64_t limit = 50, count = 0;
  bool follows = false;
};

std::string query_of(const Selection& selection, const std::string& since) {
  std::string query = "?limit=1000";
  if (!selection.types.empty()) query += "&type=" + selection.types;
  if (!since.empty()) query += "&since=" + since;
  return query;
}

Colour colour_of(const std::string& type) {
  if (type == "member.lost" || type == "checkpoint.failed" || type == "events.lost" ||
      type == "job.restarted" || type == "state.lost")
    return Colour::kBad;
  if (type == "round.committed") return Colour::kFaint;
  const bool is_trouble = type == "wait.prolonged" || type == "round.aborted" ||
                          type == "round.skipped" || type == "member.evicted" ||
                          type == "checkpoint.state_save_failed" || type == "job.blocked";
  return is_trouble ? Colour::kWarning : Colour::kGood;
}

void print_event(const Session& session, const Json& event) {
  if (session.style.is_json) {
    std::printf("%s", line_of(event).c_str());
    return;
  }
  const double when = number_of(event, "unix_seconds");
  char clock[32] = "--:--:--";
  const auto seconds = static_cast<std::time_t>(when);
  std::tm local{};
  if (when > 0 && localtime_r(&seconds, &local) != nullptr)
    std::strftime(clock, sizeof clock, "%H:%M:%S", &local);
  const std::string type = text_of(event, "type");
  std::string line;
  for (const auto& [name, value] : event.items())
    if (name != "id" && name != "type" && name != "unix_seconds")
      line += " " + name + "=" +
              (value.is_number_float() ? number_text(value.get<double>())
                                       : text_of(event, name.c_str()));
  const std::string padding(type.size() < 20 ? 20 - type.size() : 1, ' ');
  std::printf("%s  %s%s%s\n", clock, paint(session.style, colour_of(type), cleaned(type)).c_str(),
              padding.c_str(), cleaned(line).c_str());
}

/// The newest retained events, oldest first; returns the id of the last.
Result<std::string> show_retained(const Session& session, const Selection& selection) {
  std::vector<Json> events;
  std::string path = "/v1/events" + query_of(selection, selection.since), last;
  while (!path.empty()) {
    CENTROID_ASSIGN(const Json page, get_json(session, path));
    for (const Json& event : page["events"]) events.push_back(event);
    if (events.size() > selection.limit)
      events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(selection.limit));
    last = text_of(page, "last");
    path = text_of(page, "next");
  }
  for (const Json& event : events) print_event(session, event);
  return last;
}

/// New events as they arrive. A lost connection is reopened, and continues after the last event.
int follow(const Session& session, const Selection& selection, std::string last) {
  std::uint64_t shown = 0;
  std::string text;
  const auto take = [&](std::string_view piece) {
    text.append(piece);
    for (std::size_t end = 0; (end = text.find("\n\n")) != std::string::npos;) {
      const auto data = text.find("data: ");
      const Json event = data < end
                             ? Json::parse(text.substr(data + 6, end - data - 6), nullptr, false)
                             : Json(Json::value_t::discarded);
      text.erase(0, end + 2);
      if (!event.is_object()) continue;
      last = text_of(event, "id");
      print_event(session, event);
      std::fflush(stdout);
      if (++shown == selection.count) return false;
    }
    return true;
  };
  for (;;) {
    text.clear();
    const auto answer = listen(session.remote, "/v1/events" + query_of(selection, last), take);
    if (answer.ok() && !answer->is_success()) {
      std::fprintf(stderr, "centroidctl: %s\n", explain(*answer).c_str());
      return kExitFailed;
    }
    if (selection.count > 0 && shown == selection.count) return kExitDone;
    std::fprintf(stderr, "centroidctl: %s; trying again\n",
                 answer.ok() ? "the server ended the stream" : answer.error().message().c_str());
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
}

}  // namespace

void add_events(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const events = app.add_subcommand("events", "What happened, oldest first.");
  const auto selection = std::make_shared<Selection>();
  events->add_flag("-f,--follow", selection->follows, "continue with new events, until Ctrl-C");
  events->add_option(
      "--type", selection->types,
      "only these, separated by commas; `member` takes all that begin with `member.`");
  events->add_option("--since", selection->since, "only events after this id");
  events->add_option("-n,--limit", selection->limit, "at most this number of retained events")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  events->add_option("--count", selection->count, "with --follow: end after so many");
  events->callback([=, &status] {
    const auto last = show_retained(*session, *selection);
    status = last.ok() ? kExitDone : complain(last.error());
    if (last.ok() && selection->follows) status = follow(*session, *selection, *last);
  });
}

}  // namespace centroid::client
