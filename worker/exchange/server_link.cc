#include "worker/exchange/server_link.h"

#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/base/version.h"
#include "transport/echo.h"

namespace centroid::worker {

using proto::Kind;
using transport::InFrame;
using transport::Session;

namespace {

constexpr std::chrono::seconds kJoin{30}, kLeave{2};
/// The last worker that holds the newest state gives it to the server.
constexpr std::chrono::seconds kLeaveWithState{12};

std::vector<std::byte> beat_now() {
  proto::Beat beat;
  beat.unix_seconds = SystemClock().unix_seconds();
  beat.version = kVersion;
  return proto::encode(beat);
}

/// The server leads in the highest term that this worker has followed, `term`, or in a later one.
Status check_term(const proto::JoinReply& reply, std::uint64_t term,
                  const transport::Endpoint& server) {
  if (reply.term >= term) return {};
  return Error(ErrorCode::kUnavailable, server.to_string() + " leads in term " +
                                            std::to_string(reply.term) +
                                            ", this worker has followed term " +
                                            std::to_string(term) + ": that server is deposed");
}

}  // namespace

ServerLink::ServerLink(Executor executor, std::unique_ptr<transport::Transport> transport,
                       ClusterOptions options, ExchangeMemory memory, Mailbox& mailbox,
                       metrics::Registry& registry)
    : link_(executor, std::move(transport), std::move(options), std::move(memory), mailbox,
            registry),
      round_(link_),
      routes_(link_, round_),
      star_(link_, round_, routes_),
      peers_(link_, round_),
      state_(link_, round_),
      connector_(executor, {.servers = link_.options.servers,
                            .timeout = link_.options.join_timeout,
                            .timeout_name = "--join-timeout",
                            .longest_pause = std::chrono::seconds(5)}),
      joined_(executor) {}

Task<void> ServerLink::run() {
  const Status opened = star_.open();
  if (!opened.ok()) co_return link_.mailbox.push({opened.error()});
  for (;;) {
    const bool may_join = co_await round_.loop_in_next();  // a join may use the loop's memory
    if (!may_join || ending_) co_return;
    Error failure(ErrorCode::kInternal, "");
    auto greeting = link_.greeting();
    auto session = co_await connector_.connect(*link_.transport, std::move(greeting));
    if (!session.ok())
      failure = session.error();
    else if (ending_)  // asked to end during the handshake: not to join any more
      session.value()->close(Error(ErrorCode::kCancelled, "the worker is stopping"));
    else
      failure = co_await serve(*session.value());
    if (ending_) co_return;
    if (std::exchange(is_joined_, false)) {
      if (link_.options.membership) link_.options.membership(false);
      link_.mailbox.push({LinkEvent::Lost{failure}});
      link_.counters.reconnects.add();
    }
    const Status again = co_await connector_.retry(failure);
    if (ending_) co_return;
    if (!again.ok()) co_return link_.mailbox.push({again.error()});
  }
}

Task<Error> ServerLink::serve(Session& session) {
  TaskGroup children(link_.executor);
  link_.leader = &session;
  link_.tasks = &children;
  auto start = [](ServerLink* self, Session* s, TaskGroup* group) -> Task<void> {
    const Status joined = co_await self->join(*s);
    if (!joined.ok()) co_return s->close(joined.error());
    group->spawn(self->heartbeats(*s));
    group->spawn(self->send_contributions(*s));
  };
  children.spawn(start(this, &session, &children));
  const Error cause = co_await session.run(*this);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session.close(cause);
  link_.leader = nullptr;
  round_.disconnected();
  state_.disconnected();
  joined_.notify_all();
  routes_.close(cause);
  children.cancel();
  co_await children.join();
  link_.counters.add_ended(session.connection().traffic(), true);
  co_return cause;
}

Task<Status> ServerLink::join(Session& session) {
  const auto head = proto::encode(link_.options.join);
  const auto kind = static_cast<std::uint16_t>(Kind::kJoin);
  if (!link_.options.join.node.empty()) session.accept_without_crc();
  const TimePoint limit = std::min(connector_.time_limit(), now() + kJoin);
  const auto manifest = proto::encode_manifest(link_.options.join.manifest);
  const auto reply = co_await session.request(kind, head, manifest, limit);
  if (!reply.ok()) co_return reply.error();
  CENTROID_CO_ASSIGN(auto terms, proto::decode<proto::JoinReply>(reply->head));
  CENTROID_CO_TRY(accept_terms(std::move(terms)));
  connector_.joined();
  log::info("cluster.joined",
            {{"server", connector_.present().to_string()},
             {"run_id", link_.model.terms().run_id},
             {"member", link_.model.terms().member.value},
             {"apply", link_.model.terms().apply_on_worker ? "worker" : "server"}});
  if (link_.model.terms().no_payload_crc) session.send_unsummed();
  is_joined_ = true;
  if (link_.options.membership) link_.options.membership(true);
  joined_.notify_all();
  co_return Status();
}

Status ServerLink::accept_terms(proto::JoinReply terms) {
  CENTROID_TRY(check_term(terms, term_, connector_.present()));
  term_ = terms.term;
  if (!joined_once_) {
    CENTROID_TRY(open_model(terms));
  } else {
    CENTROID_TRY(link_.model.check_unchanged(terms));
  }
  link_.model.set_terms(std::move(terms));
  link_.counters.update([&](CodecTotals& totals) {
    totals.codec = star_.codec();
    totals.codec_down = link_.model.terms().codec_down;
  });
  joined_once_ = true;
  link_.feedback.settle(link_.model.terms().counted);
  round_.joined();
  routes_.clear();
  if (link_.peers() == nullptr) return {};
  CENTROID_ASSIGN(const bool is_kept, peers_.configure(star_.codec()));
  if (FeedbackKeeper* const keeper = link_.feedback.keeper(); keeper != nullptr && !is_kept)
    keeper->broken();
  return {};
}

/// What stays as it is for all later joins.
Status ServerLink::open_model(const proto::JoinReply& terms) {
  CENTROID_TRY(link_.model.open(terms));
  CENTROID_ASSIGN(const CodecSpec spec, CodecSpec::parse(link_.options.join.codec));
  if (terms.fragments > 1 && spec.scope == Scope::kGlobal)
    return Error(ErrorCode::kFailedPrecondition,
                 "codec " + link_.options.join.codec +
                     " selects from all tensors at once, but the server has them sent in " +
                     std::to_string(terms.fragments) + " fragments: leave scope=global away");
  CENTROID_TRY(link_.feedback.open(terms, spec, link_.model.plan()));
  if (link_.feedback.keeper() != nullptr) state_.opened();
  return {};
}

Task<void> ServerLink::heartbeats(Session& session) {
  const std::chrono::milliseconds lease(link_.model.terms().lease_ms);
  const auto kind = static_cast<std::uint16_t>(Kind::kHeartbeat);
  transport::Pulse pulse = connector_.pulse(lease);
  while (!session.is_closed()) {  // the first at once: operators want to know of us
    const auto head = beat_now();
    (void)co_await session.send(kind, head, Bytes(), now() + lease);
    const bool goes_on = co_await pulse.rest();
    if (!goes_on) co_return;
    link_.counters.set_live(session.connection().traffic());
    const Status heard = pulse.check(session.connection().last_received(), "the server");
    if (!heard.ok()) co_return session.close(heard.error());
  }
}

Task<void> ServerLink::send_contributions(Session& session) {
  while (!session.is_closed()) {
    const auto open = round_.begin_sending();
    if (!open) {
      const bool goes_on = co_await round_.changed();
      if (!goes_on) co_return;
      continue;
    }
    Status sent;
    if (round_.is_among_peers())
      sent = co_await peers_.add(session, *open);
    else
      sent = co_await star_.send(session, *open);
    const Status next = round_.end_sending();
    if (!sent.ok()) co_return session.close(sent.error());
    if (!next.ok()) co_return session.close(next.error());
  }
}

Task<Status> ServerLink::on_frame(Session& session, InFrame frame) {
  while (!is_joined_ && !session.is_closed())
    if (!co_await joined_.wait(TimePoint::max()))
      co_return Error(ErrorCode::kCancelled, "the session is over");
  if (frame.header.kind == transport::kEcho)  // an operator has the network measured
    co_return co_await transport::answer_echo(session, frame);
  const bool is_request = (frame.header.flags & transport::kFlagRequest) != 0;
  CENTROID_CO_TRY(proto::check_frame(frame.header.kind, is_request, frame.head.size(),
                                     frame.header.payload_bytes));
  if (frame.header.kind == static_cast<std::uint16_t>(proto::ServersKind::kRoute)) {
    CENTROID_CO_ASSIGN(auto route, proto::decode<proto::Route>(frame.head));
    co_return co_await routes_.adopt(std::move(route));
  }
  if (frame.header.kind == static_cast<std::uint16_t>(proto::AboutKind::kMeasure))
    co_return peers_.measure(frame);
  co_return co_await take_message(session, std::move(frame));
}

Task<Status> ServerLink::take_message(Session& session, InFrame frame) {
  const std::uint64_t bytes = frame.header.payload_bytes;
  switch (static_cast<Kind>(frame.header.kind)) {
    case Kind::kHeartbeat:
      co_return state_.beat_answered(frame.head);
    case Kind::kInitRequest:
      link_.model.initialize();
      link_.tasks->spawn(state_.send_initial(session));
      co_return Status();
    case Kind::kStateChunk: {
      CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::StateChunk>(frame.head));
      co_return co_await state_.receive(session, head, bytes);
    }
    case Kind::kPeers: {
      CENTROID_CO_ASSIGN(auto peers, proto::decode<proto::Peers>(frame.head));
      co_return peers_.set_peers(std::move(peers));
    }
    case Kind::kStateRequest: {
      CENTROID_CO_ASSIGN(const auto mark, proto::decode<proto::StateMark>(frame.head));
      link_.tasks->spawn(state_.send(session, mark.version));
      co_return Status();
    }
    case Kind::kRoundOpen: {
      CENTROID_CO_ASSIGN(const auto open, proto::decode<proto::RoundOpen>(frame.head));
      co_return round_.open(open);
    }
    case Kind::kResult: {
      CENTROID_CO_ASSIGN(const auto head, proto::decode<proto::ResultChunk>(frame.head));
      co_return co_await routes_.receive_result(session, head, bytes);
    }
    case Kind::kRoundClosed: {
      CENTROID_CO_ASSIGN(auto closed, proto::decode<proto::RoundClosed>(frame.head));
      CENTROID_CO_TRY(co_await routes_.await_results(session, closed));
      co_return round_.close(std::move(closed));
    }
    case Kind::kKeep: {
      CENTROID_CO_ASSIGN(const auto keep, proto::decode<proto::Keep>(frame.head));
      state_.save(keep.round);
      if (link_.model.terms().local_steps > 1) link_.mailbox.push({keep});
      co_return Status();
    }
    case Kind::kWait: {
      CENTROID_CO_ASSIGN(const auto wait, proto::decode<proto::Wait>(frame.head));
      log::info("round.stalled", {{"ms", wait.ms}, {"why", wait.what}});
      co_return Status();
    }
    case Kind::kFinish: {
      CENTROID_CO_ASSIGN(auto finish, proto::decode<proto::Finish>(frame.head));
      link_.mailbox.push({std::move(finish)});
      co_return Status();
    }
    default:
      co_return Error(
          ErrorCode::kInvalidArgument,
          "unexpected message kind " + std::to_string(frame.header.kind) + " from the server");
  }
}

