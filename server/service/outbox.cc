#include "server/service/outbox.h"

#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "server/service/kept.h"

namespace centroid::server {

using proto::Kind;
using transport::Session;

namespace {

template <class M>
Task<Status> send(Session& session, Kind kind, M message) {
  const auto head = proto::encode(message);
  co_return co_await session.send_soon(static_cast<std::uint16_t>(kind), head, Bytes(),
                                       TimePoint::max());
}

}  // namespace

Task<void> Outbox::outbox(std::shared_ptr<WorkerSession> worker, Session& session) {
  Status ended = co_await outbox_loop(worker, session);
  if (ended.ok())
    if (const auto flushed = co_await session.flush(); !flushed.ok()) ended = flushed.error();
  attempts_.results_taken();
  // A session that is over has its Goodbye on the way.
  if (!ended.ok() && !session.is_closed()) session.close(ended.error());
}

/// Into `attempt`, with the state that it begins with. It stays empty where that was of no use any
/// more.
Task<Status> Outbox::open_round(std::shared_ptr<WorkerSession> worker, Session& session,
                                std::shared_ptr<Attempt>& attempt) {
  // Of this attempt, though it may be over when the state is there.
  proto::RoundOpen open = open_.attempt->opens[*open_.attempt->rank_of(worker->id)];
  if (worker->optimizer == open_.attempt->optimizer) open.rates.learning_rate = -1;
  if (policy_.is_elastic()) {
    const Attempt::Key key = open_.attempt->key();
    if (worker->version != open_.attempt->version) {
      CENTROID_CO_TRY(co_await session.flush());
      CENTROID_CO_ASSIGN(const bool is_there,
                         co_await images_.transfer_state(worker, session, key));
      if (!is_there) co_return Status();
    }
    if (!worker->late) {
      open_.machine.forgive(worker->id);
      worker->pace.opened = key;
      attempt = open_.attempt;
    }
  } else {
    attempt = open_.attempt;
    if (worker->version != attempt->version) {
      CENTROID_CO_TRY(co_await session.flush());
      CENTROID_CO_TRY(co_await send_state(worker, session, attempt->version));
    }
    worker->pace.opened = attempt->key();
    worker->pace.opened_at = clock_.now();
    worker->pace.silence = {};
  }
  if (attempt)
    worker->local.begin(attempt->round, job_.shard->fragments().turn(attempt->optimizer_step));
  worker->results.sent = 0;
  worker->results.attempt = attempt;
  if (attempt && attempt->among_peers && worker->told != attempt->generation) {
    worker->told = attempt->generation;
    const proto::Peers peers = attempt->peers;
    CENTROID_CO_TRY(co_await send(session, Kind::kPeers, peers));
  }
  if (worker->route != spread_.route.version && !spread_.route.servers.empty()) {
    worker->route = spread_.route.version;
    if (!worker->is_told_of) round_servers_.tell_opened();  // it goes there next
    const proto::Route route = spread_.route;
    const auto head = proto::encode(route);
    const auto kind = static_cast<std::uint16_t>(proto::ServersKind::kRoute);
    CENTROID_CO_TRY(co_await session.send_soon(kind, head, Bytes(), TimePoint::max()));
  }
  if (open.evaluate) {
    worker->evaluations.asked.push_back(open.version);
    worker->evaluations.asked_at = clock_.now();
  }
  CENTROID_CO_TRY(co_await send(session, Kind::kRoundOpen, open));
  co_return Status();
}

Task<Status> Outbox::send_result(WorkerSession& worker, Session& session, const Attempt& attempt,
                                 const trace::Lane& lane) {
  const Attempt::Piece piece = attempt.pieces[worker.results.sent++];
  proto::ResultChunk message;
  message.round = attempt.round;
  message.attempt = attempt.number;
  message.chunk = piece.chunk;
  const auto head = proto::encode(message);
  const auto kind = static_cast<std::uint16_t>(Kind::kResult);
  const TimePoint begin = clock_.now();
  CENTROID_CO_TRY(co_await session.send_soon(kind, head, piece.values,
                                             begin + config_.timeouts.stall, piece.crc));
  probe_.send().ended(lane, begin, clock_.now(), attempt.round.value);
  probe_.payload_sent(piece.values.size());
  probe_.down(job_.shard->encodes() ? job_.shard->encoder().kind() : CodecSpec::Kind::kF32)
      .moved(job_.store().plan().chunk(piece.chunk).elements * sizeof(float), piece.values.size());
  co_return Status();
}

/// The round closed without this worker.
Task<Status> Outbox::close_late(WorkerSession& worker, Session& session) {
  proto::RoundClosed closed = *worker.late->closed;
  closed.outcome = *worker.late->outcome;
  closed.reason = "the round closed without this worker (policy " + config_.policy + ")";
  if (!policy_.is_elastic()) closed.reason = "no contribution came within round_timeout";
  worker.pace.behind = worker.late->key;
  worker.late.reset();
  co_return co_await send(session, Kind::kRoundClosed, closed);
}

/// Everything the server says to one member on its own account, in order: state if it lacks it,
/// RoundOpen, the results as they complete, RoundClosed; at last Finish.
Task<Status> Outbox::outbox_loop(std::shared_ptr<WorkerSession> worker, Session& session) {
  std::shared_ptr<Attempt> attempt;
  std::size_t& sent = worker->results.sent;
  const trace::Lane lane(worker->join.name + " out");
  bool is_idle = false;
  while (!session.is_closed() && !worker->is_gone) {
    if (is_idle) {
      is_idle = false;
      CENTROID_CO_ASSIGN(const bool has_sent, co_await session.flush());
      if (has_sent) continue;  // something may have come meanwhile
      const bool is_woken = co_await worker->wake.wait(TimePoint::max());  // lint-ok: it is idle
      if (!is_woken) co_return Status();
    }
    const bool has_seat = open_.attempt && !open_.attempt->closed &&
                          open_.attempt->rank_of(worker->id) &&
                          open_.attempt->left_out.count(worker->id) == 0;
    if (worker->late) {  // its results, a model's size, are not for this member
      attempt.reset();
      worker->results.attempt.reset();
    }
    const bool is_free = !attempt && !worker->late;
    if (worker->wait) {
      const proto::Wait wait = *std::exchange(worker->wait, std::nullopt);
      CENTROID_CO_TRY(co_await send(session, Kind::kWait, wait));
    } else if (is_free && worker->own_state.keep) {
      proto::Keep keep;
      keep.round = *std::exchange(worker->own_state.keep, std::nullopt);
      keep_reported(events_, *worker, keep.round);
      CENTROID_CO_TRY(co_await send(session, Kind::kKeep, keep));
    } else if (is_free && has_seat && !worker->pace.behind) {
      CENTROID_CO_TRY(co_await open_round(worker, session, attempt));
    } else if (worker->late) {
      is_idle = !worker->late->outcome || !worker->late->closed;
      if (is_idle) continue;
      CENTROID_CO_TRY(co_await close_late(*worker, session));
    } else if (attempt && attempt->closed &&
               (attempt->closed->outcome != proto::Outcome::kCommitted ||
                sent == attempt->pieces.size())) {
      const proto::RoundClosed closed = *attempt->closed;
      CENTROID_CO_TRY(co_await send(session, Kind::kRoundClosed, closed));
      if (closed.outcome == proto::Outcome::kCommitted) worker->version = closed.version;
      // Of an aborted round it has the gradients still.
      if (worker->has_drifted && closed.outcome != proto::Outcome::kAborted) {
        worker->has_drifted = false;
        worker->version = Version();
      }
      attempt.reset();
      worker->results.attempt.reset();
      attempts_.results_taken();
    } else if (attempt && sent < attempt->pieces.size()) {
      CENTROID_CO_TRY(co_await send_result(*worker, session, *attempt, lane));
    } else if (!attempt && worker->init_requested) {
      worker->init_requested = false;
      const proto::Empty nothing;
      CENTROID_CO_TRY(co_await send(session, Kind::kInitRequest, nothing));
    } else if (!attempt && worker->state_requested) {
      worker->state_requested = false;
      proto::StateMark mark;
      mark.version = job_.store().version();
      CENTROID_CO_TRY(co_await send(session, Kind::kStateRequest, mark));
    } else if (!attempt && worker->finish && images_.needs_last_state(*worker)) {
      is_idle = worker->pace.behind.has_value();
      if (is_idle) continue;
      CENTROID_CO_TRY(co_await session.flush());
      CENTROID_CO_TRY(co_await images_.transfer_last_state(worker, session));
    } else if (!attempt && worker->finish) {
      const proto::Finish finish = *worker->finish;
      if (finish.evaluate) worker->evaluations.asked.push_back(finish.version);
      CENTROID_CO_TRY(co_await send(session, Kind::kFinish, finish));
      co_return Status();
    } else if (!attempt && !worker->pace.behind && worker->pace.is_away) {
      elastic_.seat(*worker);
    } else {
      is_idle = true;
    }
  }
  co_return Status();
}

Task<Status> Outbox::send_state(std::shared_ptr<WorkerSession> worker, Session& session,
                                Version version) {
  const std::size_t planes =
      1 + (config_.applies_on_worker() ? job_.store().optimizer().slots() : 0);
  const std::size_t pieces = planes * job_.store().plan().chunks().size();
  std::size_t piece = 0;
  const auto what = [&] { return state_on_its_way(version, piece, pieces); };
  const auto waits =
      waits_.begin(WaitCause::kState, "worker " + worker->join.name, "its connection", what);
  const auto elsewhere = servers_.fetch_elsewhere(*worker->tasks, version, planes);
  for (std::size_t plane = 0; plane < planes; ++plane) {
    for (const Chunk& chunk : job_.store().plan().chunks()) {
      ++piece;
      proto::StateChunk message;
      message.version = version;
      message.plane = static_cast<std::uint8_t>(plane);
      message.chunk = chunk.id;
      std::vector<std::byte> fetched;  // what lies on another server goes through this one
      Bytes values;
      if (elsewhere->is_next(plane, chunk.id)) {
        CENTROID_CO_ASSIGN(fetched, co_await elsewhere->next());
        values = fetched;
      } else if (!job_.store().is_here(chunk.id)) {  // it has moved since
        proto::ServerChunk wanted;
        wanted.version = version;
        wanted.plane = message.plane;
        wanted.chunk = chunk.id;
        CENTROID_CO_ASSIGN(fetched, co_await servers_.fetch_chunk(wanted));
        values = fetched;
      } else {
        values = std::as_bytes(job_.store().values(plane, chunk));
      }
      const auto head = proto::encode(message);
      const auto kind = static_cast<std::uint16_t>(Kind::kStateChunk);
      CENTROID_CO_TRY(
          co_await session.send(kind, head, values, clock_.now() + config_.timeouts.stall));
      probe_.payload_sent(values.size());
      if (worker->is_gone) co_return Status();
    }
  }
  images_.state_sent(*worker, session, version, planes);
  co_return Status();
}

}  // namespace centroid::server
