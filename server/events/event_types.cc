#include "server/events/event_types.h"

namespace centroid::server {

namespace {

using enum EventField::Kind;

// docs/reference/make_events.py reads this file.

std::vector<EventType> of_members_and_rounds() {
  return {{"member.joined",
           "A worker was admitted.",
           {{"worker", kText, "Its name."},
            {"member", kCount, "Number of its admission."},
            {"address", kText, "Its host:port."},
            {"devices", kCount, "Its devices."},
            {"batch", kCount, "Samples of one of its steps."}}},
          {"member.left",
           "A worker left in order.",
           {{"worker", kText, "Its name."},
            {"member", kCount, "Its number."},
            {"why", kText, "Its reason."}}},
          {"member.lost",
           "A worker was lost: silent beyond its lease, disconnected, or replaced.",
           {{"worker", kText, "Its name."},
            {"member", kCount, "Its number."},
            {"why", kText, "How the server noticed."}}},
          {"member.excluded",
           "A round closed without a worker's contribution (policies backup and quorum).",
           {{"worker", kText, "Its name."},
            {"member", kCount, "Its number."},
            {"round", kCount, "The round."}}},
          {"replica.drifted",
           "Parameters or optimizer state of a worker differ from those of most workers.",
           {{"worker", kText, "Its name."},
            {"member", kCount, "Its number."},
            {"version", kCount, "The version that was compared."},
            {"compared", kCount, "Workers that were compared."},
            {"action", kText, "What follows."}}},
          {"member.drain_requested",
           "An operator requested that a worker leaves after its round.",
           {{"worker", kText, "Its name."}, {"member", kCount, "Its number."}}},
          {"member.evicted",
           "An operator removed a worker.",
           {{"worker", kText, "Its name."},
            {"member", kCount, "Its number."},
            {"seconds", kNumberOrNull, "How long its name is refused; 0: until it is allowed."},
            {"why", kText, "The operator's reason."}}},
          {"generation.formed",
           "The membership has a new number.",
           {{"generation", kCount, "The number."},
            {"world", kCount, "Its members."},
            {"round", kCount, "First round of it."}}},
          {"job.phase_changed",
           "The state of the job changed.",
           {{"from", kText, "State before."},
            {"to", kText, "State now."},
            {"why", kText, "Reason; may be empty."}}},
          {"round.committed",
           "Rounds were committed; at most four such events a second.",
           {{"round", kCount, "The last of them."},
            {"version", kCount, "Version of the parameters after it."},
            {"generation", kCount, "Its generation."},
            {"contributors", kCount, "Contributions that counted in the last."},
            {"samples", kCount, "Their samples."},
            {"seconds", kNumberOrNull, "From opening to commit of the last."},
            {"loss", kNumberOrNull, "Mean training loss of the last."},
            {"rounds", kCount, "How many since the event before.", 1}}},
          {"round.skipped",
           "A round ended without effect (nonfinite: skip).",
           {{"round", kCount, "The round."},
            {"worker", kText, "The worker with a contribution that is not finite."},
            {"why", kText, "What was wrong with it."}}},
          {"round.aborted",
           "An attempt at a round was aborted; another one follows.",
           {{"round", kCount, "The round."},
            {"attempt", kCount, "The attempt."},
            {"why", kText, "Why."}}},
          {"epoch.ended",
           "An epoch ended: every sample of it is done, left out or lost.",
           {{"epoch", kCount, "Epochs that are over."},
            {"loss", kNumberOrNull, "Mean training loss of the epoch."},
            {"accuracy", kNumberOrNull, "Share of training samples that were classified right."},
            {"samples", kCount, "In contributions that counted."},
            {"seconds", kNumber, "Since the round of the first of them opened."},
            {"workers", kCount, "Number of contributing workers; list_epochs names them."}}}};
}

std::vector<EventType> of_losses() {
  return {
      {"job.restarted",
       "The job restarts from round 1 and discards its committed rounds.",
       {{"lost_round", kCount, "The last one that had been committed."},
        {"why", kText, "What was lost."}}},
      {"job.blocked",
       "The job has fewer workers than `keep_min_workers`: no round begins until there are more.",
       {{"round", kCount, "The one that does not begin."},
        {"workers", kCount, "Those that are here and are not about to leave."},
        {"keep_min_workers", kCount, "The setting."},
        {"action", kText, "What ends the wait."}}},
      {"state.lost",
       "Every worker that held the newest parameters is gone: the rounds since are repeated.",
       {{"why", kText, "What was lost."},
        {"version", kCount, "The one that is lost."},
        {"action", kText, "What the job does."},
        {"to_version", kCount, "The one from which it continues."},
        {"to_round", kCount, "The round that follows it."}}}};
}

std::vector<EventType> of_the_job() {
  return {{"exchange.chosen",
           "With exchange auto: where the gradients are added from this round on.",
           {{"exchange", kText, "ring or star."},
            {"round", kCount, "The round."},
            {"why", kText, "Why."}}},
          {"model.evaluated",
           "A worker evaluated the parameters on held-out data.",
           {{"worker", kText, "Which."},
            {"version", kCount, "Version of the parameters."},
            {"samples", kCount, "Held-out samples."},
            {"accuracy", kNumberOrNull, "Share classified right."},
            {"loss", kNumberOrNull, "Mean loss."}}},
          {"checkpoint.written",
           "A checkpoint is on disk.",
           {{"path", kText, "Folder."},
            {"version", kCount, "Version in it."},
            {"bytes", kCount, "Its size."},
            {"seconds", kNumberOrNull, "Time it took."}}},
          {"checkpoint.failed",
           "A checkpoint could not be written.",
           {{"why", kText, "Why."}, {"when", kText, "What that means for the job."}}},
          {"checkpoint.deleted",
           "A checkpoint was removed.",
           {{"path", kText, "Folder."},
            {"version", kCount, "Version in it."},
            {"why", kText, "The policy, or the caller."}}},
          {"checkpoint.restored",
           "The job returned to a checkpoint.",
           {{"path", kText, "Folder."},
            {"version", kCount, "Version in it."},
            {"round", kCount, "Rounds committed in it."},
            {"from_version", kCount, "Version that the job had."}}},
          {"config.changed",
           "Settings were changed while running.",
           {{"changes", kText, "`name=value`, separated by commas."}}},
          {"scale.requested",
           "An operator requested a number of workers.",
           {{"workers", kCount, "The number; 0: the request was cleared."},
            {"why", kText, "The operator's reason."}}},
          {"wait.prolonged",
           "A wait has lasted more than 2 s. Published once per wait.",
           {{"waiter", kText, "The waiter."},
            {"waits_for", kText, "The awaited party."},
            {"what", kText, "The awaited condition."},
            {"seconds", kNumberOrNull, "How long so far."}}},
          {"audit.recorded",
           "A caller requested a change.",
           {{"caller", kText, "Name of the token."},
            {"role", kText, "Its role."},
            {"address", kText, "host:port of the client."},
            {"method", kText, "HTTP method."},
            {"path", kText, "Path."},
            {"request_id", kText, "Id of the request."},
            {"status", kCount, "HTTP status of the answer.", 100},
            {"outcome", kText, "`ok`, or what went wrong."}}},
          {"checkpoint.state_save_failed",
           "A worker failed to save its own part of a checkpoint's state: the residual of error "
           "feedback, or its local training.",
           {{"worker", kText, "Its name."},
            {"round", kCount, "The last round in the state."},
            {"why", kText, "Why."}}}};
}

}  // namespace

std::span<const EventType> described_events() {
  static const std::vector<EventType> kTypes = [] {
    std::vector<EventType> types = of_members_and_rounds();
    for (const auto& more : {of_the_job(), of_losses()})
      types.insert(types.end(), more.begin(), more.end());
    return types;
  }();
  return kTypes;
}

const EventType& lost_events() {
  static const EventType kLost = {"events.lost",
                                  "In a stream only: the server dropped events before it could "
                                  "send them. The stream continues at `id`.",
                                  {{"after", kCount, "The requested `since`."},
                                   {"lost", kCount, "How many are missing, at least.", 1}}};
  return kLost;
}

}  // namespace centroid::server
