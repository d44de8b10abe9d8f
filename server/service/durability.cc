#include <algorithm>
#include <cstdio>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/journal_reader.h"
#include "server/service/cluster.h"

/// The journal of rounds: what is written of each, and how a restarted server takes it up again.
/// A round is in the journal before anybody hears that it is committed; its numbers go there chunk
/// by chunk while it is open. A replay runs the same steps on the same bits.
namespace centroid::server {

using journal::Form;
using journal::Kind;

namespace {

std::string exact(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

Error mismatch(const std::string& folder, const std::string& why) {
  return {ErrorCode::kFailedPrecondition, "journal " + folder + ": " + why};
}

}  // namespace

Cluster::DataPosition Cluster::next_position() const {
  const std::uint64_t end = offset_ + round_samples_, samples = agreed_->train_samples;
  // An epoch is over when the shares of lost workers are trained, too.
  const bool is_over = end > samples || (end == samples && returned_.will_be_empty());
  if (!is_over) return {.epoch = epoch_, .offset = end};
  return {.epoch = epoch_ + 1, .offset = end - samples};
}

/// Everything that the bits of a replay depend on, beside the journal and the checkpoint.
std::string Cluster::journal_terms() const {
  const OptimizerConfig& o = config_.optimizer;
  return "apply=" + std::string(config_.applies_on_worker() ? "worker" : "server") +
         " codec_down=" + config_.codec_down + " seed=" + std::to_string(config_.seed) +
         " optimizer=" + o.name + " learning_rate=" + exact(o.learning_rate) +
         " schedule=" + o.schedule + " clip_norm=" + exact(o.clip_norm) +
         " momentum=" + exact(o.momentum) + " beta1=" + exact(o.beta1) +
         " beta2=" + exact(o.beta2) + " epsilon=" + exact(o.epsilon) +
         " weight_decay=" + exact(o.weight_decay) + " l1=" + exact(o.l1) +
         " ftrl_beta=" + exact(o.ftrl_beta) +
         (config_.fragments > 1 ? " fragments=" + std::to_string(config_.fragments) : "");
}

journal::Base Cluster::journal_base() const {
  journal::Base base;
  if (!journal_.is_on() && !config_.keeps_journal()) return base;
  base.run_id = run_id_;
  base.terms = journal_terms();
  base.round = Round(round_.value - 1);
  base.version = store_->version();
  base.optimizer_step = store_->optimizer_step();
  base.plan_hash = store_->plan().hash();
  return base;
}

/// Once there are parameters. A journal goes on from a checkpoint, so the first one comes before.
Task<Status> Cluster::start_journal() {
  if (!config_.keeps_journal() || journal_.is_on()) co_return Status();
  if (checkpointed_ == Version()) {
    const auto written = co_await write_checkpoint(false);
    if (!written.ok())
      co_return written.error().with_context("journal on: the checkpoint that it begins with");
  }
  JournalWriter::Options options;
  options.folder = config_.journal_dir;
  options.sync_every = config_.journal_sync;
  options.waits = config_.journal_full == "wait";
  if (fence_ != nullptr) options.may_write = [fence = fence_] { return fence->check(); };
  CENTROID_CO_TRY(journal_.start(std::move(options), journal_base()));
  log::info("journal.begun", {{"dir", config_.journal_dir},
                              {"round", round_.value - 1},
                              {"sync_ms", config_.journal_sync.count()}});
  co_return Status();
}

/// What the numbers of a complete chunk are when `chunk_complete` hands them over.
Form Cluster::journal_form() const {
  if (config_.applies_on_worker()) return Form::kMean;
  return early_ ? Form::kParameters : Form::kSum;
}

void Cluster::journal_chunk(const Chunk& chunk) {
  const Bytes numbers = std::as_bytes(std::as_const(*store_).spare(chunk));
  if (replies_)  // the codec's residual grows in this memory
    journal_.chunk_copy(chunk.id, journal_form(), numbers);
  else
    journal_.chunk(chunk.id, journal_form(), numbers);
}

std::uint64_t Cluster::journal_end(Kind kind, const RoundDecision& decision) {
  if (!journal_.is_on()) return 0;
  const bool counts = kind == Kind::kCommit;
  const DataPosition next = next_position();
  journal::Commit commit;
  commit.version = counts ? store_->version().next() : store_->version();
  commit.optimizer_step = store_->optimizer_step() + (counts ? 1 : 0);
  commit.epoch = next.epoch;
  commit.offset = next.offset;
  commit.generation = attempt_->generation;
  commit.weight = counts ? decision.total_weight : 0;
  commit.chunks = counts ? static_cast<std::uint32_t>(fragment().chunks.size()) : 0;
  commit.unix_seconds = clock_.unix_seconds();
  if (counts) {
    for (const MemberId member : decision.contributors)
      commit.contributors.push_back(name_of(member));
    for (const LateContribution& late : decision.late)
      commit.contributors.push_back(name_of(late.member));
  }
  return journal_.end_round(kind, std::move(commit));
}

Status Cluster::check_replay(const journal::Base& base) const {
  const std::string& folder = config_.journal_dir;
  if (base.run_id != run_id_)
    return mismatch(folder, "it belongs to run '" + base.run_id + "', the checkpoint to '" +
                                run_id_ + "': move the journal away to go on without it");
  if (base.terms != journal_terms() || base.plan_hash != store_->plan().hash())
    return mismatch(
        folder,
        "it was written with other settings, with which its rounds have other bits: resume "
        "with the old ones until there is a checkpoint (a stop writes one). They were: " +
            base.terms + (base.terms == journal_terms() ? ", and another chunk_bytes" : "") +
            "; now: " + journal_terms());
  if (base.round.value >= round_.value)
    return mismatch(folder, "its segment begins after round " + to_string(base.round) +
                                ", the checkpoint ends at round " +
                                std::to_string(round_.value - 1) +
                                ": the rounds between are lost. Move the journal away to go on "
                                "from the checkpoint");
  return {};
}

/// After `load_checkpoint`: the rounds behind the checkpoint.
Task<Status> Cluster::replay_journal() {
  journal::Reader reader(config_.journal_dir);
  if (reader.segments().empty()) co_return Status();
  if (!store_)
    co_return mismatch(config_.journal_dir,
                       "there is no checkpoint to which its rounds could be added");
  const TimePoint begin = clock_.now();
  const Round first = round_;
  std::vector<bool> has(store_->plan().chunks().size());
  std::size_t count = 0;
  journal::Head present;
  bool is_at_gap = false;
  while (!is_at_gap) {
    CENTROID_CO_ASSIGN(const auto record, reader.next());
    if (!record) break;
    if (const auto* base = std::get_if<journal::Base>(&*record)) {
      is_at_gap = base->follows_gap && base->round.value >= round_.value;
      if (!is_at_gap) CENTROID_CO_TRY(check_replay(*base));
    } else if (const auto* chunk = std::get_if<journal::Reader::Chunk>(&*record)) {
      const journal::Head& head = chunk->head;
      if (head.round < round_) {
        reader.skip();
        continue;
      }
      if (head.round != present.round || head.attempt != present.attempt || count == 0) {
        has.assign(has.size(), false);
        count = 0;
      }
      present = head;
      const bool is_known = head.chunk.value < has.size() && head.form == journal_form() &&
                            has_turn(store_->plan().chunk(head.chunk));
      const std::uint64_t bytes =
          is_known ? store_->plan().chunk(head.chunk).elements * sizeof(float) : 0;
      if (!is_known || head.payload_bytes != bytes || has[head.chunk.value])
        co_return mismatch(config_.journal_dir, "round " + to_string(head.round) + ", chunk " +
                                                    to_string(head.chunk) +
                                                    ": not a chunk of this model, or twice there");
      const std::span<float> into = store_->spare(store_->plan().chunk(head.chunk));
      CENTROID_CO_ASSIGN(const bool is_sound, reader.read(std::as_writable_bytes(into)));
      if (!is_sound) break;
      has[head.chunk.value] = true;
      ++count;
    } else if (const auto* end = std::get_if<journal::Reader::End>(&*record)) {
      if (end->head.round < round_) continue;
      const bool counts = end->head.kind == Kind::kCommit;
      const std::size_t wanted = fragment().chunks.size();
      const bool is_whole = count == wanted && end->head.round == present.round &&
                            end->head.attempt == present.attempt;
      if (end->head.round != round_ || (counts && !is_whole && wanted > 0))
        co_return mismatch(config_.journal_dir, "the end of round " + to_string(end->head.round) +
                                                    " came where that of round " +
                                                    to_string(round_) + " was expected, with " +
                                                    std::to_string(count) + " of " +
                                                    std::to_string(wanted) + " chunks");
      if (counts) CENTROID_CO_TRY(co_await replay_round(present.form, end->commit));
      if (counts)
        for (const std::string& name : end->commit.contributors) counted_[name] = round_;
      count = 0;
      round_ = round_.next();
      epoch_ = end->commit.epoch;
      offset_ = end->commit.offset;
      roster_.restore(std::max(roster_.generation(), end->commit.generation));
    }
  }
  // Which of them the replayed rounds have trained is not known.
  if (round_ != first) returned_.clear();
  if (is_at_gap) {
    log::error("journal.gap", {{"round", round_.value - 1},
                               {"why",
                                "the journal could not be written then (journal.full), and "
                                "no checkpoint came behind it: later rounds are lost"}});
    for (const journal::Segment& segment : reader.segments())
      if (segment.base.value >= round_.value) std::filesystem::remove(segment.path);
  } else {
    if (!reader.torn().empty())
      log::warn("journal.tail_cut", {{"why", reader.torn()}, {"action", "no round ends there"}});
    CENTROID_CO_TRY(reader.cut_tail());
  }
  fault::point("journal.replayed");
  const double elapsed = std::chrono::duration<double>(clock_.now() - begin).count();
  held_position_ = position();
  log::info("journal.replayed", {{"rounds", round_.value - first.value},
                                 {"round", round_.value - 1},
                                 {"version", store_->version().value},
                                 {"seconds", elapsed}});
  co_return Status();
}

/// The round's numbers are in the spare plane.
Task<Status> Cluster::replay_round(Form form, journal::Commit commit) {
  const std::vector<Chunk>& chunks = fragment().chunks;
  if (replies_) {
    CENTROID_CO_TRY(replay_replies(commit.generation));
  } else if (form == Form::kMean) {
    co_await clip(0);
    for (const Chunk& chunk : chunks) store_->shadow_apply(chunk);
    store_->commit_in_place(chunks);
  } else {
    if (form == Form::kSum) co_await clip(commit.weight);
    for (const Chunk& chunk : chunks) {
      if (form != Form::kSum) break;
      if (config_.optimizer.clip_norm == 0) store_->scale(chunk, commit.weight);
      store_->apply(chunk);
    }
    store_->commit_swap(chunks);
  }
  if (store_->version() != commit.version || store_->optimizer_step() != commit.optimizer_step)
    co_return mismatch(config_.journal_dir, "round " + to_string(round_) + " ends at version " +
                                                to_string(commit.version) + ", the replay at " +
                                                to_string(store_->version()));
  co_return Status();
}

/// Means through the codec of the results, as in the round itself.
Status Cluster::replay_replies(Generation generation) {
  if (replies_->resets_residual() && replies_generation_ != generation) {
    store_->clear_residual();
    replies_->set_rounds(0);
  }
  replies_generation_ = generation;
  replies_->begin(round_);
  std::deque<std::vector<std::byte>> payloads;
  std::vector<Attempt::Piece> pieces;
  const auto emit = [&](const Chunk& of, std::vector<std::byte> payload) {
    payloads.push_back(std::move(payload));
    pieces.push_back({of.id, payloads.back(), std::nullopt});
  };
  ReplyEncoder::Memory memory;
  const std::vector<Chunk>& part = fragment().chunks;
  for (const Chunk& chunk : part) (void)store_->spare(chunk);
  memory.means = store_->all_spare();
  if (store_->keeps_residual()) memory.residual = store_->residual();
  for (const Chunk& chunk : part) CENTROID_TRY(replies_->complete(chunk.id, memory, emit));
  std::ranges::sort(pieces, {}, &Attempt::Piece::chunk);
  if (config_.optimizer.clip_norm > 0) {
    PlaneNorm norm;
    for (const Attempt::Piece& piece : pieces) CENTROID_TRY(add_to_norm(piece, norm));
    clip_to(norm.value());
  }
  for (const Attempt::Piece& piece : pieces) CENTROID_TRY(apply_reply(piece));
  store_->commit_in_place(part);
  replies_->commit();
  return {};
}

}  // namespace centroid::server
