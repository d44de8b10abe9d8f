#include "server/service/job_phase.h"

#include <utility>

namespace centroid::server {

void JobPhase::set(Phase phase, std::string reason) {
  if (phase == phase_ && reason == reason_) return;
  if (phase != phase_) {
    const auto name = [](Phase one) { return kJobStates[static_cast<std::size_t>(one)]; };
    events_.publish("job.phase_changed",
                    {{"from", name(phase_)}, {"to", name(phase)}, {"why", reason}});
    since_ = clock_.now();
  }
  phase_ = phase;
  probe_.job(static_cast<std::size_t>(phase));
  reason_ = std::move(reason);
}

}  // namespace centroid::server