void ServerLink::loop_waits(std::uint64_t serial) {
  round_.loop_waits(serial);
  if (const auto computed = round_.take_computed())
    link_.post(Kind::kReady, proto::encode(*computed));
}

void ServerLink::report(const Evaluation& evaluation) {
  proto::Report report;
  report.version = evaluation.version;
  report.samples = evaluation.samples;
  report.correct = evaluation.correct;
  report.loss_sum = proto::wire_loss(evaluation.loss_sum);
  link_.post(Kind::kReport, proto::encode(report));
}

void ServerLink::end(std::string reason) {
  ending_ = true;
  state_.end();
  round_.end();
  connector_.stop();
  if (link_.leader == nullptr) return;
  if (is_joined_)
    link_.tasks->spawn(leave(*link_.leader, std::move(reason)));
  else
    link_.leader->close(Error(ErrorCode::kCancelled, std::move(reason)));
}

/// A child of the session, so that it does not outlive it.
Task<void> ServerLink::leave(Session& session, std::string reason) {
  proto::Leave leave;
  leave.reason = reason;
  const auto head = proto::encode(leave);
  const auto kind = static_cast<std::uint16_t>(Kind::kLeave);
  const auto patience = link_.peers() != nullptr ? kLeaveWithState : kLeave;
  (void)co_await session.request(kind, head, Bytes(), now() + patience);
  session.close(Error(ErrorCode::kCancelled, reason));
}

transport::TrafficCounters ServerLink::traffic() const {
  transport::TrafficCounters sum = link_.counters.traffic();
  if (!link_.options.peers) return sum;
  const auto among_peers = link_.options.peers->traffic();
  sum.bytes_in += among_peers.bytes_in;
  sum.bytes_out += among_peers.bytes_out;
  return sum;
}

void ServerLink::save_feedback() {
  link_.feedback.measure_residual();
  link_.feedback.leave();
}

}  // namespace centroid::worker
