#include "server/state/job_state.h"

#include <utility>

namespace centroid::server {

JobPosition JobState::position() const {
  return {round, epoch, offset, store().optimizer_step(), steps_before, returned};
}

void JobState::replace(JobState next) {
  aggregator.reset();  // before the buffers that it holds
  if (next.run_id.empty()) next.run_id = std::move(run_id);
  if (!next.resumed_from) next.resumed_from = std::move(resumed_from);
  next.was_restored = was_restored;
  next.gather_until = gather_until;
  next.epochs = std::move(epochs);
  next.epochs.drop_open();
  next.curves.go_on(std::move(curves));
  if (evaluation.version <= next.version()) next.evaluation = evaluation;
  *this = std::move(next);
}

void JobState::drop_model() {
  aggregator.reset();  // before the buffers that it holds
  shard.reset();
}

void JobState::gather_again() {
  trained_rounds = 0;
  was_restored = true;
  gather_until.reset();
}

JobState JobState::back_to_stored() && {
  JobState back;
  back.agreed = std::move(agreed);
  back.shard = std::move(shard);
  back.pool = std::move(pool);
  back.aggregator = std::move(aggregator);
  back.trained_rounds = trained_rounds;
  back.checkpointed = checkpointed;
  back.is_checkpoint_lost = is_checkpoint_lost;
  if (back.store().held() != Version()) back.held = held;
  back.store().restore(back.store().held(), back.held.optimizer_step);
  back.round = back.held.round;
  back.epoch = back.held.epoch;
  back.offset = back.held.offset;
  back.steps_before = back.held.steps_before;
  back.returned = back.held.returned;
  for (const auto& [name, last] : counted.all())
    if (last < back.round) back.counted.add(name, last);
  return back;
}

}  // namespace centroid::server
