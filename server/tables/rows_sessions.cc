#include "server/tables/rows_sessions.h"

#include <utility>

#include "common/base/log.h"
#include "common/proto/rows.h"

namespace centroid::server {

namespace {

constexpr std::chrono::seconds kHeldUp{2};  ///< wait before the client is notified

struct WaitText {
  const char* what;
  const char* blocked_on = nullptr;  ///< what a request waits for; nullptr: its own client
};

WaitText text_of(RowsWaitFor what) {
  switch (what) {
    case RowsWaitFor::kPayload:
      return {"the rest of its message"};
    case RowsWaitFor::kDisk:
      return {"a checkpoint of the tables, which the disk has not taken yet", "checkpoint"};
    case RowsWaitFor::kJournal:
      return {"the journal of the tables, which the disk has not taken yet", "journal"};
    case RowsWaitFor::kReading:
      return {"that it reads its answer"};
    case RowsWaitFor::kMove:
      return {"rows that move to another server", "servers"};
    case RowsWaitFor::kNothing:
      break;
  }
  return {""};
}

}  // namespace

RowsSession::RowsSession(RowsSessions& sessions, transport::Session& session)
    : sessions_(sessions), session_(session), place_(sessions.add(*this)) {}

RowsSession::~RowsSession() { sessions_.remove(place_, id); }

Task<Status> RowsSession::report_wait(TimePoint now) {
  if (now - request.since < kHeldUp || now - request.reported < kHeldUp) co_return Status();
  request.reported = now;
  proto::Wait wait;
  wait.ms = static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now - request.since).count());
  wait.what = std::string("the request waits for ") + text_of(request.waits_for).what;
  const auto head = proto::encode(wait);
  const auto kind = static_cast<std::uint16_t>(proto::Kind::kWait);
  co_return co_await session_.send(kind, head, Bytes(), now + kHeldUp);
}

RowsSessions::RowsSessions(std::chrono::milliseconds lease, const Clock& clock,
                           metrics::Registry& registry, bool has_tables)
    : lease_(lease), clock_(clock) {
  if (!has_tables) return;
  repeated_ = registry.counter("centroid_rows_repeated_pushes_total",
                               "Pushes of rows that came again and were not applied again");
  refused_ = registry.counter("centroid_rows_refused_requests_total",
                              "Requests for rows that were refused");
  silent_ = registry.counter("centroid_rows_silent_clients_total",
                             "Clients of rows that were closed after a lease of silence");
  connected_ = registry.gauge("centroid_rows_clients", "Clients of rows that are connected");
}

std::list<RowsSession*>::iterator RowsSessions::add(RowsSession& session) {
  const auto place = sessions_.insert(sessions_.end(), &session);
  connected_.set(static_cast<double>(sessions_.size()));
  return place;
}

void RowsSessions::remove(std::list<RowsSession*>::iterator place, std::uint64_t client) {
  sessions_.erase(place);
  connected_.set(static_cast<double>(sessions_.size()));
  if (client != 0) set_gone(client);
}

void RowsSessions::close_all(const Error& why) {
  for (RowsSession* const one : sessions_) one->session().close(why);
}

void RowsSessions::expire(const std::function<void(std::uint64_t client)>& forget) {
  const TimePoint now = clock_.now();
  for (RowsSession* const one : sessions_) {
    if (one->id != 0) gone_.erase(one->id);
    close_silent(*one, now);
  }
  std::erase_if(gone_, [&](const auto& gone) {
    if (now - gone.second <= proto::kRowsClientRetention) return false;
    forget(gone.first);
    return true;
  });
}

void RowsSessions::close_silent(const RowsSession& client, TimePoint now) {
  transport::Session& session = client.session();
  // The session is not read while a request is pending; the transport has a deadline for its bytes.
  const Duration silent = now - standstill_.since(session.connection().last_received());
  if (client.request.waits_for != RowsWaitFor::kNothing || silent <= lease_) return;
  if (session.is_closed()) return;
  silent_.add();
  const transport::Peer& peer = session.peer();
  log::warn("rows.client_timed_out",
            {{"client", peer.name}, {"peer", peer.address}, {"lease_ms", lease_.count()}});
  session.close(Error(ErrorCode::kUnavailable, "client '" + peer.name +
                                                   "' of rows sent nothing for " +
                                                   std::to_string(lease_.count()) + " ms (lease)"));
}

void RowsSessions::waits(const TableStore& store, const std::function<std::string()>& trouble,
                         std::vector<WaitView>& views) const {
  for (const RowsSession* const one : sessions_) {
    const RowsRequest& request = one->request;
    if (request.waits_for == RowsWaitFor::kNothing) continue;
    const double seconds = std::chrono::duration<double>(clock_.now() - request.since).count();
    if (seconds < static_cast<double>(kHeldUp.count())) continue;
    const transport::Peer& peer = one->session().peer();
    const std::string name = "rows client " + peer.name + " (" + peer.address + ")";
    const WaitText text = text_of(request.waits_for);
    std::string what = request.is_push ? "push of " : "pull of ";
    what += std::to_string(request.rows) + " rows, table '" + store.spec(request.table).name +
            "': " + text.what;
    if (request.waits_for == RowsWaitFor::kJournal)
      if (const std::string why = trouble(); !why.empty()) what += ": " + why;
    views.push_back({.waiter = text.blocked_on == nullptr ? "a request for rows" : name,
                     .waits_for = text.blocked_on == nullptr ? name : text.blocked_on,
                     .what = std::move(what),
                     .seconds = seconds});
  }
}

}  // namespace centroid::server
