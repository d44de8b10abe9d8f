#include "server/service/worker_view.h"

#include <algorithm>
#include <limits>

#include "common/proto/messages.h"

namespace centroid::server {

double certificate_end(transport::Session& session) {
  const auto end = session.connection().peer_certificate_end();
  return end.value_or(std::numeric_limits<double>::quiet_NaN());
}

WorkerView worker_view(const Member& member, const Link* link, const Coordinator& coordinator,
                       TimePoint now) {
  WorkerView view;
  view.member = member.id.value;
  view.name = member.name;
  view.address = member.address;
  view.state = to_string(member.state);
  view.rank = member.rank ? static_cast<std::int64_t>(member.rank->value) : -1;
  view.joined_unix_seconds = member.joined_unix_seconds;
  view.silent_seconds = is_present(member.state) ? std::max(0.0, seconds(now - member.heard)) : 0;
  view.reason = member.reason;
  if (link == nullptr) return view;
  view.devices = link->join.devices;
  view.samples = link->measured.sums.samples;
  view.rounds = link->measured.sums.rounds;
  const auto traffic = link->is_gone || link->session == nullptr
                           ? link->traffic
                           : link->session->connection().traffic();
  view.bytes_in = traffic.bytes_in;
  view.bytes_out = traffic.bytes_out;
  view.step_seconds = link->measured.step_seconds;
  view.compute_seconds = link->measured.sums.compute_seconds;
  view.wait_seconds = link->measured.sums.wait_seconds;
  view.encode_seconds = link->measured.sums.encode_seconds;
  view.decode_seconds = link->measured.sums.decode_seconds;
  view.send_seconds = link->measured.send_seconds;
  view.exchange_seconds = link->measured.addition_seconds;
  view.apply_seconds = link->measured.apply_seconds;
  view.receive_seconds = link->measured.receive_seconds;
  view.last_loss = link->measured.last_loss;
  view.local_steps = link->share.steps;
  view.pace_seconds = coordinator.cadence().seconds_per_step(link->id);
  view.share_ratio = link->share.ratio;
  view.divergence = std::min(link->local.divergence, proto::kMaxLoss);
  view.parameter_norm = link->local.parameter_norm;
  view.scalars = link->contribution.scalars;
  view.version = link->program;
  view.clock_ahead_seconds = link->clock.ahead();
  if (!link->is_gone && link->session != nullptr)
    view.certificate_expires_unix_seconds = certificate_end(*link->session);
  return view;
}
}  // namespace centroid::server
