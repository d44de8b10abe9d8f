#include "client/group_meeting.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "client/group_frames.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/handshake.h"

namespace centroid::client {

using transport::Connection;
using transport::Endpoint;

namespace {

constexpr std::string_view kMagic = "centroid meeting 3";
constexpr std::chrono::milliseconds kRetry{50};
constexpr std::string_view kEnded = "the job has ended";
constexpr std::size_t kMostStrangers = 256;

/// The job, the generation, the next number, and each member: number, place and address.
std::string encode(const Membership& members) {
  std::string text =
      members.job + "\n" + std::to_string(members.generation) + "\n" + std::to_string(members.next);
  for (const Member& one : members.members)
    text += "\n" + std::to_string(one.number) + " " + one.place.to_string() + " " + one.address;
  return text;
}

std::optional<Membership> decode_members(std::string_view text) {
  const auto lines = split(text, '\n');
  Membership out;
  if (lines.size() < 4 || !parse_number(lines[1], out.generation) ||
      !parse_number(lines[2], out.next))
    return std::nullopt;
  out.job = lines[0];
  for (std::size_t i = 3; i < lines.size(); ++i) {
    const auto words = split(lines[i], ' ', 3);
    Member& one = out.members.emplace_back();
    if (words.size() != 3 || !parse_number(words[0], one.number)) return std::nullopt;
    auto place = Endpoint::parse(words[1]);
    if (!place.ok()) return std::nullopt;
    one.place = std::move(*place);
    one.address = words[2];
  }
  return out;
}

std::string names_of(const std::vector<std::uint32_t>& numbers) {
  std::string text;
  for (const std::uint32_t one : numbers) text += (text.empty() ? "" : ", ") + std::to_string(one);
  return text;
}

std::map<std::string, std::string> parse_settings(const std::string& text) {
  std::map<std::string, std::string> out;
  for (const std::string& one : split(text, '\t')) {
    const auto parts = split(one, '=', 2);
    out[parts[0]] = parts.size() == 2 ? parts[1] : "";
  }
  return out;
}

}  // namespace

std::string difference(const std::string& of_job, const std::string& of_other) {
  const auto own = parse_settings(of_job);
  auto other = parse_settings(of_other);
  for (const auto& [name, value] : own)
    if (const std::string is = other[name]; is != value)
      return name + " is " + is + ", and " + value + " in the job: start it with the same settings";
  return own.size() == other.size() ? "" : "it has other settings: it is another version";
}

/// What a process says that comes: kMagic and these, a line each.
struct Meeting::Hello {
  std::string job, token;
  std::uint64_t generation = 0;
  Member member;  ///< the number: of a member
  std::string settings;

  std::string text() const {
    std::string out(kMagic);
    for (const std::string& line :
         {job, token, std::to_string(generation), std::to_string(member.number),
          member.place.to_string(), member.address, settings})
      out += "\n" + line;
    return out;
  }
  static std::optional<Hello> parse(std::string_view text) {
    const auto lines = split(text, '\n');
    Hello out;
    if (lines.size() != 8 || lines[0] != kMagic || !parse_number(lines[3], out.generation) ||
        !parse_number(lines[4], out.member.number))
      return std::nullopt;
    auto place = Endpoint::parse(lines[5]);
    if (!place.ok()) return std::nullopt;
    out.job = lines[1];
    out.token = lines[2];
    out.member.place = std::move(*place);
    out.member.address = lines[6];
    out.settings = lines[7];
    return out;
  }
  static Hello of(const Meeting& meeting) {
    Hello out;
    out.job = meeting.now_.job;
    out.token = meeting.options_.token;
    out.generation = meeting.now_.generation;
    out.member.number = meeting.number_;
    out.member.place = meeting.place_;
    out.settings = meeting.options_.settings;
    return out;
  }
};

bool Membership::has(std::uint32_t number) const {
  return std::ranges::find(members, number, &Member::number) != members.end();
}

/// Waits for the members above this one.
class Meeting::Leader {
 public:
  Leader(Meeting& meeting, std::vector<std::uint32_t> missing, Newcomers newcomers)
      : meeting_(meeting),
        missing_(std::move(missing)),
        newcomers_(newcomers),
        tasks_(meeting.io_.executor()) {
    for (const Member& one : meeting.now_.members)
      if (one.number > meeting.number_) above_.push_back(one);
  }

