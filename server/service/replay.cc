#include "server/service/replay.h"

#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/storage/file.h"
#include "server/service/cluster.h"

/// How a server takes the rounds of the journal up again: the same steps on the same bits as in
/// training.
namespace centroid::server {

using journal::Form;
using journal::Kind;

namespace {

/// Chunks that are asked for at once.
constexpr std::size_t kRecallsAtOnce = 8;
constexpr std::size_t kChunksPerTurn = 4;

/// Let sockets and timers have a turn in the middle of long work.
Task<void> yield(Executor executor) {
  co_await boost::asio::post(executor, boost::asio::use_awaitable);
}

Error mismatch(const std::string& folder, const std::string& why) {
  return {ErrorCode::kFailedPrecondition, "journal " + folder + ": " + why};
}

/// Take the rate out of a segment's terms (Cluster::journal_terms). None: they are no such text.
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

Status Cluster::check_replay(const journal::Base& base) const {
  const std::string& folder = config_.journal_dir;
  if (base.run_id != job_.run_id)
    return mismatch(folder, "it belongs to run '" + base.run_id + "', the checkpoint to '" +
                                job_.run_id + "': move the journal away to go on without it");
  std::string then = base.terms, now = replay_->terms;
  const auto rate = take_rate(then);
  (void)take_rate(now);
  replay_->rate = rate.value_or(Replay::Rate());
  replay_->mismatch.reset();
  if (!rate || then != now || base.plan_hash != job_.store->plan().hash())
    replay_->mismatch = mismatch(
        folder,
        "it was written with other settings, with which its rounds have other bits: resume "
        "with the old ones until there is a checkpoint (a stop writes one); learning_rate and "
        "schedule may be others. They were: " +
            base.terms + (then == now ? ", and another chunk_bytes" : "") +
            "; now: " + replay_->terms);
  if (base.round.value >= job_.round.value)
    return mismatch(folder, "its segment begins after round " + to_string(base.round) +
                                ", the checkpoint ends at round " +
                                std::to_string(job_.round.value - 1) +
                                ": the rounds between are lost. Move the journal away to go on "
                                "from the checkpoint");
  return {};
}

/// After `load_checkpoint`, with all chunks on this server: the rounds behind the checkpoint.
Status Cluster::begin_replay() {
  replay_.reset();
  auto replay = std::make_unique<Replay>(config_.journal_dir);
  if (replay->reader.segments().empty()) return {};
  if (!job_.store)
    return mismatch(config_.journal_dir,
                    "there is no checkpoint to which its rounds could be added");
  replay->begin = clock_.now();
  replay->terms = journal_terms();  // settings may be changed while files are read
  replay->why = "its segments in " + config_.journal_dir + " are read";
  replay->first = job_.round;
  replay->has.resize(job_.store->plan().chunks().size());
  replay_ = std::move(replay);
  return {};
}

/// As far as it goes. True: to the end; false: a server must come first, `waits_for`. Files are
/// read by the blocking thread: this one answers meanwhile, and takes nobody in (`replay_`).
Task<Result<bool>> Cluster::replay_on() {
  Replay& replay = *replay_;
  const auto what = [this] { return "round " + to_string(job_.round) + " of the journal"; };
  const auto waits = waits_.begin(WaitCause::kJournal, "replay", "blocking thread", what);
  while (!replay.is_at_gap && !replay.is_cut) {
    if (!replay.end) {
      auto read = [this] { return std::make_shared<Status>(read_round()); };
      const auto found = co_await run_on(blocking_, std::move(read));
      CENTROID_CO_TRY(*found);
      if (!replay.end) break;
    }
    CENTROID_CO_ASSIGN(const bool is_over, co_await replay_end());
    if (!is_over) co_return false;
    replay.waits_for.clear();  // not before: it may be asked for its part again, and given up then
  }
  CENTROID_CO_TRY(co_await finish_replay());
  co_return true;
}

/// Up to the end of a round that is not in the checkpoint, its own chunks into the spare plane;
/// without one: to where nothing can be replayed. On the blocking thread, which has the reader, the
/// spare plane and what `replay_` has read while this runs.
Status Cluster::read_round() {
  Replay& replay = *replay_;
  fault::point("journal.reading");
  while (!replay.end && !replay.is_at_gap) {
    CENTROID_ASSIGN(const auto record, replay.reader.next());
    if (!record) break;
    if (const auto* base = std::get_if<journal::Base>(&*record)) {
      replay.is_at_gap = base->follows_gap && base->round.value >= job_.round.value;
      replay.route = {};  // it stands behind the base anew
      if (!replay.is_at_gap) CENTROID_TRY(check_replay(*base));
    } else if (const auto* route = std::get_if<journal::Route>(&*record)) {
      if (replay.mismatch) continue;
      if (route->owners.size() != replay.has.size())
        return mismatch(config_.journal_dir, "a route of " + std::to_string(route->owners.size()) +
                                                 " chunks, the model has " +
                                                 std::to_string(replay.has.size()));
      replay.route = *route;
    } else if (const auto* chunk = std::get_if<journal::Reader::Chunk>(&*record)) {
      if (replay.mismatch) {
        replay.reader.skip();
        continue;
      }
      CENTROID_ASSIGN(const bool is_sound, read_chunk(chunk->head));
      if (!is_sound) break;
    } else if (const auto* end = std::get_if<journal::Reader::End>(&*record)) {
      if (end->head.round < job_.round) continue;
      if (replay.mismatch) return *replay.mismatch;
      replay.end = *end;
    }
  }
  return {};
}

/// Numbers of one of this server's own chunks. False: it is the torn tail.
Result<bool> Cluster::read_chunk(const journal::Head& head) {
  Replay& replay = *replay_;
  if (head.round < job_.round) {
    replay.reader.skip();
    return true;
  }
  if (head.round != replay.present.round || head.attempt != replay.present.attempt ||
      replay.count == 0) {
    replay.has.assign(replay.has.size(), false);
    replay.count = 0;
  }
  replay.present = head;
  const bool is_known = head.chunk.value < replay.has.size() && head.form == journal_form() &&
                        has_turn(job_.store->plan().chunk(head.chunk)) &&
                        replay.is_mine(head.chunk);
  const std::uint64_t bytes =
      is_known ? job_.store->plan().chunk(head.chunk).elements * sizeof(float) : 0;
  if (!is_known || head.payload_bytes != bytes || replay.has[head.chunk.value])
    return mismatch(config_.journal_dir, "round " + to_string(head.round) + ", chunk " +
                                             to_string(head.chunk) +
                                             ": not a chunk of this model, or twice there");
  const std::span<float> into = job_.store->spare(job_.store->plan().chunk(head.chunk));
  CENTROID_ASSIGN(const bool is_sound, replay.reader.read(std::as_writable_bytes(into)));
  if (!is_sound) return false;
  replay.has[head.chunk.value] = true;
  ++replay.count;
  return true;
}

/// A round whose end has been read: with the parts that other servers have, it is replayed. False:
/// one of them must come first.
Task<Result<bool>> Cluster::replay_end() {
  Replay& replay = *replay_;
  const journal::Head head = replay.end->head;
  const journal::Commit commit = replay.end->commit;
  const bool counts = head.kind == Kind::kCommit;
  std::size_t wanted = 0;
  std::vector<Chunk> elsewhere;
  for (const Chunk& chunk : fragment().chunks) {
    if (replay.is_mine(chunk.id))
      ++wanted;
    else
      elsewhere.push_back(chunk);
  }
  const bool is_whole = replay.count == wanted && head.round == replay.present.round &&
                        head.attempt == replay.present.attempt;
  if (head.round != job_.round || (counts && !is_whole && wanted > 0))
    co_return mismatch(config_.journal_dir, "the end of round " + to_string(head.round) +
                                                " came where that of round " +
                                                to_string(job_.round) + " was expected, with " +
                                                std::to_string(replay.count) + " of " +
                                                std::to_string(wanted) + " chunks");
  if (counts && !elsewhere.empty()) {
    CENTROID_CO_ASSIGN(const bool is_here, co_await recall_all(std::move(elsewhere)));
    if (!is_here) co_return replay.is_cut;
  }
  const Form form = wanted > 0 ? replay.present.form : journal_form();
  if (counts) CENTROID_CO_TRY(co_await replay_round(form, commit));
  for (std::size_t i = 0; counts && i < commit.contributors.size(); ++i) {
    Round& last =
        job_.counted[commit.contributors[i]];  // it may stand there twice, once for a late one
    last = std::max(last, i < commit.rounds.size() ? commit.rounds[i] : job_.round);
  }
  replay.count = 0;
  replay.end.reset();
  job_.round = job_.round.next();
  job_.epoch = commit.epoch;
  job_.offset = commit.offset;
  if (commit.steps > 0) job_.steps_before = commit.steps;
  job_.returned.restore(commit.returned);
  roster_.restore(std::max(roster_.generation(), commit.generation));
  co_return true;
}

/// What several tasks ask other servers for, each the next.
struct Cluster::Recalls {
  std::vector<std::pair<std::shared_ptr<ShardGroup::Link>, Chunk>> wanted;
  std::size_t next = 0;
  proto::Recall head;
  std::optional<Error> failed;
  std::string failed_at;  ///< name of the server
};

/// Chunks of the round that is being replayed, from the servers on which they lay. False: one of
/// them is not here or has not its part, or the replay is cut there.
Task<Result<bool>> Cluster::recall_all(std::vector<Chunk> chunks) {
  Replay& replay = *replay_;
  Recalls all;
  all.head.round = replay.end->head.round;
  all.head.attempt = replay.end->head.attempt;
  const std::string what = " for its part of round " + to_string(job_.round) +
                           ": its journal has chunks of the rounds behind the checkpoint; "
                           "draining it goes on without, from round " +
                           std::to_string(job_.round.value - 1);
  for (const Chunk& chunk : chunks) {
    const std::string& name = replay.route.servers[replay.route.owners[chunk.id.value]];
    const auto link = shards_.find(name);
    if (replay.given_up.contains(name)) {
      cut_replay(name);
      co_return false;
    }
    if (!link) {
      replay.waits_for = name;
      replay.why = "server '" + name + "' is waited" + what;
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
  if (replay.given_up.contains(all.failed_at)) {
    cut_replay(all.failed_at);
    co_return false;
  }
  log::error("journal.part_missing", {{"server", all.failed_at},
                                      {"round", job_.round.value},
                                      {"why", *all.failed},
                                      {"action", "the replay waits"}});
  replay.waits_for = all.failed_at;
  replay.why = "server '" + all.failed_at + "' is waited" + what + " (" + all.failed->message() +
               "; was it started with the run_dir that it had?)";
  co_return false;
}

Task<void> Cluster::recall_some(Recalls* all) {
  while (all->next < all->wanted.size() && !all->failed) {
    const auto [link, chunk] = all->wanted[all->next++];
    const Status recalled = co_await recall(all->head, link, chunk);
    if (recalled.ok() || all->failed) continue;
    all->failed = recalled.error();
    all->failed_at = link->name;
  }
}

Task<Status> Cluster::recall(proto::Recall head, std::shared_ptr<ShardGroup::Link> link,
                             Chunk chunk) {
  head.chunk = chunk.id;
  auto encoded = proto::encode(head);
  auto reply = co_await shards_.ask(link, proto::ServersKind::kRecall, std::move(encoded));
  if (!reply.ok()) co_return std::move(reply).error();
  CENTROID_CO_ASSIGN(const auto told, proto::decode<proto::RecallReply>(reply->head));
  const std::span<float> into = job_.store->spare(chunk);
  if (told.form != static_cast<std::uint8_t>(journal_form()) ||
      reply->payload.size() != into.size_bytes())
    co_return Error(ErrorCode::kDataLoss,
                    "server '" + link->name + "' recalled chunk " + to_string(chunk.id) +
                        " in form " + std::to_string(told.form) + " with " +
                        std::to_string(reply->payload.size()) + " bytes, expected form " +
                        std::to_string(static_cast<int>(journal_form())) + " with " +
                        std::to_string(into.size_bytes()));
  std::memcpy(into.data(), reply->payload.data(), into.size_bytes());
  co_return Status();
}

/// An operator goes on without a server's part of the present round.
void Cluster::cut_replay(const std::string& server) {
  replay_->is_cut = true;
  log::error("journal.rounds_given_up",
             {{"server", server},
              {"round", job_.round.value - 1},
              {"why", "an operator goes on without its part of the rounds behind"}});
}

Task<Status> Cluster::finish_replay() {
  Replay* const replay = replay_.get();
  journal::Reader& reader = replay->reader;
  if (replay->is_at_gap) {
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
    const auto is_removed = co_await run_on(blocking_, std::move(remove));
    CENTROID_CO_TRY(*is_removed);
  } else if (!replay->is_cut) {
    if (!reader.torn().empty())
      log::warn("journal.tail_cut", {{"why", reader.torn()}, {"action", "no round ends there"}});
    auto cut = [&reader] { return std::make_shared<Status>(reader.cut_tail()); };
    const auto is_cut = co_await run_on(blocking_, std::move(cut));
    CENTROID_CO_TRY(*is_cut);
  }
  fault::point("journal.replayed");
  const double elapsed = std::chrono::duration<double>(clock_.now() - replay->begin).count();
  job_.held = job_.position();
  const Replay::Rate wanted = rate_of(config_.optimizer);
  const double was = job_.store->optimizer().config().learning_rate;
  if (rate_of(job_.store->optimizer().config()) != wanted)
    log::info("optimizer.rate_changed",
              {{"from", was}, {"to", wanted.learning_rate}, {"schedule", wanted.schedule}});
  CENTROID_CO_TRY(use_rate(*job_.store, wanted));
  log::info("journal.replayed",
            {{"rounds", job_.round.value - replay->first.value},
             {"round", job_.round.value - 1},
             {"version", job_.store->version().value},
             {"servers", std::max<std::size_t>(replay->route.servers.size(), 1)},
             {"seconds", elapsed}});
  replay_.reset();
  co_return Status();
}

/// The round's numbers are in the spare plane.
Task<Status> Cluster::replay_round(Form form, journal::Commit commit) {
  const std::vector<Chunk>& chunks = fragment().chunks;
  CENTROID_CO_TRY(use_rate(*job_.store, replay_->rate));
  job_.store->set_rate_factor(commit.rate_factor);
  std::size_t turn = 0;
  if (job_.replies) {
    CENTROID_CO_TRY(co_await replay_replies(commit.generation));
  } else if (form == Form::kMean) {
    co_await clip(0);
    for (const Chunk& chunk : chunks) {
      job_.store->shadow_apply(chunk);
      if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
    }
    job_.store->commit_in_place(chunks);
  } else {
    if (form == Form::kSum) co_await clip(commit.weight);
    for (const Chunk& chunk : chunks) {
      if (form != Form::kSum) break;
      if (config_.optimizer.clip_norm == 0) job_.store->scale(chunk, commit.weight);
      job_.store->apply(chunk);
      if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
    }
    job_.store->commit_swap(chunks);
  }
  if (job_.store->version() != commit.version ||
      job_.store->optimizer_step() != commit.optimizer_step)
    co_return mismatch(config_.journal_dir, "round " + to_string(job_.round) + " ends at version " +
                                                to_string(commit.version) + ", the replay at " +
                                                to_string(job_.store->version()));
  co_return Status();
}

/// Means through the codec of the results, as in the round itself.
Task<Status> Cluster::replay_replies(Generation generation) {
  if (job_.replies->resets_residual() && job_.replies_generation != generation) {
    job_.store->clear_residual();
    job_.replies->set_rounds(0);
  }
  job_.replies_generation = generation;
  job_.replies->begin(job_.round);
  std::deque<std::vector<std::byte>> payloads;
  std::vector<Attempt::Piece> pieces;
  const auto emit = [&](const Chunk& of, std::vector<std::byte> payload) {
    payloads.push_back(std::move(payload));
    pieces.push_back({of.id, payloads.back(), std::nullopt});
  };
  ReplyEncoder::Memory memory;
  const std::vector<Chunk>& part = fragment().chunks;
  for (const Chunk& chunk : part) (void)job_.store->spare(chunk);
  memory.means = job_.store->all_spare();
  if (job_.store->keeps_residual()) memory.residual = job_.store->residual();
  std::size_t turn = 0;
  for (const Chunk& chunk : part) {
    const Status encoded = job_.replies->complete(chunk.id, memory, emit);
    CENTROID_CO_TRY(encoded);
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
  std::ranges::sort(pieces, {}, &Attempt::Piece::chunk);
  if (config_.optimizer.clip_norm > 0) {
    open_.squares.resize(job_.store->plan().chunks().size());
    for (const Attempt::Piece& piece : pieces) {
      const Chunk& chunk = job_.store->plan().chunk(piece.chunk);
      CENTROID_CO_ASSIGN(open_.squares[piece.chunk.value],
                         job_.reply_reader->squares(chunk, piece.values));
    }
    clip_measured();
  }
  for (const Attempt::Piece& piece : pieces) {
    CENTROID_CO_TRY(apply_reply(piece));
    if (++turn % kChunksPerTurn == 0) co_await yield(executor_);
  }
  job_.store->commit_in_place(part);
  job_.replies->commit();
  job_.replies_committed = job_.replies_generation;
  co_return Status();
}

}  // namespace centroid::server
