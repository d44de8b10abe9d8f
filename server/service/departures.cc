#include "server/service/departures.h"

#include <algorithm>
#include <utility>

#include "server/service/kept.h"
#include "server/service/worker_view.h"

namespace centroid::server {

void Departures::member_gone(MemberId id, std::optional<Error> tell) {
  const auto worker = members_.find(id);
  if (!worker) return;
  members_.present.erase(id);
  worker->is_gone = true;
  if (const Member* const member = members_.roster.find(id))
    keep_unanswered(events_, *worker, "the worker is gone: " + member->reason);
  round_servers_.departed(id);
  if (!open_.attempt || open_.attempt->closed) round_servers_.forget_departed();
  worker->traffic = worker->session->connection().traffic();
  if (const Member* const member = members_.roster.find(id))
    members_.gone[id] = worker_view(*member, worker.get(), data_.coordinator(), clock_.now());
  std::erase_if(members_.gone,
                [this](const auto& gone) { return members_.roster.find(gone.first) == nullptr; });
  if (tell) worker->tasks->spawn(worker->session->goodbye(*tell));
  data_.part_lost(*worker);

  if (policy_.is_elastic()) {
    if (open_.attempt && open_.machine.expects(id)) {
      ++totals_.lost_contributions;
      probe_.contribution_lost();
    }
    attempts_.decide(open_.machine.gone(id, Progress::kNothing, clock_.now()));
  } else if (open_.attempt && open_.machine.expects(id)) {
    const std::uint32_t rank = *open_.attempt->rank_of(id);
    const bool is_awaited_elsewhere = round_servers_.may_have_part(id);
    const bool was_told = worker->pace.opened == open_.attempt->key();
    const bool has_part = job_.aggregator->has_part_of(rank) || (is_awaited_elsewhere && was_told);
    const Progress progress = has_part ? Progress::kPart : Progress::kNothing;
    ++totals_.lost_contributions;
    probe_.contribution_lost();
    if (!has_part && !open_.among_peers) job_.aggregator->absent(rank);
    if (!has_part && is_awaited_elsewhere) round_servers_.tell_opened();
    attempts_.decide(open_.machine.gone(id, progress));
  } else if (open_.attempt) {
    (void)open_.machine.gone(id,
                             Progress::kNothing);  // what it has contributed counts, it does not
  }
  changed_.notify_all();
  worker->wake.notify_all();
}

}  // namespace centroid::server
