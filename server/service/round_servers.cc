#include "server/service/round_servers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/tensor/squares.h"

namespace centroid::server {

using proto::ServersKind;

/// Before any worker hears of it: other servers take contributions by this.
void RoundServers::tell_opened() {
  if (shards_.present().empty()) return;
  proto::Opened& opened = spread_.opened;
  if (open_.attempt) {  // between two, what was opened last stays so
    const Attempt::Key newest = open_.attempt->key();
    opened.generation = newest.generation;
    opened.round = newest.round;
    opened.attempt = newest.number;
  }
  opened.members.clear();
  opened.members.reserve(members_.present.size());
  for (const auto& [id, worker] : members_.present) {
    const auto name = std::as_bytes(std::span(worker->join.name));
    opened.members.push_back({.member = id, .name_crc = crc32c(name)});
    worker->is_told_of = true;
  }
  opened.summed.clear();
  const bool sums = open_.attempt && !open_.attempt->closed && !policy_.is_elastic();
  for (std::uint32_t rank = 0; sums && rank < open_.attempt->members.size(); ++rank)
    if (is_summed(rank)) opened.summed.push_back(open_.attempt->members[rank]);
  shards_.tell_opened(opened);
}

/// It has samples, and is or was to send its sum.
bool RoundServers::is_summed(std::uint32_t rank) const {
  const proto::RoundOpen& share = open_.attempt->opens[rank];
  return share.begin < share.end && !job_.aggregator->is_absent(rank);
}

bool RoundServers::may_have_part(MemberId member) const {
  const bool is_elsewhere = spread_.has_others() && open_.attempt && !policy_.is_elastic() &&
                            !spread_.holders[job_.shard->turn()].empty();
  const auto rank = is_elsewhere ? open_.attempt->rank_of(member) : std::nullopt;
  return rank && is_summed(*rank);
}

/// Other servers drop what they keep of members that are gone, unless it is to count in a round
/// that is open or follows.
void RoundServers::forget_departed() {
  const auto may_count = [this](MemberId id) {
    return std::any_of(open_.late_staged.begin(), open_.late_staged.end(),
                       [id](const StagedPart& late) { return late.counts.key.member == id; });
  };
  bool is_any = false;
  for (const MemberId id : std::exchange(departed_, {})) {
    if (may_count(id)) {
      departed_.push_back(id);
      continue;
    }
    shards_.forget(id, "its leader has given it up or heard that it left");
    is_any = true;
  }
  if (is_any) tell_opened();  // in place of a word that waits to be sent and still names it
}

/// On which servers a contribution, complete for its worker, is not whole.
std::string RoundServers::names_of_missing_holders(const WorkerSession& worker) const {
  const proto::PushEnd& end = *worker.contribution.pending_end;
  const proto::ContributionKey key{worker.id, end.generation, end.round, end.attempt};
  std::string names;
  for (const ShardSession* holder : spread_.holders[job_.shard->turn()])
    if (!spread_.whole.contains({key, holder})) names += " '" + holder->name + "'";
  return names;
}

/// Its chunks may be missing, for it is not to be added.
bool RoundServers::is_short(const proto::PushEnd& end) const {
  return end.nonfinite && policy_.nonfinite != NonFinitePolicy::kPropagate;
}

/// All chunks of the contribution that lie elsewhere have come there, with its weight.
Result<bool> RoundServers::is_whole_elsewhere(const WorkerSession& worker,
                                              const proto::PushEnd& end) const {
  if (!spread_.has_others() || end.weight == 0 || is_short(end)) return true;
  const proto::ContributionKey key{worker.id, end.generation, end.round, end.attempt};
  for (const ShardSession* holder : spread_.holders[job_.shard->turn()]) {
    const auto found = spread_.whole.find({key, holder});
    if (found == spread_.whole.end()) return false;
    if (found->second.weight != end.weight)
      return Error(ErrorCode::kInvalidArgument,
                   "PushEnd of " + worker.join.name + " in round " + to_string(end.round) +
                       " gives weight " + std::to_string(end.weight) + ", its chunks on server '" +
                       holder->name + "' gave " + std::to_string(found->second.weight));
  }
  return true;
}

/// What PushEnd says of the norm is what came, here and elsewhere. Who says nothing is believed.
Status RoundServers::check_norm(const WorkerSession& worker, const proto::PushEnd& end,
                                double squares_here) const {
  if (end.norm < 0 || end.weight == 0 || is_short(end)) return {};
  if (policy_.nonfinite == NonFinitePolicy::kPropagate) return {};  // nothing was looked at
  const double squares =
      squares_here + squares_elsewhere({worker.id, end.generation, end.round, end.attempt});
  // Numbers that are not finite are checked one by one where they may not be.
  if (!std::isfinite(squares) || is_norm_of(end.norm, squares)) return {};
  return Error(ErrorCode::kInvalidArgument, "PushEnd of " + worker.join.name + " in round " +
                                                to_string(end.round) + " claims norm " +
                                                std::to_string(end.norm) + ", its chunks have " +
                                                std::to_string(std::sqrt(squares)));
}

/// With which its chunks came there; 0: none did.
double RoundServers::weight_elsewhere(const proto::ContributionKey& key) const {
  if (!spread_.has_others()) return 0;
  for (const ShardSession* holder : spread_.holders[job_.shard->turn()])
    if (const auto found = spread_.whole.find({key, holder}); found != spread_.whole.end())
      return found->second.weight;
  return 0;
}

/// First phase on the other servers: they sum what the decision names, and make the step, or try
/// that of workers, unless the norm of all is needed for it. Then their sums of squares go to
/// `open_.squares`.
Task<Status> RoundServers::merge_elsewhere(std::shared_ptr<const RoundDecision> decision) {
  proto::Merge merge;
  merge.round = open_.attempt->round;
  merge.attempt = open_.attempt->number;
  merge.version = job_.store().version();
  merge.total_weight = decision->total_weight;
  merge.needs_norm = config_.optimizer.clip_norm > 0;
  merge.reply_rounds = job_.shard->encodes() ? job_.shard->encoder().rounds() : 0;
  merge.clears_residual = local_.is_residual_cleared();
  merge.rate_factor = job_.store().optimizer().rate_factor();
  for (const MemberId member : open_.attempt->members)
    if (open_.attempt->left_out.count(member) == 0) merge.members.push_back(member);
  if (policy_.is_elastic()) {
    for (const StagedPart& counted : open_.parts) merge.parts.push_back(counted.counts);
    for (const StagedPart& late : open_.late_staged) merge.keeps.push_back(late.counts.key);
    for (const auto& [id, worker] : members_.present) {
      if (!worker->late || !worker->late->staged || worker->late->outcome) continue;
      const Attempt::Key& key = worker->late->key;
      merge.keeps.push_back({id, key.generation, key.round, key.number});
    }
  } else {
    for (const MemberId member : decision->contributors) {
      proto::WeighedContribution part;
      part.key = {member, open_.attempt->generation, open_.attempt->round, open_.attempt->number};
      part.weight = weight_elsewhere(part.key);  // 0: it takes part without a share
      if (part.weight > 0) merge.parts.push_back(part);
    }
  }
  const auto present = spread_.others();
  auto head = proto::encode(merge);
  auto answers = co_await shards_.ask_all(present, ServersKind::kMerge, std::move(head));
  if (!answers.ok()) co_return std::move(answers).error();
  for (std::size_t i = 0; i < present.size(); ++i) {
    CENTROID_CO_ASSIGN(const auto reply, proto::decode<proto::MergeReply>((*answers)[i].head));
    note_overflow(reply);
    if (!merge.needs_norm) continue;
    std::size_t next = 0;
    for (const Chunk& chunk : job_.shard->fragment().chunks) {
      if (spread_.present[spread_.route.owners[chunk.id.value]] != present[i]) continue;
      if (next == reply.squares.size()) break;
      open_.squares[chunk.id.value] = reply.squares[next++];
    }
  }
  co_return Status();
}

/// The step that waited for the norm.
Task<Status> RoundServers::step_elsewhere(float factor) {
  proto::Step step;
  step.round = open_.attempt->round;
  step.attempt = open_.attempt->number;
  step.factor = factor;
  auto head = proto::encode(step);
  const auto done = co_await shards_.ask_all(spread_.others(), ServersKind::kStep, std::move(head));
  if (!done.ok()) co_return done.error();
  for (const transport::Reply& answer : *done) {
    if (answer.head.empty()) continue;  // of a release that does not look
    CENTROID_CO_ASSIGN(const auto reply, proto::decode<proto::MergeReply>(answer.head));
    note_overflow(reply);
  }
  co_return Status();
}

void RoundServers::note_overflow(const proto::MergeReply& reply) const {
  const bool is_known = reply.overflow > 0 && reply.overflow <= job_.store().plan().chunks().size();
  if (is_known && !open_.overflow) open_.overflow = ChunkId(reply.overflow - 1);
}

/// Sum over the chunks of a contribution that lie elsewhere.
double RoundServers::squares_elsewhere(const proto::ContributionKey& key) const {
  double squares = 0;
  if (!spread_.has_others()) return squares;
  for (const ShardSession* holder : spread_.holders[job_.shard->turn()])
    if (const auto found = spread_.whole.find({key, holder}); found != spread_.whole.end())
      squares += found->second.squares;
  return squares;
}

Task<void> RoundServers::prepare_elsewhere(std::shared_ptr<const RoundDecision> decision,
                                           Status* done) {
  *done = co_await merge_elsewhere(std::move(decision));
}

Task<void> RoundServers::prepare_elsewhere(float factor, Status* done) {
  *done = co_await step_elsewhere(factor);
}

/// Second phase: the round is committed here, or is skipped and the version is as before. Nothing
/// else begins before all servers say that they have done the same.
Task<void> RoundServers::end_elsewhere() {
  proto::ServerState state;
  state.version = job_.store().version();
  state.optimizer_step = job_.store().optimizer_step();
  state.round = job_.round;
  auto head = proto::encode(state);
  const auto done =
      co_await shards_.ask_all(spread_.others(), ServersKind::kCommit, std::move(head));
  // What a lost server has prepared is lost with it: the next look at the servers finds it gone.
  if (!done.ok())
    log::error("round.commit_incomplete", {{"round", job_.round.value}, {"why", done.error()}});
}

/// `written`: the rounds that are in a checkpoint now; 0: it failed.
Task<void> RoundServers::thaw_servers(Round written) {
  proto::ServerState nothing;
  nothing.round = written;
  auto head = proto::encode(nothing);
  (void)co_await shards_.ask_all(spread_.others(), ServersKind::kFreeze, std::move(head));
}

}  // namespace centroid::server
