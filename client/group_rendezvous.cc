#include "client/group_rendezvous.h"

#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/io_context.hpp>

#include "client/group_frames.h"
#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "transport/handshake.h"

namespace centroid::client {

using transport::Connection;
using transport::Endpoint;
using transport::InFrame;

namespace {

constexpr std::chrono::milliseconds kRetry{50};
constexpr std::chrono::seconds kHandover{3};  ///< from one Redirector to another
constexpr std::chrono::seconds kAgree{10};    ///< members of a job on its leader, after a meeting
constexpr std::size_t kMostCallers = 256;
constexpr std::string_view kMagic = "centroid group 2";

/// Between calls of a Redirector, and for an answer.
std::chrono::milliseconds poll_time(const Endpoint& rendezvous) {
  return std::chrono::milliseconds(rendezvous.is_loopback() ? 100 : 500);
}
/// Until every Redirector has called one that listens, also where it called another machine before.
std::chrono::milliseconds quiet_time(const Endpoint& rendezvous) {
  return 4 * poll_time(rendezvous);
}

/// What a rank says: kMagic, rank, world, token and address, a line each.
struct Arrival {
  std::uint32_t rank = 0, world = 0;
  std::string token, address;
};

std::optional<Arrival> parse_arrival(const InFrame& frame) {
  const auto lines = split(text_of(frame), '\n');
  Arrival arrival;
  if (!is_kind(frame, GroupFrame::kArrive) || lines.size() != 5 || lines[0] != kMagic ||
      !parse_number(lines[1], arrival.rank) || !parse_number(lines[2], arrival.world))
    return std::nullopt;
  arrival.token = lines[3];
  arrival.address = lines[4];
  return arrival;
}

/// What a job that has begun says: kMagic, token and the leader's place. Nothing: not that, or
/// another token.
std::optional<Endpoint> parse_running(const InFrame& frame, const std::string& token) {
  const auto lines = split(text_of(frame), '\n');
  if (!is_kind(frame, GroupFrame::kRunning) || lines.size() != 3 || lines[0] != kMagic ||
      !transport::is_same_secret(token, lines[1]))
    return std::nullopt;
  auto leader = Endpoint::parse(lines[2]);
  if (!leader.ok()) return std::nullopt;
  return std::move(*leader);
}

std::string running_text(const std::string& token, const Endpoint& leader) {
  return std::string(kMagic) + "\n" + token + "\n" + leader.to_string();
}

/// Rank 0: waits until every rank has said its address, or a job that has begun calls.
class Collection {
 public:
  Collection(const PeerOptions& options, Executor executor, const std::string& address)
      : options_(options),
        transport_(options.make_transport(executor, group_transport_options(options.layer))),
        changed_(executor),
        tasks_(executor),
        addresses_(options.world),
        connections_(options.world) {
    addresses_[0] = address;
    strangers_.lend_while([] { return true; });  // nothing is trained yet
  }

  /// `rendezvous`: as others call it.
  static Task<Result<Found>> run(Collection* self, Endpoint place, Endpoint rendezvous,
                                 TimePoint deadline) {
    CENTROID_CO_ASSIGN(const auto listener, self->transport_->listen(place));
    answer_callers(self->tasks_, *listener, self->strangers_,
                   [self](std::shared_ptr<Connection> connection, transport::Strangers::Place& one,
                          const InFrame& frame) { return answer(self, connection, one, frame); });
    TimePoint quiet = centroid::now();
    if (self->options_.may_be_newcomer) {
      (void)co_await self->transport_->resolve(rendezvous);  // as others do
      quiet += quiet_time(rendezvous) + 2 * (centroid::now() - quiet);
    }
    while (!self->leader_ && centroid::now() < deadline) {
      const bool all_came = self->missing().empty();
      if (all_came && centroid::now() >= quiet) break;
      (void)co_await self->changed_.wait(all_came ? std::min(quiet, deadline) : deadline);
    }
    const std::string missing = self->missing();
    std::string why = missing + " did not come to " + place.to_string() + " within " +
                      std::to_string(self->options_.timeout.count()) + " ms";
    if (const std::string& refused = self->strangers_.last_refusal(); !refused.empty())
      why += "; a connection was refused: " + refused;
    Status result;
    if (!self->leader_ && !missing.empty()) result = Error(ErrorCode::kDeadlineExceeded, why);
    co_await answer_all(self, &result);
    listener->close();
    self->tasks_.cancel();
    co_await self->tasks_.join();
    CENTROID_CO_TRY(std::move(result));
    Found found;
    if (self->leader_)
      found.leader = *self->leader_;
    else
      found.addresses = self->addresses_;
    co_return found;
  }