  static Task<Result<Membership>> run(Leader* self) {
    Meeting& meeting = self->meeting_;
    const Deadline deadline = centroid::now() + meeting.options_.patience;
    for (const Member& one : self->above_) self->tasks_.spawn(watch(self, one, deadline));
    while (!self->is_known() && centroid::now() < deadline)
      (void)co_await meeting.changed_.wait(deadline);
    const Result<Membership> result = self->decide();
    std::vector<std::shared_ptr<Connection>> callers, refused;
    for (const auto& [number, one] : std::exchange(meeting.arrivals_, {}))
      (result.ok() && !result->has(number) ? refused : callers).push_back(one.connection);
    if (result.ok() && self->newcomers_ == Newcomers::kTake) {
      for (const Newcomer& one : std::exchange(meeting.newcomers_, {}))
        callers.push_back(one.connection);
      meeting.waiting_ = 0;
    }
    if (result.ok()) meeting.adopt(*result);
    const GroupFrame kind = result.ok() ? GroupFrame::kMembers : GroupFrame::kRefused;
    const std::string text = result.ok() ? encode(*result) : result.error().message();
    const std::string why = "the others could not form a group with this worker";
    for (const auto& one : callers) (void)co_await answer_text(*one, kind, text);
    for (const auto& one : refused) (void)co_await answer_text(*one, GroupFrame::kRefused, why);
    self->tasks_.cancel();
    co_await self->tasks_.join();
    co_return result;
  }

 private:
  /// Stronger than what its place says, which may not be reached from here.
  bool has_come(std::uint32_t number) const { return meeting_.arrivals_.contains(number); }
  bool is_known() const {
    return std::ranges::all_of(above_, [&](const Member& one) {
      return gone_.contains(one.number) || has_come(one.number);
    });
  }

  Result<Membership> decide() const {
    Membership out = meeting_.now_;
    std::vector<std::uint32_t> missing = missing_, left = {meeting_.number_};
    std::erase_if(out.members, [&](const Member& one) { return one.number != meeting_.number_; });
    for (const Member& one : above_) {
      if (has_come(one.number)) {
        left.push_back(one.number);
        out.members.push_back(one);
        out.generation = std::max(out.generation, meeting_.arrivals_.at(one.number).generation);
      } else if (!gone_.contains(one.number)) {
        missing.push_back(one.number);
      }
    }
    const auto in_complete = [this](const std::vector<std::uint32_t>& numbers) {
      return std::ranges::count_if(
          numbers, [this](std::uint32_t one) { return meeting_.complete_.contains(one); });
    };
    // Others may know the last complete group only.
    if (left.size() <= missing.size() || in_complete(left) <= in_complete(missing))
      return Error(ErrorCode::kUnavailable,
                   "ranks " + names_of(missing) + " are silent, and no fewer than ranks " +
                       names_of(left) + ": they may have gone on; restore a checkpoint on all");
    ++out.generation;
    if (newcomers_ == Newcomers::kRefuse)
      std::erase_if(out.members,
                    [this](const Member& one) { return !meeting_.complete_.contains(one.number); });
    if (newcomers_ != Newcomers::kTake) return out;
    for (const Newcomer& one : meeting_.newcomers_) {
      out.members.push_back(one.member);
      out.members.back().number = out.next++;
    }
    return out;
  }

  /// A connection that ends when the process does.
  static Task<void> watch(Leader* self, Member member, Deadline deadline) {
    Meeting& meeting = self->meeting_;
    const auto ended =
        co_await ask_process(meeting.transport_.get(), member.place, GroupFrame::kWatch,
                             Hello::of(meeting).text(), deadline, deadline);
    if (!ended.ok() && client::is_gone(ended.error())) self->gone_.insert(member.number);
    meeting.changed_.notify_all();
  }

  Meeting& meeting_;
  const std::vector<std::uint32_t> missing_;  ///< below this member
  const Newcomers newcomers_;
  std::vector<Member> above_;
  std::set<std::uint32_t> gone_;
  TaskGroup tasks_;
};

/// Calls the members below this one.
class Meeting::Caller {
 public:
  static Task<Result<Membership>> run(Meeting* meeting, Newcomers newcomers) {
    const Membership last = meeting->now_;
    std::vector<std::uint32_t> missing;
    for (const Member& one : last.members) {
      if (one.number >= meeting->number_) break;
      auto told = co_await call(meeting, one.place);
      if (told.ok()) meeting->adopt(*told);
      if (told.ok() || told.error().code() == ErrorCode::kAborted) co_return told;
      if (!is_gone(told.error())) missing.push_back(one.number);
    }
    if (!meeting->complete_.contains(meeting->number_))
      co_return Error(ErrorCode::kUnavailable,
                      "the members that this worker came to are gone: start it again");
    Leader leader(*meeting, std::move(missing), newcomers);
    co_return co_await Leader::run(&leader);
  }

