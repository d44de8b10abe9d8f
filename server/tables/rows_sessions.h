#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/base/standstill.h"
#include "server/api/view.h"
#include "server/tables/table_store.h"
#include "transport/session.h"

namespace centroid::server {

/// Reason for which a request for rows waits.
enum class RowsWaitFor : std::uint8_t { kNothing, kPayload, kDisk, kJournal, kReading, kMove };

/// A client's pending request.
struct RowsRequest {
  bool is_push = false;
  std::uint32_t table = 0, rows = 0;
  TimePoint since = {};     ///< arrival
  TimePoint reported = {};  ///< last message to the client about the wait
  RowsWaitFor waits_for = RowsWaitFor::kPayload;
};

class RowsSessions;

/// State of one session of a client of rows.
class RowsSession {
 public:
  RowsSession(RowsSessions& sessions, transport::Session& session);
  ~RowsSession();
  RowsSession(const RowsSession&) = delete;
  RowsSession& operator=(const RowsSession&) = delete;

  transport::Session& session() const { return session_; }
  /// Notify the client, every two seconds, that its request waits, and why.
  Task<Status> report_wait(TimePoint now);

  std::uint64_t id = 0;            ///< of the client; 0: no RowsOpen yet
  std::vector<std::byte> in, out;  ///< payloads; their memory is reused
  RowsRequest request = {.waits_for = RowsWaitFor::kNothing};

 private:
  RowsSessions& sessions_;
  transport::Session& session_;
  std::list<RowsSession*>::iterator place_;
};

/// The sessions of clients of rows, and the clients that may return.
///
/// thread  the service's
class RowsSessions {
 public:
  /// Without tables there are no metrics.
  RowsSessions(std::chrono::milliseconds lease, const Clock& clock, metrics::Registry& registry,
               bool has_tables);

  const Clock& clock() const { return clock_; }
  std::chrono::milliseconds lease() const { return lease_; }
  std::size_t count() const { return sessions_.size(); }
  void close_all(const Error& why);
  /// The client has no session now, and may return.
  void set_gone(std::uint64_t client) { gone_[client] = clock_.now(); }
  /// Count a refused request.
  void count_refused() const { refused_.add(); }
  /// Count a repeated push.
  void count_repeated() const { repeated_.add(); }

  // periodic calls
  /// Detect that the service was suspended.
  void look() { standstill_.look(clock_.now(), lease_ / 2); }
  /// Close the sessions that are silent for a lease, and forget clients that left long ago.
  void expire(const std::function<void(std::uint64_t client)>& forget);
  /// Append the requests that have waited for more than two seconds. `trouble`: of the journal
  void waits(const TableStore& store, const std::function<std::string()>& trouble,
             std::vector<WaitView>& views) const;

 private:
  friend class RowsSession;
  std::list<RowsSession*>::iterator add(RowsSession& session);
  void remove(std::list<RowsSession*>::iterator place, std::uint64_t client);
  void close_silent(const RowsSession& session, TimePoint now);

  const std::chrono::milliseconds lease_;
  const Clock& clock_;
  Standstill standstill_;
  std::list<RowsSession*> sessions_;
  std::unordered_map<std::uint64_t, TimePoint> gone_;  ///< by client: when its last session ended
  metrics::Counter repeated_, refused_, silent_;
  metrics::Gauge connected_;
};

/// Marks a request of a session as pending for its lifetime.
class OpenRequest {
 public:
  OpenRequest(RowsSession& client, const RowsRequest& request) : request_(client.request) {
    request_ = request;
  }
  ~OpenRequest() { request_.waits_for = RowsWaitFor::kNothing; }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

 private:
  RowsRequest& request_;
};

}  // namespace centroid::server
