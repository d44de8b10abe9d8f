#pragma once

#include <mutex>

#include "common/base/metrics.h"
#include "common/base/stage.h"
#include "common/base/thread.h"
#include "common/proto/messages.h"
#include "transport/transport.h"
#include "worker/exchange/exchange.h"

namespace centroid::worker {

/// What an exchange sent, received and encoded: for metrics, the trace, PushEnd and the loop.
///
/// thread  any
class ExchangeCounters {
 public:
  explicit ExchangeCounters(metrics::Registry& registry);

  template <class F>
  void update(F change) {
    const std::lock_guard lock(mutex_);
    change(codecs_);
  }
  CodecTotals codecs() const;
  /// Of the session with the leader so far; of a session that has ended, the leader's or another.
  void set_live(const transport::TrafficCounters& traffic);
  void add_ended(const transport::TrafficCounters& traffic, bool is_leader);
  transport::TrafficCounters traffic() const;
  /// Add what happened since the last PushEnd. Of the link's executor.
  void fill(proto::PushEnd& end);

  metrics::Counter reconnects, bytes_out, bytes_in;
  trace::StageProbe send, encode, decode, exchange;
  const trace::Lane lane{"server"}, peers_lane{"peers"};
  double send_seconds = 0, addition_seconds = 0;  ///< since the last PushEnd; the executor's

 private:
  mutable Mutex mutex_;
  transport::TrafficCounters ended_, live_;
  CodecTotals codecs_, reported_;  // the second: in earlier PushEnds
};

}  // namespace centroid::worker