 private:
  static Task<Result<Membership>> call(Meeting* meeting, Endpoint place) {
    // The second one: longer than the leader waits for others.
    const auto patience = meeting->options_.patience;
    const Deadline connected = centroid::now() + patience, answered = connected + patience;
    CENTROID_CO_ASSIGN(const auto frame,
                       co_await ask_process(meeting->transport_.get(), place, GroupFrame::kMember,
                                            Hello::of(*meeting).text(), connected, answered));
    const auto members = decode_members(text_of(frame));
    if (is_kind(frame, GroupFrame::kMembers) && members) co_return *members;
    co_return Error(ErrorCode::kAborted, place.to_string() + ": " + std::string(text_of(frame)));
  }
};

Meeting::Meeting(MeetingOptions options)
    : options_(std::move(options)),
      strangers_(kMostStrangers),
      changed_(io_.executor()),
      tasks_(io_.executor()) {}

Result<std::unique_ptr<Meeting>> Meeting::open(const std::string& host, MeetingOptions options) {
  std::unique_ptr<Meeting> made(new Meeting(std::move(options)));
  made->transport_ = made->options_.make_transport(made->io_.executor(),
                                                   group_transport_options(made->options_.layer));
  made->place_.host = host;
  Endpoint here;
  here.host = listening_host(made->place_);
  CENTROID_ASSIGN(made->listener_, made->transport_->listen(here));
  made->place_.port = made->listener_->endpoint().port;
  call_on(made->io_.executor(), [self = made.get()] {
    answer_callers(
        self->tasks_, *self->listener_, self->strangers_,
        [self](std::shared_ptr<Connection> connection, transport::Strangers::Place& place,
               const transport::InFrame& frame) { return answer(self, connection, place, frame); });
  });
  return made;
}

Meeting::~Meeting() { io_.wait(stop(this)); }

Task<void> Meeting::stop(Meeting* self) {
  if (self->listener_) self->listener_->close();
  self->tasks_.cancel();
  co_await self->tasks_.join();
  self->arrivals_.clear();
  self->newcomers_.clear();
  self->redirector_.reset();
  self->listener_.reset();
  self->transport_.reset();
}

void Meeting::begin(Membership members) {
  call_on(io_.executor(), [&] { adopt(std::move(members)); });
  complete();
}

void Meeting::complete() {
  call_on(io_.executor(), [&] {
    complete_.clear();
    for (const Member& one : now_.members) complete_.insert(one.number);
  });
}

void Meeting::end() {
  const auto end_there = [](Meeting* self) -> Task<void> {
    self->has_ended_ = true;
    self->send_newcomers_to(self->place_);
    std::string text(kEnded);
    co_await refuse_all(self, text);
    const auto arrivals = std::exchange(self->arrivals_, {});
    for (const auto& [number, one] : arrivals)
      (void)co_await answer_text(*one.connection, GroupFrame::kRefused, text);
  };
  io_.wait(end_there(this));
}

Result<Membership> Meeting::join(const Endpoint& leader, const std::string& address,
                                 Deadline deadline) {
  return io_.wait(ask(this, leader, address, deadline));
}

Result<Membership> Meeting::meet(Newcomers newcomers) {
  return io_.wait(Caller::run(this, newcomers));
}

void Meeting::refuse_newcomers(const std::string& why) { io_.wait(refuse_all(this, why)); }

bool Meeting::leads() const {
  return !now_.members.empty() && now_.members.front().number == number_;
}

void Meeting::adopt(Membership members) {
  now_ = std::move(members);
  const auto own = std::ranges::find(now_.members, place_, &Member::place);
  number_ = own == now_.members.end() ? now_.next : own->number;
  if (!now_.members.empty()) send_newcomers_to(now_.members.front().place);
}

void Meeting::send_newcomers_to(const Endpoint& place) {
  if (!options_.rendezvous) return;
  if (!redirector_) {
    redirector_.emplace(io_.executor(), *transport_, *options_.rendezvous, options_.is_host,
                        options_.token);
    tasks_.spawn(Redirector::run(&*redirector_));
  }
  redirector_->set_leader(place);
}

Task<void> Meeting::answer(Meeting* self, std::shared_ptr<Connection> connection,
                           transport::Strangers::Place& place, const transport::InFrame& frame) {
  const auto hello = Hello::parse(text_of(frame));
  if (!hello) co_return;
  if (!transport::is_same_secret(self->options_.token, hello->token)) {
    (void)co_await answer_text(*connection, GroupFrame::kRefused, "the token is refused");
    co_return;
  }
  if (is_kind(frame, GroupFrame::kMember))
    place.admit_member();
  else
    place.greeted();  // the others may be any number, and ask again when they make room
  if (self->has_ended_ && !is_kind(frame, GroupFrame::kWatch)) {
    const std::string other = difference(self->options_.settings, hello->settings);
    const std::string why = other.empty() ? std::string(kEnded) : other;  // it is of another job
    (void)co_await answer_text(*connection, GroupFrame::kRefused, why);
    co_return;
  }
  const bool is_member = self->now_.job.empty() || hello->job == self->now_.job;
  if (is_kind(frame, GroupFrame::kNewcomer))
    co_await wait_newcomer(self, &*hello, connection);
  else if (is_kind(frame, GroupFrame::kMember) && is_member)
    co_await wait_member(self, &*hello, connection);
  else if (is_kind(frame, GroupFrame::kWatch) && is_member)
    (void)co_await connection->read_header();
}

Task<void> Meeting::wait_member(Meeting* self, const Hello* hello,
                                std::shared_ptr<Connection> connection) {
  const std::uint32_t number = hello->member.number;
  if (!self->now_.members.empty() && !self->now_.has(number)) {
    const std::string why =
        "the others went on without rank " + std::to_string(number) + ", which was silent";
    (void)co_await answer_text(*connection, GroupFrame::kRefused, why);
    co_return;
  }
  Arrival& own = self->arrivals_[number];
  own.generation = hello->generation;
  own.connection = connection;
  self->changed_.notify_all();
  (void)co_await connection->read_header();  // until it has its answer, or is gone
  const auto at = self->arrivals_.find(number);
  if (at != self->arrivals_.end() && at->second.connection == connection) self->arrivals_.erase(at);
}

Task<void> Meeting::wait_newcomer(Meeting* self, const Hello* hello,
                                  std::shared_ptr<Connection> connection) {
  if (!self->leads()) co_return;  // it asks again at the rendezvous
  const std::string other = difference(self->options_.settings, hello->settings);
  if (!other.empty()) {
    (void)co_await answer_text(*connection, GroupFrame::kRefused, other);
    co_return;
  }
  Newcomer one;
  one.member = hello->member;
  one.connection = connection;
  log::info("sharded.newcomer_came", {{"place", one.member.place.to_string()}});
  self->newcomers_.push_back(std::move(one));
  self->waiting_ = static_cast<std::uint32_t>(self->newcomers_.size());
  (void)co_await connection->read_header();  // until it has its answer, or is gone
  std::erase_if(self->newcomers_, [&](const Newcomer& it) { return it.connection == connection; });
  self->waiting_ = static_cast<std::uint32_t>(self->newcomers_.size());
}

Task<void> Meeting::refuse_all(Meeting* self, std::string why) {
  const auto newcomers = std::exchange(self->newcomers_, {});
  self->waiting_ = 0;
  for (const Newcomer& one : newcomers)
    (void)co_await answer_text(*one.connection, GroupFrame::kRefused, why);
}

Task<Result<Membership>> Meeting::ask(Meeting* self, Endpoint leader, std::string address,
                                      Deadline deadline) {
  Hello hello = Hello::of(*self);
  hello.member.address = std::move(address);
  auto connected = co_await self->transport_->connect(leader, deadline);
  std::optional<Result<transport::InFrame>> frame;
  if (connected.ok()) {
    (void)co_await send_text(**connected, GroupFrame::kNewcomer, hello.text(), deadline);
    frame.emplace(co_await read_text(**connected, deadline));
  }
  if (connected.ok() && frame->ok()) {
    const std::string text(text_of(**frame));
    const auto members = decode_members(text);
    if (is_kind(**frame, GroupFrame::kRefused) && text == kEnded) {
      self->has_ended_ = true;
      self->send_newcomers_to(self->place_);
      co_return Error(ErrorCode::kCancelled, "at " + leader.to_string() + " " + text);
    }
    if (!is_kind(**frame, GroupFrame::kMembers) || !members)
      co_return Error(ErrorCode::kFailedPrecondition,
                      "the job at " + leader.to_string() + " refuses this worker: " + text);
    self->adopt(*members);
    co_return *members;
  }
  const Error& why = connected.ok() ? frame->error() : connected.error();
  if (why.code() == ErrorCode::kDeadlineExceeded)
    co_return Error(ErrorCode::kDeadlineExceeded,
                    "the job at " + leader.to_string() +
                        " took no newcomer in time; it does after " +
                        "each step: raise --join-timeout above the time of a step");
  (void)co_await sleep_until(centroid::now() + kRetry);
  co_return Error(ErrorCode::kUnavailable,
                  "the job at " + leader.to_string() + ": " + why.message());
}

}  // namespace centroid::client
