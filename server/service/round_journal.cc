#include "server/service/round_journal.h"

#include <cstdio>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::server {

using journal::Form;

namespace {

std::string exact(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

journal::Base RoundJournal::base() const {
  journal::Base base;
  if (!journal_.is_on() && !config_.writes_journal()) return base;
  base.run_id = job_.run_id;
  base.terms = terms();
  base.round = Round(job_.round.value - 1);
  base.version = job_.store().version();
  base.optimizer_step = job_.store().optimizer_step();
  base.plan_hash = job_.store().plan().hash();
  return base;
}

/// Everything that the bits of a replay depend on, beside the journal and the checkpoint.
std::string RoundJournal::terms() const {
  const OptimizerConfig& o = config_.optimizer;
  // The rate is the one of the rounds, which may not be the one that is wanted from the next on.
  const OptimizerConfig& used = job_.shard ? job_.store().optimizer().config() : o;
  return "apply=" + std::string(config_.applies_on_worker() ? "worker" : "server") +
         " codec_down=" + config_.transfer.codec_down + " seed=" + std::to_string(config_.seed) +
         " optimizer=" + o.name + " learning_rate=" + exact(used.learning_rate) +
         " schedule=" + used.schedule + " clip_norm=" + exact(o.clip_norm) +
         " momentum=" + exact(o.momentum) + " beta1=" + exact(o.beta1) +
         " beta2=" + exact(o.beta2) + " epsilon=" + exact(o.epsilon) +
         " weight_decay=" + exact(o.weight_decay) + " l1=" + exact(o.l1) +
         " ftrl_beta=" + exact(o.ftrl_beta) +
         (config_.local.fragments > 1 ? " fragments=" + std::to_string(config_.local.fragments)
                                      : "");
}

void RoundJournal::write_chunk(const Chunk& chunk) {
  const Bytes numbers = std::as_bytes(std::as_const(job_.store()).spare(chunk));
  if (job_.shard->encodes())  // the codec's residual grows in this memory
    journal_.chunk_copy(chunk.id, job_.shard->form(), numbers);
  else
    journal_.chunk(chunk.id, job_.shard->form(), numbers);
}

std::uint64_t RoundJournal::end_round(journal::Kind kind, const RoundDecision& decision) {
  if (!journal_.is_on()) return 0;
  const bool counts = kind == journal::Kind::kCommit;
  const DataPosition next = data_.next_position();
  journal::Commit commit;
  commit.version = counts ? job_.store().version().next() : job_.store().version();
  commit.optimizer_step = job_.store().optimizer_step() + (counts ? 1 : 0);
  commit.epoch = next.epoch;
  commit.offset = next.offset;
  commit.generation = open_.attempt->generation;
  commit.weight = counts ? decision.total_weight : 0;
  commit.chunks = counts ? static_cast<std::uint32_t>(job_.shard->round_chunks().size()) : 0;
  commit.unix_seconds = clock_.unix_seconds();
  commit.steps = job_.steps_before + (counts ? open_.tally.steps : 0);
  if (counts) {
    for (const MemberId member : decision.contributors) {
      commit.contributors.push_back(members_.name_of(member));
      commit.rounds.push_back(job_.round);
    }
    for (const LateContribution& late : decision.late) {
      commit.contributors.push_back(members_.name_of(late.member));
      commit.rounds.push_back(late.round);
    }
  }
  commit.returned = data_.untrained(true);
  if (counts) commit.rate_factor = job_.store().optimizer().rate_factor();
  return journal_.end_round(kind, std::move(commit));
}

/// With several servers, when all have prepared the round: this is what commits it.
Task<Status> RoundJournal::commit(const RoundDecision& decision) {
  fault::point("servers.prepared");
  const std::uint64_t number = end_round(journal::Kind::kCommit, decision);
  co_return co_await written(number);
}

/// Once the journal has what `number` stands for, the round may be told to the workers.
Task<Status> RoundJournal::written(std::uint64_t number) {
  const auto waits = begin_wait();
  const TimePoint begin = clock_.now();
  co_await journal_.done(number);
  static const trace::Lane kLane("journal");
  if (journal_.is_on()) probe_.journal_stage().ended(kLane, begin, clock_.now(), job_.round.value);
  co_return co_await gate_.may_commit();
}

/// A name for waiting until the journal's disk has taken what it was asked to.
Waits::Guard RoundJournal::begin_wait() {
  return waits_.begin(WaitCause::kJournal, present_round(job_), "journal", [this] {
    const auto state = journal_.state();
    return state.trouble.empty() ? "its disk, at " + config_.journal.dir : state.trouble;
  });
}

}  // namespace centroid::server
