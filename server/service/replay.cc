#include "server/service/replay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/storage/file.h"
#include "common/tensor/finite.h"
#include "server/store/turns.h"

/// How a server takes the rounds of the journal up again: the same steps on the same bits as in
/// training.
namespace centroid::server {

namespace {

/// Chunks that are asked for at once.
constexpr std::size_t kRecallsAtOnce = 8;
/// Rounds that are stepped together. With 16 the memory's part in parameters and slots is small
/// beside that in the rounds' numbers.
constexpr std::size_t kRoundsAtOnce = 16;

PastRound::Rate rate_of(const OptimizerConfig& config) {
  return {config.learning_rate, config.schedule};
}

Status use_rate(ParameterStore& store, const PastRound::Rate& rate) {
  OptimizerConfig wanted = store.optimizer().config();
  if (rate_of(wanted) == rate) return {};
  wanted.learning_rate = rate.learning_rate;
  wanted.schedule = rate.schedule;
  CENTROID_ASSIGN(auto optimizer, make_optimizer(wanted));
  store.set_optimizer(std::move(optimizer));
  return {};
}

}  // namespace

Replay::Replay(JobContext& context, std::unique_ptr<journal::Reader> reader,
               const RoundJournal& journal, ShardGroup& shards, LocalShard& local)
    : JobPart(context),
      shards_(shards),
      local_(local),
      past_(std::move(reader), job_, journal, config_.journal.dir),
      first_(job_.round),
      begin_(clock_.now()),
      why_("its segments in " + config_.journal.dir + " are read") {}

/// As far as it goes. True: to the end; false: a server must come first, `waits_for`. Files are
/// read by the blocking thread: this one answers meanwhile, and takes nobody in (`replay_`).
Task<Result<bool>> Replay::run() {
  const auto what = [this] { return "round " + to_string(job_.round) + " of the journal"; };
  const auto waits = waits_.begin(WaitCause::kJournal, "replay", "blocking thread", what);
  while (!is_cut_) {
    if (rounds_.empty()) {
      auto read = [this] { return read_ahead(at_once_); };
      CENTROID_CO_TRY(co_await run_on(disk_.executor, std::move(read)));
      if (rounds_.empty()) break;
    }
    CENTROID_CO_ASSIGN(const bool is_over, co_await replay_next());
    if (!is_over) co_return false;
    waits_for_.clear();  // not before: it may be asked for its part again, and given up then
  }
  CENTROID_CO_TRY(co_await finish());
  co_return true;
}

/// Until so many rounds wait. On the blocking thread, which has them and the journal while this
/// runs.
Status Replay::read_ahead(std::size_t rounds) {
  while (rounds_.size() < rounds && !past_.is_over()) {
    CENTROID_ASSIGN(auto round, past_.next());
    if (round) rounds_.push_back(std::move(*round));
  }
  return {};
}

/// It needs others' parts, or the codec of the results; or the norms need the present step.
bool Replay::is_alone(const PastRound& round) const {
  return job_.shard->encodes() || !round.elsewhere.empty() ||
         (config_.optimizer.clip_norm > 0 && job_.shard->fragments().count() > 1);
}

/// The rounds that have been read, or the first of them: with the parts that other servers have.
/// False: one of them must come first.
Task<Result<bool>> Replay::replay_next() {
  const PastRound& first = rounds_.front();
  if (first.counts() && !first.elsewhere.empty()) {
    CENTROID_CO_ASSIGN(const bool is_here, co_await recall_all(first));
    if (!is_here) co_return is_cut_;
  }
  std::size_t count = 1;
  if (!is_alone(first))
    while (count < rounds_.size() && !is_alone(rounds_[count])) ++count;
  CENTROID_CO_ASSIGN(std::vector<PastStep> steps, steps_of(count));
  if (!steps.empty() && job_.shard->encodes())
    CENTROID_CO_TRY(co_await replay_results(first));
  else if (!steps.empty())
    CENTROID_CO_TRY(co_await make_steps(&steps, count + at_once_));
  for (; count > 0; --count) end_round();
  at_once_ = std::min(2 * at_once_, kRoundsAtOnce);
  co_return true;
}

/// Of the first so many rounds.
Result<std::vector<PastStep>> Replay::steps_of(std::size_t count) {
  ParameterStore& store = job_.store();
  std::vector<PastStep> steps;
  for (std::size_t i = 0; i < count; ++i) {
    const PastRound& round = rounds_[i];
    if (!round.counts()) continue;
    CENTROID_TRY(use_rate(store, round.rate));
    store.set_rate_factor(round.commit.rate_factor);
    PastStep step;
    step.round = &round;
    const std::uint64_t before = store.optimizer_step() + steps.size();
    step.rule = store.optimizer().at(job_.shard->fragments().steps_before(before) + 1);
    steps.push_back(step);
    const Version version(store.version().value + steps.size());
    if (version != round.commit.version || before + 1 != round.commit.optimizer_step)
      return Error(ErrorCode::kFailedPrecondition,
                   "journal " + config_.journal.dir + ": round " + to_string(round.head.round) +
                       " ends at version " + to_string(round.commit.version) + ", the replay at " +
                       to_string(version));
  }
  return steps;
}

/// The next rounds are read meanwhile, up to so many in all.
Task<Status> Replay::make_steps(std::vector<PastStep>* steps, std::size_t rounds) {
  if (config_.optimizer.clip_norm > 0) {
    auto measure = [this, steps] { return squares_again(job_.store(), *steps); };
    CENTROID_CO_ASSIGN(auto squares, co_await run_on(disk_.executor, std::move(measure)));
    for (std::size_t i = 0; i < steps->size(); ++i) {
      open_.squares = std::move(squares[i]);
      (*steps)[i].gradient_factor = local_.clip_measured();
    }
  }
  auto make = [this, steps, rounds] {
    Status is_read;
    Status made = step_again(job_.store(), *steps, [&] { is_read = read_ahead(rounds); });
    return made.ok() ? is_read : made;
  };
  CENTROID_CO_TRY(co_await run_on(disk_.executor, std::move(make)));
  for (std::size_t i = 0; i < steps->size(); ++i) job_.store().commit_in_place();
  co_return Status();
}

/// The first round is in the store.
void Replay::end_round() {
  const PastRound& round = rounds_.front();
  const journal::Commit& commit = round.commit;
  for (std::size_t i = 0; round.counts() && i < commit.contributors.size(); ++i)
    job_.counted.add(commit.contributors[i],
                     i < commit.rounds.size() ? commit.rounds[i] : job_.round);
  job_.round = job_.round.next();
  job_.epoch = commit.epoch;
  job_.offset = commit.offset;
  if (commit.steps > 0) job_.steps_before = commit.steps;
  job_.returned.restore(commit.returned);
  members_.roster.restore(std::max(members_.roster.generation(), commit.generation));
  rounds_.pop_front();
}

/// What several tasks ask other servers for, each the next.
struct Replay::Recalls {
  std::vector<std::pair<std::shared_ptr<ShardSession>, Chunk>> wanted;
  std::size_t next = 0;
  proto::Recall head;
  std::optional<Error> failed;
  std::string failed_at;  ///< name of the server
};

/// Chunks of the round that is being replayed, from the servers on which they lay. False: one of
/// them is not here or has not its part, or the replay is cut there.
Task<Result<bool>> Replay::recall_all(const PastRound& round) {
  Recalls all;
  all.head.round = round.head.round;
  all.head.attempt = round.head.attempt;
  const std::string what = " for its part of round " + to_string(job_.round) +
                           ": its journal has chunks of the rounds behind the checkpoint; "
                           "draining it goes on without, from round " +
                           std::to_string(job_.round.value - 1);
  for (const Chunk& chunk : round.elsewhere) {
    const std::string& name = round.route->servers[round.route->owners[chunk.id.value]];
    const auto shard = shards_.find(name);
    if (given_up_.contains(name)) {
      cut(name);
      co_return false;
    }
    if (!shard) {
      waits_for_ = name;
      why_ = "server '" + name + "' is waited" + what;
      co_return false;
    }
    all.wanted.emplace_back(shard, chunk);
  }
  TaskGroup group(executor_);
  for (std::size_t i = 0; i < kRecallsAtOnce; ++i) group.spawn(recall_some(&all));
  co_await group.join();
  if (!all.failed && all.next < all.wanted.size())
    co_return Error(ErrorCode::kCancelled, "the server is stopping");
  if (!all.failed) co_return true;
  if (given_up_.contains(all.failed_at)) {
    cut(all.failed_at);
    co_return false;
  }
  log::error("journal.part_lost", {{"server", all.failed_at},
                                   {"round", job_.round.value},
                                   {"why", *all.failed},
                                   {"action", "the replay waits"}});
  waits_for_ = all.failed_at;
  why_ = "server '" + all.failed_at + "' is waited" + what + " (" + all.failed->message() +
         "; was it started with the run_dir that it had?)";
  co_return false;
}

Task<void> Replay::recall_some(Recalls* all) {
  while (all->next < all->wanted.size() && !all->failed) {
    const auto [shard, chunk] = all->wanted[all->next++];
    const Status recalled = co_await recall(all->head, shard, chunk);
    if (recalled.ok() || all->failed) continue;
    all->failed = recalled.error();
    all->failed_at = shard->name;
  }
}

Task<Status> Replay::recall(proto::Recall head, std::shared_ptr<ShardSession> shard, Chunk chunk) {
  head.chunk = chunk.id;
  auto encoded = proto::encode(head);
  auto reply = co_await shards_.ask(shard, proto::ServersKind::kRecall, std::move(encoded));
  if (!reply.ok()) co_return std::move(reply).error();
  CENTROID_CO_ASSIGN(const auto told, proto::decode<proto::RecallReply>(reply->head));
  const std::span<float> into = job_.store().spare(chunk);
  if (told.form != static_cast<std::uint8_t>(past_.form()) ||
      reply->payload.size() != into.size_bytes())
    co_return Error(ErrorCode::kDataLoss,
                    "server '" + shard->name + "' recalled chunk " + to_string(chunk.id) +
                        " in form " + std::to_string(told.form) + " with " +
                        std::to_string(reply->payload.size()) + " bytes, expected form " +
                        std::to_string(static_cast<int>(past_.form())) + " with " +
                        std::to_string(into.size_bytes()));
  std::memcpy(into.data(), reply->payload.data(), into.size_bytes());
  co_return Status();
}

/// An operator goes on without a server's part of the present round.
void Replay::cut(const std::string& server) {
  is_cut_ = true;
  log::error("journal.rounds_abandoned",
             {{"server", server},
              {"round", job_.round.value - 1},
              {"why", "an operator goes on without its part of the rounds behind"}});
}

/// With `apply worker` a round is committed before the server makes its step.
Status Replay::check_finite() const {
  if (policy_.nonfinite == NonFinitePolicy::kPropagate) return {};
  const ParameterStore& store = job_.store();
  for (const Chunk& chunk : store.plan().chunks())
    for (std::size_t plane = 0; store.is_here(chunk.id) && plane < store.planes(); ++plane)
      if (!is_finite(store.values(plane, chunk)))
        return Error(ErrorCode::kFailedPrecondition,
                     "a round in the journal made tensor " +
                         store.plan().manifest()[chunk.tensor.value].name +
                         " not finite: move the journal away to go on from the newest checkpoint");
  return {};
}

Task<Status> Replay::finish() {
  const journal::Reader& reader = past_.reader();
  if (past_.is_at_gap() && !is_cut_) {
    log::error("journal.gap_found", {{"round", job_.round.value - 1},
                                     {"why",
                                      "the journal could not be written then (journal.full), and "
                                      "no checkpoint came behind it: later rounds are lost"}});
    auto remove = [&reader, folder = config_.journal.dir, end = job_.round.value]() -> Status {
      for (const LogSegment& segment : reader.segments())
        if (segment.number >= end) CENTROID_TRY(file::remove(segment.path));
      journal::Reader rest(folder);
      for (;;) {
        CENTROID_ASSIGN(const auto record, rest.next());
        if (!record) return rest.cut_tail();
        if (std::holds_alternative<journal::Reader::Chunk>(*record)) rest.skip();
      }
    };
    CENTROID_CO_TRY(co_await run_on(disk_.executor, std::move(remove)));
  } else if (!is_cut_) {
    if (!reader.torn().empty())
      log::warn("journal.tail_cut", {{"why", reader.torn()}, {"action", "no round ends there"}});
    auto cut = [&reader] { return reader.cut_tail(); };
    CENTROID_CO_TRY(co_await run_on(disk_.executor, std::move(cut)));
  }
  fault::point("journal.replayed");
  CENTROID_CO_TRY(check_finite());
  const double elapsed = std::chrono::duration<double>(clock_.now() - begin_).count();
  job_.held = job_.position();
  const PastRound::Rate wanted = rate_of(config_.optimizer);
  const double was = job_.store().optimizer().config().learning_rate;
  if (rate_of(job_.store().optimizer().config()) != wanted)
    log::info("optimizer.rate_changed",
              {{"from", was}, {"to", wanted.learning_rate}, {"schedule", wanted.schedule}});
  CENTROID_CO_TRY(use_rate(job_.store(), wanted));
  log::info("journal.replayed", {{"rounds", job_.round.value - first_.value},
                                 {"round", job_.round.value - 1},
                                 {"version", job_.store().version().value},
                                 {"servers", std::max<std::size_t>(past_.servers(), 1)},
                                 {"seconds", elapsed}});
  co_return Status();
}

/// Means through the codec of the results, as in the round itself.
Task<Status> Replay::replay_results(const PastRound& round) {
  auto load = [this, &round] { return load_spare(job_.store(), round); };
  CENTROID_CO_TRY(co_await run_on(disk_.executor, std::move(load)));
  local_.begin_results(round.commit.generation);
  const auto results = std::make_shared<Attempt>();
  const auto emit = [&](const Chunk& of, std::vector<std::byte> payload) {
    results->payloads.push_back(std::move(payload));
    results->pieces.push_back({of.id, results->payloads.back(), std::nullopt});
  };
  std::size_t turn = 0;
  for (const Chunk& chunk : job_.shard->round_chunks()) {
    CENTROID_CO_TRY(job_.shard->encode(chunk, emit));
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
  if (config_.optimizer.clip_norm > 0) {
    CENTROID_CO_TRY(co_await local_.measure(results));
    local_.clip_measured();
  }
  co_return co_await local_.follow(results);
}

}  // namespace centroid::server
