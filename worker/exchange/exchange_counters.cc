#include "worker/exchange/exchange_counters.h"

#include <algorithm>
#include <utility>

namespace centroid::worker {

ExchangeCounters::ExchangeCounters(metrics::Registry& registry)
    : reconnects(registry.counter("centroid_worker_reconnects_total",
                                  "Times the worker lost the server and tried again.")),
      bytes_out(
          registry.counter("centroid_worker_payload_sent_bytes_total", "Contribution bytes sent.")),
      bytes_in(registry.counter("centroid_worker_payload_received_bytes_total",
                                "Result and state bytes received.")),
      send(registry, "worker", trace::Stage::kSend),
      encode(registry, "worker", trace::Stage::kEncode),
      decode(registry, "worker", trace::Stage::kDecode),
      exchange(registry, "worker", trace::Stage::kExchange) {}

CodecTotals ExchangeCounters::codecs() const {
  const std::lock_guard lock(mutex_);
  return codecs_;
}

void ExchangeCounters::set_live(const transport::TrafficCounters& traffic) {
  const std::lock_guard lock(mutex_);
  live_ = traffic;
}

void ExchangeCounters::add_ended(const transport::TrafficCounters& traffic, bool is_leader) {
  const std::lock_guard lock(mutex_);
  ended_.bytes_in += traffic.bytes_in;
  ended_.bytes_out += traffic.bytes_out;
  if (is_leader) live_ = {};
}

transport::TrafficCounters ExchangeCounters::traffic() const {
  const std::lock_guard lock(mutex_);
  transport::TrafficCounters sum = ended_;
  sum.bytes_in += live_.bytes_in;
  sum.bytes_out += live_.bytes_out;
  return sum;
}

void ExchangeCounters::fill(proto::PushEnd& end) {
  const CodecTotals totals = codecs();
  end.send_seconds = std::exchange(send_seconds, 0);
  end.addition_seconds = std::exchange(addition_seconds, 0);
  end.encode_seconds = totals.encode_seconds - reported_.encode_seconds;
  end.decode_seconds = totals.decode_seconds - reported_.decode_seconds;
  if (end.decode_seconds > 0) decode.took(end.decode_seconds);
  end.residual_norm = totals.residual_norm;
  end.raw_bytes = totals.raw_out - reported_.raw_out;
  end.encoded_bytes = totals.encoded_out - reported_.encoded_out;
  end.chunks = static_cast<std::uint32_t>(totals.chunks - reported_.chunks);
  end.dense_chunks = std::min(
      end.chunks, static_cast<std::uint32_t>(totals.dense_chunks - reported_.dense_chunks));
  reported_ = totals;
}

}  // namespace centroid::worker
