#include "server/api/event_feed.h"

#include <algorithm>

#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>

namespace centroid::server {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kPieceEvents = 128;

Json to_json(const EventRecord& event) {
  Json out;
  out["id"] = event.id;
  out["type"] = event.type;
  out["unix_seconds"] = event.unix_seconds;
  for (const auto& [name, value] : event.fields)
    std::visit([&out, name = std::string(name)](const auto& v) { out[name] = v; }, value);
  return out;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<std::set<std::string_view>> event_filter(std::string_view text) {
  std::set<std::string_view> types;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string_view filter = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::string family = std::string(filter) + ".";
    std::size_t found = 0;
    for (const std::string_view type : event_types()) {
      if (type != filter && !type.starts_with(family)) continue;
      types.insert(type);
      ++found;
    }
    if (found > 0) continue;
    std::string known;
    for (const std::string_view type : event_types())
      known.append(known.empty() ? "" : ", ").append(type);
    return Error(ErrorCode::kInvalidArgument, "query parameter 'type': no event is called '" +
                                                  std::string(filter) + "'; there are " + known);
  }
  return types;
}

std::string to_json_text(const EventRecord& event) { return dump(to_json(event)); }

class EventFeed::Stream final : public BodyStream {
 public:
  Stream(EventFeed& feed, std::uint64_t after, std::set<std::string_view> types)
      : feed_(feed), after_(after), types_(std::move(types)) {}

  Task<Result<std::string>> next() override {
    std::string piece = begin();
    TimePoint silent_until = centroid::now() + feed_.heartbeat_;
    while (piece.empty()) {
      if (feed_.is_closed_) co_return std::string();
      const EventLog::Page page = read();
      if (page.lost > 0 && !may_have_lost_) {
        feed_.dropped_lagging_.add();
        co_return Error(ErrorCode::kResourceExhausted,
                        "the client is behind the oldest retained event");
      }
      piece = text_of(page);
      may_have_lost_ = false;
      if (!piece.empty()) break;
      const bool is_woken = co_await feed_.bell_->rung.wait(silent_until);
      if (!is_woken && centroid::now() >= silent_until) piece = ": alive\n\n";
    }
    co_return piece;
  }

 private:
  /// First: the time until a reconnect, and some text, so that proxies pass the head on.
  std::string begin() {
    if (has_begun_) return {};
    has_begun_ = true;
    return "retry: 2000\n: events of centroid-server\n\n";
  }
  EventLog::Page read() const {
    const auto takes = [this](std::string_view type) { return types_.contains(type); };
    return feed_.events_.read(after_, kPieceEvents, takes);
  }
  std::string text_of(const EventLog::Page& page) {
    std::string text;
    if (page.lost > 0) {
      Json lost;
      lost["id"] = page.last;
      lost["type"] = "events.lost";
      lost["after"] = after_;
      lost["lost"] = page.lost;
      text = "event: events.lost\ndata: " + dump(lost) + "\n\n";
    }
    for (const EventRecord& event : page.events)
      text.append("id: ")
          .append(std::to_string(event.id))
          .append("\nevent: ")
          .append(event.type)
          .append("\ndata: ")
          .append(to_json_text(event))
          .append("\n\n");
    after_ = page.last;
    return text;
  }

  EventFeed& feed_;
  std::uint64_t after_;
  const std::set<std::string_view> types_;
  bool has_begun_ = false;
  bool may_have_lost_ = true;  ///< before its start, not since
};

EventFeed::EventFeed(Executor executor, EventLog& events, metrics::Counter dropped_lagging,
                     std::chrono::milliseconds heartbeat)
    : events_(events),
      dropped_lagging_(dropped_lagging),
      heartbeat_(heartbeat),
      bell_(std::make_shared<Bell>(std::move(executor))) {
  events_.listen([bell = bell_] { ring(bell); });
}

EventFeed::~EventFeed() { events_.listen(nullptr); }

/// From any thread; many events at once wake the streams once.
void EventFeed::ring(const std::shared_ptr<Bell>& bell) {
  if (bell->is_ringing.exchange(true)) return;
  boost::asio::post(bell->executor, [bell] {
    bell->is_ringing.store(false);
    bell->rung.notify_all();
  });
}

std::shared_ptr<BodyStream> EventFeed::stream(std::uint64_t after,
                                              std::set<std::string_view> types) {
  return std::make_shared<Stream>(*this, after, std::move(types));
}

void EventFeed::close() {
  is_closed_ = true;
  bell_->rung.notify_all();
}

}  // namespace centroid::server
