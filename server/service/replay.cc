#include "server/service/replay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/storage/file.h"
#include "server/store/turns.h"

/// How a server takes the rounds of the journal up again: the same steps on the same bits as in
/// training.
namespace centroid::server {

using journal::Form;
using journal::Kind;

namespace {

/// Chunks that are asked for at once.
constexpr std::size_t kRecallsAtOnce = 8;

Error mismatched(const std::string& folder, const std::string& why) {
  return {ErrorCode::kFailedPrecondition, "journal " + folder + ": " + why};
}

/// Take the rate out of a segment's terms (RoundJournal::terms). None: they are no such text.
std::optional<Replay::Rate> take_rate(std::string& terms) {
  constexpr std::string_view kRate = " learning_rate=", kSchedule = " schedule=",
                             kBehind = " clip_norm=";
  const std::size_t begin = terms.find(kRate);
  const std::size_t middle = begin == std::string::npos ? begin : terms.find(kSchedule, begin);
  const std::size_t end = middle == std::string::npos ? middle : terms.find(kBehind, middle);
  if (end == std::string::npos) return std::nullopt;
  const std::string number = terms.substr(begin + kRate.size(), middle - begin - kRate.size());
  char* stop = nullptr;
  Replay::Rate rate;
  rate.learning_rate = std::strtod(number.c_str(), &stop);
  if (number.empty() || *stop != '\0') return std::nullopt;
  rate.schedule = terms.substr(middle + kSchedule.size(), end - middle - kSchedule.size());
  terms.erase(begin, end - begin);
  return rate;
}

Replay::Rate rate_of(const OptimizerConfig& config) {
  return {config.learning_rate, config.schedule};
}

Status use_rate(ParameterStore& store, const Replay::Rate& rate) {
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
      form_(job_.shard ? job_.shard->form() : Form::kNone),
      terms_(journal.terms()),
      shards_(shards),
      local_(local),
      reader_(std::move(reader)),
      first_(job_.round),
      begin_(clock_.now()),
      why_("its segments in " + config_.journal.dir + " are read") {
  if (job_.store) has_.resize(job_.store->plan().chunks().size());
}

Status Replay::check(const journal::Base& base) {
  const std::string& folder = config_.journal.dir;
  if (base.run_id != job_.run_id)
    return mismatched(folder, "it belongs to run '" + base.run_id + "', the checkpoint to '" +
                                  job_.run_id + "': move the journal away to go on without it");
  std::string then = base.terms, now = terms_;
  const auto rate = take_rate(then);
  (void)take_rate(now);
  rate_ = rate.value_or(Replay::Rate());
  mismatch_.reset();
  if (!rate || then != now || base.plan_hash != job_.store->plan().hash())
    mismatch_ = mismatched(
        folder,
        "it was written with other settings, with which its rounds have other bits: resume "
        "with the old ones until there is a checkpoint (a stop writes one); learning_rate and "
        "schedule may be others. They were: " +
            base.terms + (then == now ? ", and another chunk_bytes" : "") + "; now: " + terms_);
  if (base.round.value >= job_.round.value)
    return mismatched(folder, "its segment begins after round " + to_string(base.round) +
                                  ", the checkpoint ends at round " +
                                  std::to_string(job_.round.value - 1) +
                                  ": the rounds between are lost. Move the journal away to go on "
                                  "from the checkpoint");
  return {};
}

/// As far as it goes. True: to the end; false: a server must come first, `waits_for`. Files are
/// read by the blocking thread: this one answers meanwhile, and takes nobody in (`replay_`).
Task<Result<bool>> Replay::run() {
  const auto what = [this] { return "round " + to_string(job_.round) + " of the journal"; };
  const auto waits = waits_.begin(WaitCause::kJournal, "replay", "blocking thread", what);
  while (!is_at_gap_ && !is_cut_) {
    if (!end_) {
      auto read = [this] { return std::make_shared<Status>(read_round()); };
      const auto found = co_await run_on(disk_.executor, std::move(read));
      CENTROID_CO_TRY(*found);
      if (!end_) break;
    }
    CENTROID_CO_ASSIGN(const bool is_over, co_await replay_end());
    if (!is_over) co_return false;
    waits_for_.clear();  // not before: it may be asked for its part again, and given up then
  }
  CENTROID_CO_TRY(co_await finish());
  co_return true;
}

/// Up to the end of a round that is not in the checkpoint, its own chunks into the spare plane;
/// without one: to where nothing can be replayed. On the blocking thread, which has the reader, the
/// spare plane and what `replay_` has read while this runs.
Status Replay::read_round() {
  fault::point("journal.reading");
  while (!end_ && !is_at_gap_) {
    CENTROID_ASSIGN(const auto record, reader_->next());
    if (!record) break;
    if (const auto* base = std::get_if<journal::Base>(&*record)) {
      is_at_gap_ = base->follows_gap && base->round.value >= job_.round.value;
      route_ = {};  // it stands behind the base anew
      if (!is_at_gap_) CENTROID_TRY(check(*base));
    } else if (const auto* route = std::get_if<journal::Route>(&*record)) {
      if (mismatch_) continue;
      if (route->owners.size() != has_.size())
        return mismatched(config_.journal.dir,
                          "a route of " + std::to_string(route->owners.size()) +
                              " chunks, the model has " + std::to_string(has_.size()));
      route_ = *route;
    } else if (const auto* chunk = std::get_if<journal::Reader::Chunk>(&*record)) {
      if (mismatch_) {
        reader_->skip();
        continue;
      }
      CENTROID_ASSIGN(const bool is_sound, read_chunk(chunk->head));
      if (!is_sound) break;
    } else if (const auto* end = std::get_if<journal::Reader::End>(&*record)) {
      if (end->head.round < job_.round) continue;
      if (mismatch_) return *mismatch_;
      end_ = *end;
    }
  }
  return {};
}

/// Numbers of one of this server's own chunks. False: it is the torn tail.
Result<bool> Replay::read_chunk(const journal::Head& head) {
  if (head.round < job_.round) {
    reader_->skip();
    return true;
  }
  if (head.round != present_.round || head.attempt != present_.attempt || count_ == 0) {
    has_.assign(has_.size(), false);
    count_ = 0;
  }
  present_ = head;
  const bool is_known = head.chunk.value < has_.size() && head.form == form_ &&
                        job_.shard->has_turn(job_.store->plan().chunk(head.chunk)) &&
                        is_mine(head.chunk);
  const std::uint64_t bytes =
      is_known ? job_.store->plan().chunk(head.chunk).elements * sizeof(float) : 0;
  if (!is_known || head.payload_bytes != bytes || has_[head.chunk.value])
    return mismatched(config_.journal.dir, "round " + to_string(head.round) + ", chunk " +
                                               to_string(head.chunk) +
                                               ": not a chunk of this model, or twice there");
  const std::span<float> into = job_.store->spare(job_.store->plan().chunk(head.chunk));
  CENTROID_ASSIGN(const bool is_sound, reader_->read(std::as_writable_bytes(into)));
  if (!is_sound) return false;
  has_[head.chunk.value] = true;
  ++count_;
  return true;
}

/// A round whose end has been read: with the parts that other servers have, it is replayed. False:
/// one of them must come first.
Task<Result<bool>> Replay::replay_end() {
  const journal::Head head = end_->head;
  const journal::Commit commit = end_->commit;
  const bool counts = head.kind == Kind::kCommit;
  std::size_t wanted = 0;
  std::vector<Chunk> elsewhere;
  for (const Chunk& chunk : job_.shard->fragment().chunks) {
    if (is_mine(chunk.id))
      ++wanted;
    else
      elsewhere.push_back(chunk);
  }
  const bool is_whole =
      count_ == wanted && head.round == present_.round && head.attempt == present_.attempt;
  if (head.round != job_.round || (counts && !is_whole && wanted > 0))
    co_return mismatched(config_.journal.dir, "the end of round " + to_string(head.round) +
                                                  " came where that of round " +
                                                  to_string(job_.round) + " was expected, with " +
                                                  std::to_string(count_) + " of " +
                                                  std::to_string(wanted) + " chunks");
  if (counts && !elsewhere.empty()) {
    CENTROID_CO_ASSIGN(const bool is_here, co_await recall_all(std::move(elsewhere)));
    if (!is_here) co_return is_cut_;
  }
  const Form form = wanted > 0 ? present_.form : form_;
  if (counts) CENTROID_CO_TRY(co_await replay_round(form, commit));
  for (std::size_t i = 0; counts && i < commit.contributors.size(); ++i) {
    Round& last =
        job_.counted[commit.contributors[i]];  // it may stand there twice, once for a late one
    last = std::max(last, i < commit.rounds.size() ? commit.rounds[i] : job_.round);
  }
  count_ = 0;
  end_.reset();
  job_.round = job_.round.next();
  job_.epoch = commit.epoch;
  job_.offset = commit.offset;
  if (commit.steps > 0) job_.steps_before = commit.steps;
  job_.returned.restore(commit.returned);
  members_.roster.restore(std::max(members_.roster.generation(), commit.generation));
  co_return true;
}

/// What several tasks ask other servers for, each the next.
struct Replay::Recalls {
  std::vector<std::pair<std::shared_ptr<ShardGroup::Link>, Chunk>> wanted;
  std::size_t next = 0;
  proto::Recall head;
  std::optional<Error> failed;
  std::string failed_at;  ///< name of the server
};

/// Chunks of the round that is being replayed, from the servers on which they lay. False: one of
/// them is not here or has not its part, or the replay is cut there.
Task<Result<bool>> Replay::recall_all(std::vector<Chunk> chunks) {
  Recalls all;
  all.head.round = end_->head.round;
  all.head.attempt = end_->head.attempt;
  const std::string what = " for its part of round " + to_string(job_.round) +
                           ": its journal has chunks of the rounds behind the checkpoint; "
                           "draining it goes on without, from round " +
                           std::to_string(job_.round.value - 1);
  for (const Chunk& chunk : chunks) {
    const std::string& name = route_.servers[route_.owners[chunk.id.value]];
    const auto link = shards_.find(name);
    if (given_up_.contains(name)) {
      cut(name);
      co_return false;
    }
    if (!link) {
      waits_for_ = name;
      why_ = "server '" + name + "' is waited" + what;
      co_return false;
    }
    all.wanted.emplace_back(link, chunk);
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
  log::error("journal.part_missing", {{"server", all.failed_at},
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
    const auto [link, chunk] = all->wanted[all->next++];
    const Status recalled = co_await recall(all->head, link, chunk);
    if (recalled.ok() || all->failed) continue;
    all->failed = recalled.error();
    all->failed_at = link->name;
  }
}

Task<Status> Replay::recall(proto::Recall head, std::shared_ptr<ShardGroup::Link> link,
                            Chunk chunk) {
  head.chunk = chunk.id;
  auto encoded = proto::encode(head);
  auto reply = co_await shards_.ask(link, proto::ServersKind::kRecall, std::move(encoded));
  if (!reply.ok()) co_return std::move(reply).error();
  CENTROID_CO_ASSIGN(const auto told, proto::decode<proto::RecallReply>(reply->head));
  const std::span<float> into = job_.store->spare(chunk);
  if (told.form != static_cast<std::uint8_t>(form_) || reply->payload.size() != into.size_bytes())
    co_return Error(ErrorCode::kDataLoss,
                    "server '" + link->name + "' recalled chunk " + to_string(chunk.id) +
                        " in form " + std::to_string(told.form) + " with " +
                        std::to_string(reply->payload.size()) + " bytes, expected form " +
                        std::to_string(static_cast<int>(form_)) + " with " +
                        std::to_string(into.size_bytes()));
  std::memcpy(into.data(), reply->payload.data(), into.size_bytes());
  co_return Status();
}

/// An operator goes on without a server's part of the present round.
void Replay::cut(const std::string& server) {
  is_cut_ = true;
  log::error("journal.rounds_given_up",
             {{"server", server},
              {"round", job_.round.value - 1},
              {"why", "an operator goes on without its part of the rounds behind"}});
}

Task<Status> Replay::finish() {
  journal::Reader& reader = *reader_;
  if (is_at_gap_) {
    log::error("journal.gap", {{"round", job_.round.value - 1},
                               {"why",
                                "the journal could not be written then (journal.full), and "
                                "no checkpoint came behind it: later rounds are lost"}});
    auto remove = [&reader, end = job_.round.value] {
      auto removed = std::make_shared<Status>();
      for (const LogSegment& segment : reader.segments())
        if (segment.number >= end && removed->ok()) *removed = file::remove(segment.path);
      return removed;
    };
    const auto is_removed = co_await run_on(disk_.executor, std::move(remove));
    CENTROID_CO_TRY(*is_removed);
  } else if (!is_cut_) {
    if (!reader.torn().empty())
      log::warn("journal.tail_cut", {{"why", reader.torn()}, {"action", "no round ends there"}});
    auto cut = [&reader] { return std::make_shared<Status>(reader.cut_tail()); };
    const auto is_cut = co_await run_on(disk_.executor, std::move(cut));
    CENTROID_CO_TRY(*is_cut);
  }
  fault::point("journal.replayed");
  const double elapsed = std::chrono::duration<double>(clock_.now() - begin_).count();
  job_.held = job_.position();
  const Replay::Rate wanted = rate_of(config_.optimizer);
  const double was = job_.store->optimizer().config().learning_rate;
  if (rate_of(job_.store->optimizer().config()) != wanted)
    log::info("optimizer.rate_changed",
              {{"from", was}, {"to", wanted.learning_rate}, {"schedule", wanted.schedule}});
  CENTROID_CO_TRY(use_rate(*job_.store, wanted));
  log::info("journal.replayed", {{"rounds", job_.round.value - first_.value},
                                 {"round", job_.round.value - 1},
                                 {"version", job_.store->version().value},
                                 {"servers", std::max<std::size_t>(route_.servers.size(), 1)},
                                 {"seconds", elapsed}});
  co_return Status();
}

/// The round's numbers are in the spare plane.
Task<Status> Replay::replay_round(Form form, journal::Commit commit) {
  const std::vector<Chunk>& chunks = job_.shard->fragment().chunks;
  CENTROID_CO_TRY(use_rate(*job_.store, rate_));
  job_.store->set_rate_factor(commit.rate_factor);
  std::size_t turn = 0;
  if (job_.shard->encodes()) {
    CENTROID_CO_TRY(co_await replay_results(commit.generation));
  } else if (form == Form::kMean) {
    co_await local_.clip(0);
    CENTROID_CO_TRY(co_await local_.follow(nullptr));
  } else {
    if (form == Form::kSum) co_await local_.clip(commit.weight);
    for (const Chunk& chunk : chunks) {
      if (form != Form::kSum) break;
      if (config_.optimizer.clip_norm == 0) job_.store->scale(chunk, commit.weight);
      job_.shard->apply(chunk);
      if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
    }
    job_.shard->commit();
  }
  if (job_.store->version() != commit.version ||
      job_.store->optimizer_step() != commit.optimizer_step)
    co_return mismatched(config_.journal.dir, "round " + to_string(job_.round) +
                                                  " ends at version " + to_string(commit.version) +
                                                  ", the replay at " +
                                                  to_string(job_.store->version()));
  co_return Status();
}

/// Means through the codec of the results, as in the round itself.
Task<Status> Replay::replay_results(Generation generation) {
  local_.begin_results(generation);
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
