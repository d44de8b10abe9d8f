#include <algorithm>
#include <cstdio>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "server/service/cluster.h"

/// The journal of rounds: what is written of each, and how a restarted server takes it up again.
/// A round is in the journal before anybody hears that it is committed; its numbers go there chunk
/// by chunk while it is open; replay.cc reads it.
namespace centroid::server {

using journal::Form;
using journal::Kind;

namespace {

/// When the journal could not begin.
constexpr std::chrono::milliseconds kAgain{500};

/// Such errors of a disk may pass: it is full, or a part of it is away.
bool is_of_disk(const Error& why) {
  return why.code() == ErrorCode::kResourceExhausted || why.code() == ErrorCode::kDataLoss ||
         why.code() == ErrorCode::kInternal;
}

std::string exact(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

DataPosition Cluster::next_position() const {
  const std::uint64_t end = job_.offset + open_.samples, samples = job_.agreed->train_samples;
  // An epoch is over when the shares of lost workers are trained, too.
  const bool is_over = end > samples || (end == samples && job_.returned.will_be_empty());
  if (!is_over) return {.epoch = job_.epoch, .offset = end};
  return {.epoch = job_.epoch + 1, .offset = end - samples};
}

/// Everything that the bits of a replay depend on, beside the journal and the checkpoint.
std::string Cluster::journal_terms() const {
  const OptimizerConfig& o = config_.optimizer;
  // The rate is the one of the rounds, which may not be the one that is wanted from the next on.
  const OptimizerConfig& used = job_.store ? job_.store->optimizer().config() : o;
  return "apply=" + std::string(config_.applies_on_worker() ? "worker" : "server") +
         " codec_down=" + config_.codec_down + " seed=" + std::to_string(config_.seed) +
         " optimizer=" + o.name + " learning_rate=" + exact(used.learning_rate) +
         " schedule=" + used.schedule + " clip_norm=" + exact(o.clip_norm) +
         " momentum=" + exact(o.momentum) + " beta1=" + exact(o.beta1) +
         " beta2=" + exact(o.beta2) + " epsilon=" + exact(o.epsilon) +
         " weight_decay=" + exact(o.weight_decay) + " l1=" + exact(o.l1) +
         " ftrl_beta=" + exact(o.ftrl_beta) +
         (config_.fragments > 1 ? " fragments=" + std::to_string(config_.fragments) : "");
}

journal::Base Cluster::journal_base() const {
  journal::Base base;
  if (!journal_.is_on() && !config_.keeps_journal()) return base;
  base.run_id = job_.run_id;
  base.terms = journal_terms();
  base.round = Round(job_.round.value - 1);
  base.version = job_.store->version();
  base.optimizer_step = job_.store->optimizer_step();
  base.plan_hash = job_.store->plan().hash();
  return base;
}

/// Once there are parameters. A journal goes on from a checkpoint, so the first one comes before.
Task<Status> Cluster::start_journal() {
  if (!config_.keeps_journal() || journal_.is_on()) co_return Status();
  while (
      checkpointing_ &&
      spread_.has_others()) {  // one that is yet to begin waits for this loop, with several servers
    (void)blocking();
    if (spread_.freezes > 0) CENTROID_CO_TRY(co_await freeze_for_checkpoint());
    co_await checkpoint_done_.wait(clock_.now() + std::chrono::milliseconds(10));
  }
  std::optional<Waits::Guard> full;
  std::string trouble;
  for (;;) {
    const auto unsettled = [&] { return rows_servers_ ? rows_servers_->unsettled() : ""; };
    Status begun;
    if (job_.checkpointed == Version()) {
      if (const std::string why = unsettled(); !why.empty()) {  // `RowsServers::waits` tells of it
        phase_.set(Phase::kInitializing, "the journal begins when all tables are here: " + why);
        (void)co_await changed_.wait(clock_.now() + std::chrono::milliseconds(10));
        co_return Status();  // again
      }
      const auto waits = waits_.begin(WaitCause::kCheckpoint, "job", "checkpoint",
                                      "the first one, with which the journal begins");
      phase_.set(Phase::kInitializing, "the checkpoint with which the journal begins is written");
      is_loop_writing_ = true;
      const auto losses = [&] { return rows_servers_ ? rows_servers_->losses() : 0; };
      const std::uint64_t before = losses();  // one that was lost may be back already
      const auto written = co_await write_checkpoint(false);
      is_loop_writing_ = false;
      if (!written.ok() && (has_lost_server() || !unsettled().empty() || losses() != before))
        co_return Status();  // again when it is settled
      if (!written.ok() && gate_.has_election() &&
          written.error().code() == ErrorCode::kUnavailable) {
        log::warn("journal.not_begun", {{"why", written.error()}, {"action", "it is tried again"}});
        (void)co_await changed_.wait(clock_.now() + kAgain);
        co_return co_await gate_.may_commit();
      }
      if (!written.ok())
        begun = written.error().with_context("journal on: the checkpoint that it begins with");
    }
    CENTROID_CO_TRY(co_await gate_.may_commit());
    if (begun.ok()) {
      JournalWriter::Options options;
      options.folder = config_.journal_dir;
      options.sync_every = config_.journal_sync;
      options.waits = config_.journal_full == "wait";
      options.on_sync = [this](double seconds) { probe_.journal_synced(seconds); };
      options.may_write = gate_.may_write();
      journal_.on_progress([this] { changed_.notify_all(); });  // chunks may wait for its room
      begun = journal_.start(std::move(options), journal_base(), journal_route());
    }
    if (begun.ok()) break;
    if (config_.journal_full != "wait" || !is_of_disk(begun.error())) co_return begun;
    if (!full)
      log::error("journal.waits", {{"error", begun.error()}, {"action", "no round begins before"}});
    trouble = begun.error().message();
    if (!full) waits_.begin(full, WaitCause::kJournal, "job", "journal", [&] { return trouble; });
    phase_.set(Phase::kInitializing, "the journal cannot begin: " + trouble);
    JournalWriter::State told;
    told.trouble = trouble;
    probe_.journal(told);
    (void)co_await changed_.wait(clock_.now() + kAgain);
    if (stopping_.is_requested || commands_.pause || restore_ || has_lost_server() ||
        checkpointing_)
      co_return Status();  // again
  }
  log::info("journal.begun", {{"dir", config_.journal_dir},
                              {"round", job_.round.value - 1},
                              {"sync_ms", config_.journal_sync.count()}});
  co_return Status();
}

/// Where the chunks lie, for whoever reads the journal; without servers: all were always here.
journal::Route Cluster::journal_route() const {
  journal::Route route;
  if (spread_.route.version == 0 || !job_.store) return route;
  if (!spread_.has_others()) {
    route.servers.push_back(config_.leader_name());
    route.owners.assign(job_.store->plan().chunks().size(), 0);
    return route;
  }
  for (const proto::RouteServer& server : spread_.route.servers)
    route.servers.push_back(server.name);
  route.owners = spread_.route.owners;
  return route;
}

/// What the numbers of a complete chunk are when `chunk_complete` hands them over.
Form Cluster::journal_form() const {
  if (config_.applies_on_worker()) return Form::kMean;
  return job_.is_early ? Form::kParameters : Form::kSum;
}

void Cluster::journal_chunk(const Chunk& chunk) {
  const Bytes numbers = std::as_bytes(std::as_const(*job_.store).spare(chunk));
  if (job_.replies)  // the codec's residual grows in this memory
    journal_.chunk_copy(chunk.id, journal_form(), numbers);
  else
    journal_.chunk(chunk.id, journal_form(), numbers);
}

std::uint64_t Cluster::journal_end(Kind kind, const RoundDecision& decision) {
  if (!journal_.is_on()) return 0;
  const bool counts = kind == Kind::kCommit;
  const DataPosition next = next_position();
  journal::Commit commit;
  commit.version = counts ? job_.store->version().next() : job_.store->version();
  commit.optimizer_step = job_.store->optimizer_step() + (counts ? 1 : 0);
  commit.epoch = next.epoch;
  commit.offset = next.offset;
  commit.generation = open_.attempt->generation;
  commit.weight = counts ? decision.total_weight : 0;
  commit.chunks = counts ? static_cast<std::uint32_t>(part().size()) : 0;
  commit.unix_seconds = clock_.unix_seconds();
  commit.steps = job_.steps_before + (counts ? open_.tally.steps : 0);
  if (counts) {
    for (const MemberId member : decision.contributors) {
      commit.contributors.push_back(name_of(member));
      commit.rounds.push_back(job_.round);
    }
    for (const LateContribution& late : decision.late) {
      commit.contributors.push_back(name_of(late.member));
      commit.rounds.push_back(late.round);
    }
  }
  commit.returned = untrained(true);
  if (counts) commit.rate_factor = job_.store->optimizer().rate_factor();
  return journal_.end_round(kind, std::move(commit));
}

/// A name for waiting until the journal's disk has taken what it was asked to.
Waits::Guard Cluster::journal_wait() {
  return waits_.begin(WaitCause::kJournal, present_round(), "journal", [this] {
    const auto state = journal_.state();
    return state.trouble.empty() ? "its disk, at " + config_.journal_dir : state.trouble;
  });
}

/// With several servers, when all have prepared the round: this is what commits it.
Task<Status> Cluster::commit_in_journal(const RoundDecision& decision) {
  fault::point("servers.prepared");
  const std::uint64_t number = journal_end(Kind::kCommit, decision);
  co_return co_await written_in_journal(number);
}

/// Once the journal has what `number` stands for, the round may be told to the workers.
Task<Status> Cluster::written_in_journal(std::uint64_t number) {
  const auto waits = journal_wait();
  const TimePoint begin = clock_.now();
  co_await journal_.done(number);
  static const trace::Lane kLane("journal");
  if (journal_.is_on()) probe_.journal_stage().ended(kLane, begin, clock_.now(), job_.round.value);
  co_return co_await gate_.may_commit();
}

}  // namespace centroid::server
