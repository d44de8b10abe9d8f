#include "transport/collective/start.h"

namespace centroid::collective {

std::shared_ptr<Call> make_call(Call::Plan plan) {
  const auto timeout = plan.timeout;
  auto call = std::make_shared<Call>(std::move(plan));
  const TimePoint now = centroid::now();
  call->deadline = now + timeout;
  call->query_at = now + timeout * 3 / 4;
  return call;
}

Handle begin(const Group& group, std::shared_ptr<Call> call, bool is_waited) {
  Generation& generation = *group.core().generation;
  if (call->has_nothing_to_do()) {
    call->end();
    call->wake();
    call->is_done() = true;
  } else {
    const bool waits = is_waited || call->plan().waits_next;
    generation.network->start(call, waits);
  }
  return Handle(generation.driver, std::move(call));
}

}  // namespace centroid::collective
