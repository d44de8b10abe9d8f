#pragma once

#include <cstdint>
#include <functional>

#include "common/base/metrics.h"
#include "common/base/stage.h"
#include "server/store/journal_writer.h"

namespace centroid::server {

/// Metrics of every server with chunks, the leader as well as a shard server: bytes and stages of
/// the gradient path, the journal, refused members. Handles are looked up once.
class ServerProbe {
 public:
  explicit ServerProbe(metrics::Registry& registry);

  void stale_frame() const { stale_.add(); }
  void handshake_refused() const { refused_.add(); }
  void token_refused() const { tokens_refused_.add(); }
  void payload_received(std::uint64_t bytes) const { bytes_in_.add(static_cast<double>(bytes)); }
  void payload_sent(std::uint64_t bytes) const { bytes_out_.add(static_cast<double>(bytes)); }
  // Stages of the gradient path; their results are seconds.
  const trace::StageProbe& receive() const { return receive_; }
  const trace::StageProbe& aggregate() const { return aggregate_; }
  /// `work` of another thread that combines a chunk, with its time in `aggregate`.
  std::function<void()> timed_aggregate(std::uint64_t round, std::function<void()> work) const;
  const trace::StageProbe& apply() const { return apply_; }
  const trace::StageProbe& send() const { return send_; }
  const trace::StageProbe& encode() const { return encode_; }
  const trace::StageProbe& journal_stage() const { return journal_stage_; }
  void journal_synced(double seconds) const { journal_sync_seconds_.observe(seconds); }
  /// Of the present writer, whose numbers restart with the next one.
  void journal(const JournalWriter::State& state);

 private:
  metrics::Counter stale_, refused_, tokens_refused_, bytes_in_, bytes_out_, journal_written_;
  trace::StageProbe receive_, aggregate_, apply_, send_, encode_, journal_stage_;
  metrics::Gauge journal_bytes_, journal_queued_, journal_unsynced_, journal_broken_,
      journal_waits_;
  metrics::Histogram journal_sync_seconds_;
  std::uint64_t last_written_ = 0;  ///< bytes that the present writer had written
};

}  // namespace centroid::server
