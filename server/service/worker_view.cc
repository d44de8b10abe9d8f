#include "server/service/worker_view.h"

#include <algorithm>
#include <limits>

#include "common/proto/messages.h"

namespace centroid::server {

double certificate_end(transport::Session& session) {
  const auto end = session.connection().peer_certificate_end();
  return end.value_or(std::numeric_limits<double>::quiet_NaN());
}

WorkerView worker_view(const Member& member, const WorkerSession* worker,
                       const Coordinator& coordinator, TimePoint now) {
  WorkerView view;
  view.member = member.id.value;
  view.name = member.name;
  view.address = member.address;
  view.state = to_string(member.state);
  view.rank = member.rank ? static_cast<std::int64_t>(member.rank->value) : -1;
  view.joined_unix_seconds = member.joined_unix_seconds;
  view.silent_seconds = is_present(member.state) ? std::max(0.0, seconds(now - member.heard)) : 0;
  view.reason = member.reason;
  if (worker == nullptr) return view;
  view.devices = worker->join.devices;
  view.samples = worker->measured.sums.samples;
  view.rounds = worker->measured.sums.rounds;
  const auto traffic = worker->is_gone || worker->session == nullptr
                           ? worker->traffic
                           : worker->session->connection().traffic();
  view.bytes_in = traffic.bytes_in;
  view.bytes_out = traffic.bytes_out;
  view.step_seconds = worker->measured.step_seconds;
  view.compute_seconds = worker->measured.sums.compute_seconds;
  view.wait_seconds = worker->measured.sums.wait_seconds;
  view.encode_seconds = worker->measured.sums.encode_seconds;
  view.decode_seconds = worker->measured.sums.decode_seconds;
  view.send_seconds = worker->measured.send_seconds;
  view.exchange_seconds = worker->measured.addition_seconds;
  view.apply_seconds = worker->measured.apply_seconds;
  view.receive_seconds = worker->measured.receive_seconds;
  view.last_loss = worker->measured.last_loss;
  view.local_steps = worker->share.steps;
  view.pace_seconds = coordinator.cadence().seconds_per_step(worker->id);
  view.share_ratio = worker->share.ratio;
  view.divergence = std::min(worker->local.divergence, proto::kMaxLoss);
  view.parameter_norm = worker->local.parameter_norm;
  view.scalars = worker->contribution.scalars;
  view.version = worker->program;
  view.clock_ahead_seconds = worker->clock.ahead();
  if (!worker->is_gone && worker->session != nullptr)
    view.certificate_expires_unix_seconds = certificate_end(*worker->session);
  return view;
}
}  // namespace centroid::server
