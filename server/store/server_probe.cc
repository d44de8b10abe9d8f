#include "server/store/server_probe.h"

#include <utility>

#include "common/base/clock.h"

namespace centroid::server {

ServerProbe::ServerProbe(metrics::Registry& r) {
  const auto& latency = metrics::latency_bounds();
  const auto stage = [&](trace::Stage which) { return trace::StageProbe(r, "server", which); };
  stale_ = r.counter("centroid_server_frames_stale_total",
                     "Chunks of closed attempts or old generations, dropped.");
  refused_ = r.counter("centroid_server_handshakes_refused_total",
                       "Connections that failed the handshake.");
  tokens_refused_ = r.counter("centroid_server_tokens_refused_total",
                              "Connections that failed the handshake for their token.");
  bytes_in_ =
      r.counter("centroid_server_payload_received_bytes_total", "Contribution bytes received.");
  bytes_out_ =
      r.counter("centroid_server_payload_sent_bytes_total", "Result and state bytes sent.");
  receive_ = stage(trace::Stage::kReceive);
  aggregate_ = stage(trace::Stage::kAggregate);
  apply_ = stage(trace::Stage::kApply);
  send_ = stage(trace::Stage::kSend);
  encode_ = stage(trace::Stage::kEncode);
  journal_stage_ = stage(trace::Stage::kJournal);
  journal_sync_seconds_ =
      r.histogram("centroid_server_journal_sync_seconds", "fdatasync of the journal.", latency);
  journal_bytes_ = r.gauge("centroid_server_journal_bytes", "Size of the journal's segments.");
  journal_written_ =
      r.counter("centroid_server_journal_written_bytes_total", "Bytes written to the journal.");
  journal_queued_ = r.gauge("centroid_server_journal_queued_bytes",
                            "Bytes that wait to be written to the journal.");
  journal_unsynced_ = r.gauge("centroid_server_journal_unsynced_seconds",
                              "Age of the oldest commit that a power loss would cost.");
  journal_broken_ = r.gauge("centroid_server_journal_broken",
                            "1: rounds are not written until the next checkpoint is.");
  journal_waits_ = r.gauge("centroid_server_journal_waits",
                           "1: a write fails and is repeated, the round waits.");
}

std::function<void()> ServerProbe::timed_aggregate(std::uint64_t round,
                                                   std::function<void()> work) const {
  return [probe = aggregate_, round, work = std::move(work)] {
    static const trace::Lane kLane("combine");
    const TimePoint begin = now();
    work();
    probe.ended(kLane, begin, now(), round);
  };
}

void ServerProbe::journal(const JournalWriter::State& state) {
  journal_bytes_.set(static_cast<double>(state.bytes));
  const bool is_new = state.written < last_written_;
  journal_written_.add(static_cast<double>(state.written - (is_new ? 0 : last_written_)));
  last_written_ = state.written;
  journal_queued_.set(static_cast<double>(state.queued_bytes));
  journal_unsynced_.set(state.unsynced_seconds);
  journal_broken_.set(state.is_broken ? 1 : 0);
  journal_waits_.set(!state.is_broken && !state.trouble.empty() ? 1 : 0);
}

}  // namespace centroid::server