 private:
  static Task<void> answer_all(Collection* self, const Status* result) {
    GroupFrame kind = GroupFrame::kAddresses;
    std::string text;
    for (const std::string& one : self->addresses_) text += (text.empty() ? "" : "\n") + one;
    if (self->leader_) {
      kind = GroupFrame::kRunning;
      text = running_text(self->options_.token, *self->leader_);
    }
    for (const auto& connection : self->connections_) {
      if (connection && !result->ok())
        (void)co_await answer_error(*connection, result->error());
      else if (connection)
        (void)co_await answer_text(*connection, kind, text);
    }
  }

  static Task<void> answer(Collection* self, std::shared_ptr<Connection> connection,
                           transport::Strangers::Place& place, const InFrame& frame) {
    if (auto leader = parse_running(frame, self->options_.token);
        leader && self->options_.may_be_newcomer) {
      self->leader_ = std::move(*leader);
      self->changed_.notify_all();
    }
    const auto arrival = parse_arrival(frame);
    if (!arrival) co_return;
    const std::string refusal = self->refusal_of(*arrival);
    if (!refusal.empty()) {
      (void)co_await answer_text(*connection, GroupFrame::kRefused, refusal);
      co_return;
    }
    place.admit_member();
    self->addresses_[arrival->rank] = arrival->address;
    const auto before = std::exchange(self->connections_[arrival->rank], connection);
    self->changed_.notify_all();
    if (before)
      (void)co_await answer_text(*before, GroupFrame::kRefused,
                                 "another process came as rank " + std::to_string(arrival->rank));
  }

  std::string refusal_of(const Arrival& arrival) const {
    if (!transport::is_same_secret(options_.token, arrival.token)) return "the token is refused";
    if (arrival.world != options_.world)
      return "rank " + std::to_string(arrival.rank) + " has world " +
             std::to_string(arrival.world) + ", rank 0 has " + std::to_string(options_.world);
    if (arrival.rank == 0 || arrival.rank >= options_.world)
      return "rank " + std::to_string(arrival.rank) + " is taken or not below the world of " +
             std::to_string(options_.world);
    return "";
  }

  /// "ranks 2, 5"; empty: none.
  std::string missing() const {
    std::string text;
    for (std::size_t rank = 0; rank < addresses_.size(); ++rank)
      if (addresses_[rank].empty()) text += (text.empty() ? "rank " : ", ") + std::to_string(rank);
    return text;
  }

  const PeerOptions& options_;
  const std::unique_ptr<transport::Transport> transport_;
  transport::Strangers strangers_{kMostCallers};
  Event changed_;
  TaskGroup tasks_;
  std::vector<std::string> addresses_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::optional<Endpoint> leader_;  ///< of the job that has begun
};

/// The other ranks: call rank 0 until it answers.
class Caller {
 public:
  Caller(const PeerOptions& options, Executor executor)
      : options_(options),
        transport_(options.make_transport(executor, group_transport_options(options.layer))) {}

