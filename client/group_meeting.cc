#include "client/group_meeting.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/use_future.hpp>

#include "client/group_rendezvous.h"
#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "transport/handshake.h"

namespace centroid::client {

using transport::Connection;
using transport::Endpoint;

namespace {

/// Kinds of frames; on the wire.
enum FrameKind : std::uint16_t {
  kArrive = 0x5211,
  kAsk = 0x5212,  ///< the leader asks whether the caller still waits
  kHere = 0x5213,
  kSurvivors = 0x5214,
  kRefused = 0x5215,
};

constexpr std::string_view kMagic = "centroid meeting 1";
using Places = std::map<std::uint32_t, Endpoint>;

/// What a rank says: kMagic, job, token, rank and generation, a line each.
struct Arrival {
  std::string job, token;
  std::uint32_t rank = 0;
  std::uint64_t generation = 0;
};

std::vector<std::string_view> split(std::string_view text, char end) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(end);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

template <class Number>
bool parse(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, number);
  return failed == std::errc() && at == end;
}

std::string_view text_of(const transport::InFrame& frame) {
  return {reinterpret_cast<const char*>(frame.head.data()), frame.head.size()};
}

std::string encode(const Arrival& arrival) {
  std::string text(kMagic);
  text += "\n" + arrival.job + "\n" + arrival.token + "\n" + std::to_string(arrival.rank);
  return text + "\n" + std::to_string(arrival.generation);
}

std::optional<Arrival> decode_arrival(std::string_view text) {
  const auto lines = split(text, '\n');
  Arrival arrival;
  if (lines.size() != 5 || lines[0] != kMagic || !parse(lines[3], arrival.rank) ||
      !parse(lines[4], arrival.generation))
    return std::nullopt;
  arrival.job = lines[1];
  arrival.token = lines[2];
  return arrival;
}

/// The generation and the ranks.
std::string encode(const Survivors& survivors) {
  std::string text = std::to_string(survivors.generation);
  for (const std::uint32_t rank : survivors.ranks) text += " " + std::to_string(rank);
  return text;
}

std::optional<Survivors> decode_survivors(std::string_view text) {
  const auto words = split(text, ' ');
  Survivors out;
  if (words.size() < 2 || !parse(words[0], out.generation)) return std::nullopt;
  for (std::size_t i = 1; i < words.size(); ++i)
    if (!parse(words[i], out.ranks.emplace_back())) return std::nullopt;
  return out;
}

/// Whether the system of the peer says that its process is gone. A machine that does not answer
/// says nothing.
bool is_gone(const Error& error) {
  if (error.code() != ErrorCode::kUnavailable) return false;
  const std::string& text = error.message();
  if (text.find("closed the connection") != std::string::npos) return true;
  for (const auto code : {boost::asio::error::connection_refused,
                          boost::asio::error::connection_reset, boost::asio::error::broken_pipe}) {
    const boost::system::error_code named(code);
    if (text.find(named.message()) != std::string::npos) return true;
  }
  return false;
}

Task<Status> send(Connection& connection, FrameKind kind, std::string text) {
  transport::OutFrame frame;
  frame.kind = kind;
  frame.head = std::as_bytes(std::span(text));
  co_return co_await connection.write(frame);
}

std::string names_of(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (const std::uint32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

/// Waits for the ranks above this one.
class Meeting::Leader {
 public:
  Leader(Meeting& meeting, const Places& places, std::uint64_t generation,
         std::vector<std::uint32_t> missing)
      : meeting_(meeting),
        places_(places),
        generation_(generation),
        missing_(std::move(missing)),
        changed_(meeting.context_.get_executor()),
        tasks_(meeting.context_.get_executor()) {
    for (const auto& [rank, place] : places)
      if (rank > meeting.options_.rank) states_.try_emplace(rank);
  }

  static Task<Result<Survivors>> run(Leader* self) {
    const Deadline deadline = centroid::now() + self->meeting_.options_.patience;
    self->tasks_.spawn(accept(self));
    for (const auto& [rank, state] : self->states_) self->tasks_.spawn(watch(self, rank, deadline));
    while (!self->is_known() && centroid::now() < deadline)
      (void)co_await self->changed_.wait(deadline);
    const Result<Survivors> result = self->decide();
    const FrameKind kind = result.ok() ? kSurvivors : kRefused;
    const std::string text = result.ok() ? encode(*result) : result.error().message();
    for (auto& [rank, state] : self->states_)
      if (state.has_come()) (void)co_await send(*state.arrival, kind, text);
    self->tasks_.cancel();
    co_await self->tasks_.join();
    co_return result;
  }

 private:
  struct State {
    std::unique_ptr<Connection> arrival;
    bool is_gone = false, has_left = false;
    bool has_come() const { return arrival && !is_gone && !has_left; }
  };

  bool is_known() const {
    return std::ranges::all_of(
        states_, [](const auto& one) { return one.second.is_gone || one.second.has_come(); });
  }

  Result<Survivors> decide() const {
    Survivors survivors;
    survivors.generation = generation_ + 1;
    survivors.ranks = {meeting_.options_.rank};
    std::vector<std::uint32_t> missing = missing_;
    for (const auto& [rank, state] : states_) {
      if (state.has_come()) survivors.ranks.push_back(rank);
      if (!state.has_come() && !state.is_gone) missing.push_back(rank);
    }
    if (survivors.ranks.size() > missing.size()) return survivors;
    return Error(ErrorCode::kUnavailable,
                 "ranks " + names_of(missing) + " are silent, and no fewer than ranks " +
                     names_of(survivors.ranks) +
                     ": they may have gone on; restore a checkpoint on all");
  }

  static Task<void> accept(Leader* self) {
    while (true) {
      auto connection = co_await self->meeting_.listener_->accept();
      if (!connection.ok()) co_return;
      self->tasks_.spawn(answer(self, std::move(*connection)));
    }
  }

  static Task<void> answer(Leader* self, std::unique_ptr<Connection> connection) {
    const auto frame = co_await connection->read_header();
    if (!frame.ok() || frame->header.kind != kArrive || frame->header.payload_bytes != 0) co_return;
    const auto arrival = decode_arrival(text_of(*frame));
    const MeetingOptions& options = self->meeting_.options_;
    if (!arrival || arrival->job != options.job ||
        !transport::is_same_secret(options.token, arrival->token))
      co_return;
    const auto state = self->states_.find(arrival->rank);
    if (state == self->states_.end()) {
      const std::string why =
          "the others went on without rank " + std::to_string(arrival->rank) + ", which was silent";
      (void)co_await send(*connection, kRefused, why);
      co_return;
    }
    // It may have been queued since an earlier meeting.
    (void)co_await send(*connection, kAsk, "");
    const auto here = co_await connection->read_header();
    if (!here.ok() || here->header.kind != kHere || state->second.arrival) co_return;
    self->generation_ = std::max(self->generation_, arrival->generation);
    State& of_rank = state->second;
    of_rank.arrival = std::move(connection);
    self->changed_.notify_all();
    (void)co_await of_rank.arrival->read_header();
    of_rank.has_left = true;
  }

  /// A connection that ends when the process does.
  static Task<void> watch(Leader* self, std::uint32_t rank, Deadline deadline) {
    auto connected = co_await self->meeting_.transport_->connect(self->places_.at(rank), deadline);
    bool gone = !connected.ok() && client::is_gone(connected.error());
    if (connected.ok()) {
      const auto ended = co_await (*connected)->read_header();
      gone = !ended.ok() && client::is_gone(ended.error());
    }
    self->states_[rank].is_gone = gone;
    self->changed_.notify_all();
  }

  Meeting& meeting_;
  const Places& places_;
  std::uint64_t generation_;
  const std::vector<std::uint32_t> missing_;  ///< below this rank
  std::map<std::uint32_t, State> states_;     ///< of the ranks above
  Event changed_;
  TaskGroup tasks_;
};

/// Calls the ranks below this one.
class Meeting::Caller {
 public:
  static Task<Result<Survivors>> run(Meeting* meeting, const Places* places,
                                     std::uint64_t generation) {
    std::vector<std::uint32_t> missing;
    for (const auto& [rank, place] : *places) {
      if (rank >= meeting->options_.rank) break;
      auto told = co_await call(meeting, place, generation);
      if (told.ok() || told.error().code() == ErrorCode::kAborted) co_return told;
      if (!is_gone(told.error())) missing.push_back(rank);
    }
    Leader leader(*meeting, *places, generation, std::move(missing));
    co_return co_await Leader::run(&leader);
  }

 private:
  static Task<Result<Survivors>> call(Meeting* meeting, Endpoint place, std::uint64_t generation) {
    const MeetingOptions& options = meeting->options_;
    CENTROID_CO_ASSIGN(const auto connection, co_await meeting->transport_->connect(
                                                  place, centroid::now() + options.patience));
    // Longer than the leader waits for others.
    const Deadline deadline = centroid::now() + 2 * options.patience;
    Timer timer(meeting->context_.get_executor(), deadline);
    const auto is_over = std::make_shared<bool>(false);
    timer.async_wait([&connection, is_over](const boost::system::error_code& error) {
      if (error || *is_over) return;
      connection->close(Error(ErrorCode::kDeadlineExceeded, "no answer"));
    });
    Arrival arrival;
    arrival.job = options.job;
    arrival.token = options.token;
    arrival.rank = options.rank;
    arrival.generation = generation;
    (void)co_await send(*connection, kArrive, encode(arrival));
    auto frame = co_await connection->read_header();
    while (frame.ok() && frame->header.kind == kAsk) {
      (void)co_await send(*connection, kHere, "");
      frame = co_await connection->read_header();
    }
    *is_over = true;
    timer.cancel();
    if (!frame.ok()) co_return frame.error();
    const std::string text(text_of(*frame));
    const auto survivors = decode_survivors(text);
    if (frame->header.kind == kSurvivors && survivors) co_return *survivors;
    co_return Error(ErrorCode::kAborted, place.to_string() + ": " + text);
  }
};

Result<std::unique_ptr<Meeting>> Meeting::open(const std::string& host, MeetingOptions options) {
  std::unique_ptr<Meeting> made(new Meeting(std::move(options)));
  transport::TransportOptions with;
  with.limits.max_head_bytes = transport::kMaxHeadBytes;
  made->transport_ = transport::make_tcp(made->context_.get_executor(), with);
  made->place_.host = host;
  Endpoint here;
  here.host = listening_host(made->place_);
  CENTROID_ASSIGN(made->listener_, made->transport_->listen(here));
  made->place_.port = made->listener_->endpoint().port;
  return made;
}

Meeting::~Meeting() = default;

Result<Survivors> Meeting::meet(const Places& places, std::uint64_t generation) {
  context_.restart();
  auto survivors = boost::asio::co_spawn(
      context_, to_optional(Caller::run(this, &places, generation)), boost::asio::use_future);
  context_.run();
  return std::move(*survivors.get());
}

}  // namespace centroid::client