  static Task<Result<Found>> run(Caller* self, Endpoint place, std::string address,
                                 TimePoint deadline) {
    while (true) {
      auto tried = co_await try_once(self, place, address, deadline);
      if (!tried.ok() && is_refused(tried.error()))
        co_return Error(
            ErrorCode::kFailedPrecondition,
            "no TLS with rank 0 at " + place.to_string() + ": " + tried.error().message());
      const bool is_late = centroid::now() >= deadline;  // else rank 0 says who did not come
      const bool may_come =
          !tried.ok() && (tried.error().code() == ErrorCode::kUnavailable ||
                          tried.error().code() == ErrorCode::kResourceExhausted ||
                          (is_late && tried.error().code() == ErrorCode::kDeadlineExceeded));
      if (!may_come) co_return tried;
      const TimePoint again = centroid::now() + kRetry;
      if (again < deadline) {
        const bool goes_on = co_await sleep_until(again);
        if (!goes_on) co_return tried;
      }
      if (again >= deadline || centroid::now() >= deadline) {
        co_return Error(ErrorCode::kDeadlineExceeded,
                        "rank 0 did not answer at " + place.to_string() + " within " +
                            std::to_string(self->options_.timeout.count()) +
                            " ms: " + tried.error().message());
      }
    }
  }

 private:
  static Task<Result<Found>> try_once(Caller* self, Endpoint place, std::string address,
                                      TimePoint deadline) {
    CENTROID_CO_ASSIGN(const auto connection, co_await self->transport_->connect(place, deadline));
    const PeerOptions& options = self->options_;
    std::string hello(kMagic);
    hello += "\n" + std::to_string(options.rank) + "\n" + std::to_string(options.world);
    hello += "\n" + options.token + "\n" + address;
    (void)co_await send_text(*connection, GroupFrame::kArrive, std::move(hello), deadline);
    CENTROID_CO_ASSIGN(const auto frame, co_await read_text(*connection, deadline + kRetry));
    const auto refuse = [&](const std::string& why) {
      return Error(ErrorCode::kFailedPrecondition, place.to_string() + why);
    };
    Found found;
    if (is_kind(frame, GroupFrame::kRefused))
      co_return refuse(" refuses: " + std::string(text_of(frame)));
    if (const auto leader = parse_running(frame, options.token)) {
      if (!options.may_be_newcomer)
        co_return refuse(": a job has begun there; it takes only workers of exchange sharded");
      found.leader = *leader;
      co_return found;
    }
    found.addresses = split(text_of(frame), '\n');
    if (!is_kind(frame, GroupFrame::kAddresses) || found.addresses.size() != options.world)
      co_return refuse(" is no rank 0 of a Centroid group");
    co_return found;
  }

  const PeerOptions& options_;
  const std::unique_ptr<transport::Transport> transport_;
};

}  // namespace

Result<Found> find_group(const PeerOptions& options, const Endpoint& place,
                         const std::string& address) {
  if (options.token.find('\n') != std::string::npos)
    return Error(ErrorCode::kInvalidArgument, "the token has a line break");
  if (options.world == 1) return Found{{address}, {}};
  const TimePoint deadline = centroid::now() + options.timeout;
  boost::asio::io_context context{1};
  const auto run = [&context](Task<Result<Found>> task) {
    Pending<Result<Found>> found(context.get_executor(), std::move(task));
    while (!found.is_done()) run_one_until(context, TimePoint::max());
    return found.get();
  };
  const auto call = [&](TimePoint until) {
    Caller caller(options, context.get_executor());
    return run(Caller::run(&caller, place, address, until));
  };
  if (options.rank != 0) return call(deadline);
  Endpoint here = place;
  here.host = listening_host(place);
  const auto collect = [&] {
    Collection collection(options, context.get_executor(), address);
    return run(Collection::run(&collection, here, place, deadline));
  };
  auto found = collect();
  if (found.ok() || found.error().code() != ErrorCode::kAlreadyExists || !options.may_be_newcomer)
    return found;
  // A member of a job that has begun listens there, or did until now.
  auto begun = call(std::min<TimePoint>(deadline, centroid::now() + kHandover));
  if (begun.ok()) return begun;
  if (begun.error().code() == ErrorCode::kDeadlineExceeded) found = collect();
  if (found.ok() || found.error().code() != ErrorCode::kAlreadyExists) return found;
  return Error(ErrorCode::kAlreadyExists,
               found.error().message() + "; what listens there: " + begun.error().message());
}

Redirector::Redirector(Executor executor, transport::Transport& transport, Endpoint rendezvous,
                       bool is_host, std::string token)
    : rendezvous_(std::move(rendezvous)),
      here_{is_host ? listening_host(rendezvous_) : rendezvous_.host, rendezvous_.port},
      token_(std::move(token)),
      may_listen_(is_host || is_literal(rendezvous_.host)),
      transport_(transport),
      strangers_(kMostCallers),
      tasks_(executor) {}

Redirector::~Redirector() = default;

std::string Redirector::text() const { return running_text(token_, leader_); }

Task<void> Redirector::run(Redirector* self) {
  const auto poll = poll_time(self->rendezvous_);
  for (bool goes_on = true; goes_on && !self->listener_;) {
    if (!self->is_answered_ && !self->listens() && !self->is_resolving_)
      self->tasks_.spawn(find(self));
    goes_on = co_await sleep_until(centroid::now() + poll);
  }
  while (co_await sleep_until(TimePoint::max())) {
  }
  self->tasks_.cancel();
  co_await self->tasks_.join();
}

/// Try to be the one that listens.
bool Redirector::listens() {
  // A name would be resolved on the thread that answers members, which may take long.
  if (!may_listen_) return false;
  auto listener = transport_.listen(here_);
  if (!listener.ok()) return false;
  listener_ = std::move(*listener);
  answer_callers(tasks_, *listener_, strangers_,
                 [this](std::shared_ptr<Connection> connection, transport::Strangers::Place& place,
                        const InFrame& frame) { return answer(this, connection, place, frame); });
  return true;
}

Task<void> Redirector::answer(Redirector* self, std::shared_ptr<Connection> connection,
                              transport::Strangers::Place& place, const InFrame& frame) {
  const auto arrival = parse_arrival(frame);
  if (!arrival) {
    if (!parse_running(frame, self->token_)) co_return;
    place.greeted();
    for (bool goes_on = true; goes_on;) {
      (void)co_await answer_text(*connection, GroupFrame::kRunning, self->text());
      const auto next = co_await connection->read_header();
      goes_on = next.ok();
    }
    co_return;
  }
  const bool is_known = transport::is_same_secret(self->token_, arrival->token);
  if (is_known) place.greeted();
  if (is_known)
    (void)co_await answer_text(*connection, GroupFrame::kRunning, self->text());
  else
    (void)co_await answer_text(*connection, GroupFrame::kRefused, "the token is refused");
  (void)co_await read_text(*connection, centroid::now() + kAnswer);  // until it has read that
}

/// Each call is beside earlier ones, which may wait for a machine that is gone.
Task<void> Redirector::find(Redirector* self) {
  self->is_resolving_ = true;
  const auto places = co_await self->transport_.resolve(self->rendezvous_);
  self->is_resolving_ = false;
  if (!places.ok()) co_return;
  for (const Endpoint& place : *places) self->tasks_.spawn(call(self, place));
}

/// As long as another Redirector answers there.
Task<void> Redirector::call(Redirector* self, Endpoint place) {
  const auto poll = poll_time(self->rendezvous_);
  TimePoint until = centroid::now() + 2 * poll;
  auto connected = co_await self->transport_.connect(place, until);
  if (!connected.ok() || self->is_answered_) co_return;
  self->is_answered_ = true;
  TimePoint agreed = centroid::now();
  for (bool goes_on = true; goes_on;) {
    until = centroid::now() + kAnswer;  // with TLS its handshake comes first
    (void)co_await send_text(**connected, GroupFrame::kRunning, self->text(), until);
    until = centroid::now() + poll;
    const auto answer = co_await read_text(**connected, until);
    if (!answer.ok()) break;
    self->compare(parse_running(*answer, self->token_), agreed);
    goes_on = co_await sleep_until(centroid::now() + poll);
  }
  self->is_answered_ = false;
}

/// Members of one job agree soon after each meeting. `agreed`: when they did last.
void Redirector::compare(const std::optional<Endpoint>& leader, TimePoint& agreed) {
  if (!leader || *leader == leader_) {
    agreed = centroid::now();
  } else if (centroid::now() - agreed > kAgree && !std::exchange(has_warned_, true)) {
    log::warn("sharded.other_job", {{"rendezvous", rendezvous_.to_string()},
                                    {"leader", leader_.to_string()},
                                    {"other", leader->to_string()}});
  }
}

}  // namespace centroid::client
