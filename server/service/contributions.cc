#include "server/service/contributions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/log.h"
#include "common/codec/chunk_codec.h"
#include "common/tensor/finite.h"

namespace centroid::server {

using transport::Session;

namespace {
/// Of what it knows of one that was too slow, a round in time takes away one part in so many.
constexpr int kForgets = 10;
}  // namespace

Scalars KnownScalars::of(const proto::PushEnd& end) {
  Scalars out;
  for (const proto::Scalar& one : end.scalars) {
    if (names_.size() < Scalars::kMaxNames) names_.insert(one.name);
    if (names_.contains(one.name))
      (void)out.add(one.name, {one.sum, one.count});
    else if (!std::exchange(is_told_, true))
      log::warn("scalar.dropped",
                {{"name", one.name}, {"why", "workers have recorded 16 other names"}});
  }
  return out;
}

/// What is older than the open attempt was on its way when that closed. What was never opened
/// nobody can have been told of.
Status Contributions::check_key(const WorkerSession& worker, const char* what,
                                const Attempt::Key& key) const {
  const auto open = open_.attempt ? open_.attempt->key() : Attempt::Key();
  const bool is_known =
      key.generation <= members_.roster.generation() &&
      (key.round < open.round || (key.round == open.round && key.number <= open.number));
  if (is_known) return {};
  const auto text = [](const Attempt::Key& one) {
    return "generation " + to_string(one.generation) + ", round " + to_string(one.round) +
           ", attempt " + std::to_string(one.number);
  };
  return Error(ErrorCode::kFailedPrecondition,
               std::string(what) + " of " + worker.join.name + " is for " + text(key) +
                   ", which was never opened; the newest is " + text(open));
}

/// Nothing comes behind the end of a contribution.
Status Contributions::check_not_ended(const WorkerSession& worker, const char* what,
                                      const Attempt::Key& key) const {
  if (worker.contribution.ended != key) return {};
  return Error(ErrorCode::kFailedPrecondition,
               std::string(what) + " of " + worker.join.name + " in round " + to_string(key.round) +
                   ", attempt " + std::to_string(key.number) + " came after its PushEnd");
}

/// A weight is that of the share which the worker was given, else one worker could be the mean. How
/// many tokens the share has the worker alone knows: there are no more than it may have.
Status Contributions::check_weight(const WorkerSession& worker, double weight) const {
  const std::uint64_t samples = worker.share.part.samples();
  if (config_.local.weight_by == "tokens" && samples > 0) {
    const double most =
        static_cast<double>(samples) * static_cast<double>(worker.join.sample_tokens);
    if (weight >= 1 && weight <= most && weight == std::floor(weight)) return {};
    return Error(ErrorCode::kInvalidArgument, "it gives weight " + std::to_string(weight) +
                                                  ", its share of " + std::to_string(samples) +
                                                  " samples has 1 to " + std::to_string(most) +
                                                  " tokens, as a whole number (weight_by tokens)");
  }
  double share = static_cast<double>(samples);
  if (config_.local.weight_by == "steps") share = static_cast<double>(worker.share.steps);
  if (config_.local.weight_by == "equal") share = 1;
  if (samples == 0) share = 0;
  if (weight == share) return {};
  return Error(ErrorCode::kInvalidArgument, "it gives weight " + std::to_string(weight) +
                                                ", its share of " + std::to_string(samples) +
                                                " samples weighs " + std::to_string(share) +
                                                " (weight_by " + config_.local.weight_by + ")");
}

/// The chunk is the round's, lies here, and its payload is not too long.
Status Contributions::check_chunk(const WorkerSession& worker, const proto::Push& head,
                                  std::uint64_t bytes) const {
  if (head.chunk.value >= job_.store().plan().chunks().size())
    return Error(ErrorCode::kInvalidArgument, "there is no such chunk");
  if (!job_.shard->has_turn(job_.store().plan().chunk(head.chunk)))
    return Error(ErrorCode::kInvalidArgument, "it is not of the round's fragment");
  if (!job_.shard->is_mine(head.chunk))
    return Error(ErrorCode::kAborted, "by route " + std::to_string(spread_.route.version) +
                                          " it lies on another server (join again)");
  CENTROID_TRY(check_weight(worker, head.weight));
  const Chunk& chunk = job_.store().plan().chunk(head.chunk);
  return check_length(codec_of(*worker.codec, job_.store().plan(), chunk), chunk, bytes);
}

Task<Status> Contributions::take_push(Session& session, std::shared_ptr<WorkerSession> worker,
                                      proto::Push head, std::uint64_t bytes) {
  const auto attempt = open_.attempt;
  const auto rank = attempt ? attempt->rank_of(worker->id) : std::nullopt;
  const Attempt::Key key{head.generation, head.round, head.attempt};
  CENTROID_CO_TRY(check_not_ended(*worker, "Push", key));
  const bool is_elastic = policy_.is_elastic();
  bool current = rank && key == attempt->key() && open_.machine.expects(worker->id);
  if (is_elastic) current = elastic_.stage_for(*worker, key) != nullptr;
  if (config_.is_peer_to_peer() || (current && open_.among_peers))
    co_return Error(ErrorCode::kFailedPrecondition, "Push of " + worker->join.name +
                                                        ": with exchange " + config_.exchange +
                                                        " the workers add among themselves");
  probe_.payload_received(bytes);
  if (!current) {
    CENTROID_CO_TRY(check_key(*worker, "Push", key));
    probe_.stale_frame();
    CENTROID_CO_TRY(co_await session.skip_payload());  // gives its credit back by itself
    co_return Status();
  }
  const auto wrong = [&](const Status& what) {
    return what.error().with_context("push of chunk " + to_string(head.chunk) + " by " +
                                     worker->join.name + " in round " + to_string(head.round));
  };
  const Status fits = check_chunk(*worker, head, bytes);
  if (!fits.ok()) co_return wrong(fits);
  std::optional<Buffer> buffer;
  // What is kept whole is not to take more memory than it has bytes.
  const bool keeps_whole = is_elastic || !aggregate_.is_mean();
  const std::size_t least = job_.pool->buffer_bytes() / (keeps_whole ? 1 : 2);
  if (bytes >= least && bytes <= job_.pool->buffer_bytes()) buffer = job_.pool->try_acquire();
  if (!buffer) buffer.emplace(bytes);
  const TimePoint arrived = clock_.now();
  CENTROID_CO_TRY(co_await session.read_payload(buffer->bytes().first(bytes)));
  worker->measured.receive_seconds +=
      probe_.receive().ended(worker->lane, arrived, clock_.now(), head.round.value);
  const TimePoint now = clock_.now();
  worker->pace.silence = std::max(worker->pace.silence, now - worker->pace.opened_at);
  worker->pace.opened_at = now;
  const bool looks = policy_.nonfinite != NonFinitePolicy::kPropagate;
  const Chunk& chunk = job_.store().plan().chunk(head.chunk);
  const Codec& form = codec_of(*worker->codec, job_.store().plan(), chunk);
  double squares = 0;
  if (!is_elastic && looks) squares = form.squares(buffer->bytes().first(bytes), chunk.elements);
  // One pass for both: in double the squares of floats add up to something finite, or one is not.
  const bool is_doubtful = is_elastic || !std::isfinite(squares);
  if (looks && is_doubtful) {
    const Status is_sound = check_numbers(form, buffer->bytes().first(bytes));
    if (!is_sound.ok()) co_return wrong(is_sound);
  }
  if (is_elastic) {
    session.release_credit(bytes);
    StagedContribution* const staged = elastic_.stage_for(*worker, key);
    if (staged == nullptr) {
      probe_.stale_frame();
      co_return Status();
    }
    const Status kept = staged->put(head.chunk, head.weight, std::move(*buffer), bytes);
    if (!kept.ok()) co_return wrong(kept);
    co_return Status();
  }
  if (attempt != open_.attempt ||
      !open_.machine.expects(worker->id)) {  // the attempt ended while the bytes came in
    probe_.stale_frame();
    session.release_credit(bytes);
    co_return Status();
  }
  const TimePoint begin = clock_.now();
  const Status added =
      job_.aggregator->offer(*rank, head.chunk, head.weight, std::move(*buffer), bytes, squares);
  const CodecProbe& codec = probe_.up(worker->codec_kind);
  codec.moved(chunk.elements * sizeof(float), bytes);
  if (aggregate_.is_mean())  // with another one it has only been kept
    codec.decoded(probe_.aggregate().ended(worker->lane, begin, clock_.now(), head.round.value));
  if (!added.ok()) co_return wrong(added);
  co_return Status();
}

/// The end of a contribution of which `received` of `chunks` chunks have come with `weight`.
Status Contributions::check_end(const WorkerSession& worker, const proto::PushEnd& end,
                                std::uint64_t received, double weight, std::uint64_t chunks) const {
  if (received > 0 && end.weight != weight)
    return Error(ErrorCode::kInvalidArgument, "it gives weight " + std::to_string(end.weight) +
                                                  ", its chunks gave " + std::to_string(weight));
  if (worker.share.part.samples() > 0 || end.weight > 0)
    CENTROID_TRY(check_weight(worker, end.weight));
  if (!(end.weight >= 0) ||
      (!round_servers_.is_short(end) && received != (end.weight > 0 ? chunks : 0)))
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(received) + " of " + std::to_string(chunks) +
                     " chunks came with weight " + std::to_string(end.weight));
  return {};
}

/// Another version has other parameters: a late contribution says nothing of this one.
void Contributions::count_end(WorkerSession& worker, const proto::PushEnd& end) {
  const Attempt::Key key{end.generation, end.round, end.attempt};
  if (end.fingerprint != 0 && open_.attempt && key == open_.attempt->key())
    open_.replicas.push_back({worker.id, end.fingerprint});
  // A round that is repeated gets the contribution again.
  const Round last = std::exchange(worker.measured.counted, end.round);
  const bool is_again = last == end.round;
  if (is_again)
    worker.measured.sums = worker.measured.sums_before;
  else
    worker.measured.sums_before = worker.measured.sums;
  // Who was too slow once is not so for ever, nor as fast as its next round.
  if (!is_again && worker.pace.came_late && worker.pace.silence < *worker.pace.came_late)
    *worker.pace.came_late -= (*worker.pace.came_late - worker.pace.silence) / kForgets;
  worker.measured.sums.rounds += 1;
  worker.measured.sums.samples += end.samples;
  worker.measured.sums.compute_seconds += end.compute_seconds;
  worker.measured.sums.wait_seconds += end.wait_seconds;
  worker.measured.sums.encode_seconds += end.encode_seconds;
  worker.measured.sums.decode_seconds += end.decode_seconds;
  worker.measured.send_seconds += end.send_seconds;
  worker.measured.addition_seconds += end.addition_seconds;
  worker.measured.apply_seconds += end.apply_seconds;
  worker.contribution.at = clock_.now();
  worker.measured.step_seconds = end.compute_seconds;
  if (end.samples > 0) worker.measured.last_loss = end.loss_sum / static_cast<double>(end.samples);
  probe_.contribution_received(std::chrono::duration<double>(clock_.now() - open_.opened).count());
  if (end.nonfinite) probe_.contribution_nonfinite();
  tell_codecs(worker, end);
  const std::uint64_t all = open_.samples + job_.returned.taken();
  worker.share.ratio =
      all > 0 ? static_cast<double>(worker.share.part.samples()) / static_cast<double>(all) : 0;
  // Of the share, for of a language model `end.samples` counts tokens.
  const double batch = static_cast<double>(std::max<std::uint64_t>(worker.join.batch, 1)),
               steps = static_cast<double>(worker.share.part.samples()) / batch;
  worker.share.part = {};
  worker.local.divergence = end.divergence;
  if (end.parameter_norm >= 0) worker.local.parameter_norm = end.parameter_norm;
  if (is_again && open_.attempt && open_.attempt->resend) return;  // the same steps
  const bool is_next = job_.counted.of(worker.join.name) == last;
  const double told = worker.local.told.contributed(steps, worker.share.overlap, is_next);
  data_.coordinator().contributed(
      worker.id, {.steps = told,
                  .compute_seconds = end.compute_seconds,
                  .part = worker.share.wanted > 0 ? steps / worker.share.wanted : 1,
                  .exchange_seconds = end.exchange_seconds,
                  .divergence = end.divergence,
                  .fragment = worker.local.before});
}

/// What it told of `share`, which the worker may have no more.
ReportedShare Contributions::told_of(WorkerSession& worker, const proto::PushEnd& end,
                                     const DataPart& share) {
  ReportedShare told;
  told.part = share;
  told.worker = worker.join.name;
  told.devices = worker.join.devices;
  told.compute_seconds = end.compute_seconds;
  told.tally = Tally{.loss_sum = end.loss_sum,
                     .samples = end.samples,
                     .correct = end.correct,
                     .steps = worker.share.steps};
  told.tally.scalars = known_scalars_.of(end);
  if (!told.tally.scalars.is_empty()) worker.contribution.scalars = told.tally.scalars;
  return told;
}

Status Contributions::take_push_end(WorkerSession& worker, const proto::PushEnd& end) {
  const Attempt::Key key{end.generation, end.round, end.attempt};
  CENTROID_TRY(check_not_ended(worker, "PushEnd", key));
  CENTROID_TRY(check_key(worker, "PushEnd", key));
  worker.contribution.ended = key;
  if (worker.pace.opened == key) worker.session->let_credit_wait();
  return end_contribution(worker, end);
}

/// When all of it is here, on all servers.
Status Contributions::end_contribution(WorkerSession& worker, const proto::PushEnd& end) {
  if (policy_.is_elastic()) return stage_end(worker, end);
  const auto rank = open_.attempt ? open_.attempt->rank_of(worker.id) : std::nullopt;
  if (!rank || end.generation != open_.attempt->generation || end.round != open_.attempt->round ||
      end.attempt != open_.attempt->number || !open_.machine.expects(worker.id)) {
    probe_.stale_frame();
    return {};
  }
  const std::uint64_t chunks = open_.among_peers ? 0 : job_.shard->round_chunks().size();
  const std::uint64_t received = job_.aggregator->received(*rank);
  const Status fits = check_end(worker, end, received, job_.aggregator->weight(*rank), chunks);
  if (!fits.ok())
    return fits.error().with_context("PushEnd of " + worker.join.name + " in round " +
                                     to_string(end.round));
  CENTROID_ASSIGN(const bool is_complete, round_servers_.is_whole_elsewhere(worker, end));
  if (!is_complete) {
    worker.contribution.pending_end = end;
    return {};
  }
  CENTROID_TRY(round_servers_.check_norm(worker, end, job_.aggregator->squares(*rank)));
  worker.contribution.pending_end.reset();
  const DataPart share = worker.share.part;
  count_end(worker, end);
  data_.count_reported(told_of(worker, end, share));
  const bool is_excluded = end.nonfinite && open_.missing() < aggregate_.tolerated(open_.members);
  if (is_excluded) exclude(worker, end);
  const bool is_absent = end.weight == 0 || received < chunks || round_servers_.is_short(end);
  if (!open_.among_peers && is_absent) {
    const bool is_awaited_elsewhere = round_servers_.may_have_part(worker.id);
    job_.aggregator->absent(*rank);
    if (is_awaited_elsewhere) round_servers_.tell_opened();
  }
  Contribution contribution{.weight = end.weight,
                            .nonfinite = end.nonfinite,
                            .nonfinite_tensor = end.nonfinite_tensor,
                            .norm = open_.among_peers ? end.norm : -1};
  if (is_excluded) contribution = {};
  CENTROID_ASSIGN(auto decision, open_.machine.contribute(worker.id, std::move(contribution)));
  control_.decide(std::move(decision));
  return {};
}

/// A robust aggregate does without it.
void Contributions::exclude(const WorkerSession& worker, const proto::PushEnd& end) {
  ++open_.excluded;
  const std::string tensor = transport::shortened(end.nonfinite_tensor, 64);
  if (const auto why = context_.strangers.member_line("tensor " + tensor + " is not finite"))
    log::warn("contribution.excluded",
              {{"worker", worker.join.name}, {"round", end.round.value}, {"why", *why}});
}

Status Contributions::stage_end(WorkerSession& worker, const proto::PushEnd& end) {
  const Attempt::Key key{end.generation, end.round, end.attempt};
  const StagedContribution* const staged = elastic_.stage_for(worker, key);
  if (staged == nullptr) {
    probe_.stale_frame();
    return {};
  }
  const std::uint64_t chunks = job_.shard->round_chunks().size(), received = staged->received();
  CENTROID_TRY(check_end(worker, end, received, staged->weight(), chunks));
  CENTROID_ASSIGN(const bool is_complete, round_servers_.is_whole_elsewhere(worker, end));
  if (!is_complete) {
    worker.contribution.pending_end = end;
    return {};
  }
  CENTROID_TRY(round_servers_.check_norm(worker, end, staged->squares()));
  worker.contribution.pending_end.reset();
  const DataPart share = worker.share.part;
  count_end(worker, end);
  Contribution contribution{
      .weight = end.weight, .nonfinite = end.nonfinite, .nonfinite_tensor = end.nonfinite_tensor};
  if (!staged->is_complete()) contribution.weight = 0;
  if (!worker.late || worker.late->key != key) {
    data_.count_reported(told_of(worker, end, share));
    CENTROID_ASSIGN(auto decision,
                    open_.machine.contribute(worker.id, std::move(contribution), clock_.now()));
    control_.decide(std::move(decision));
    return {};
  }
  CENTROID_ASSIGN(const double weight,
                  open_.machine.late(worker.id, key.round, contribution, clock_.now()));
  if (weight > 0) {
    StagedPart part;
    part.staged = std::move(worker.late->staged);
    part.counts.key = {worker.id, key.generation, key.round, key.number};
    part.told = told_of(worker, end, share);
    part.share = share;
    open_.late_staged.push_back(std::move(part));
  }
  // With asp and ssp a round follows at once, and its commit answers the member. With other
  // policies that round may wait for this member, so it gets its answer now.
  if (weight == 0 || !policy_.applies_each())
    elastic_.resolve_late(worker, weight > 0 ? proto::Outcome::kCarried : proto::Outcome::kLate,
                          end.weight > 0);
  changed_.notify_all();  // a round may have to be opened for it
  if (!open_.decision) control_.decide(open_.machine.tick(clock_.now()));
  return {};
}

/// What the worker says of its codecs.
void Contributions::tell_codecs(WorkerSession& worker, const proto::PushEnd& end) {
  const CodecProbe& up = probe_.up(worker.codec_kind);
  up.encoded(end.encode_seconds);
  up.chunks(end.chunks, end.dense_chunks);
  if (open_.among_peers) up.moved(end.raw_bytes, end.encoded_bytes);
  probe_.down(job_.shard->encodes() ? job_.shard->encoder().kind() : CodecSpec::Kind::kF32)
      .decoded(end.decode_seconds);
  worker.measured.residual_norm = end.residual_norm;
}

Status Contributions::take_report(WorkerSession& worker, const proto::Report& report) {
  const auto asked =
      std::find(worker.evaluations.asked.begin(), worker.evaluations.asked.end(), report.version);
  if (asked == worker.evaluations.asked.end())
    return Error(ErrorCode::kInvalidArgument,
                 "Report.version of " + worker.join.name + " is " + to_string(report.version) +
                     ", which nobody asked it to evaluate" +
                     (worker.evaluations.asked.empty()
                          ? ""
                          : "; asked was " + to_string(worker.evaluations.asked.front())));
  worker.evaluations.asked.erase(asked);
  if (report.samples == 0) return {};
  if (!worker.finish)
    worker.evaluations.duration.observe(
        std::chrono::duration<double>(clock_.now() - worker.evaluations.asked_at).count());
  const double samples = static_cast<double>(report.samples);
  job_.evaluation.accuracy = static_cast<double>(report.correct) / samples;
  job_.evaluation.loss = report.loss_sum / samples;
  job_.evaluation.version = report.version;
  job_.curves.evaluated(job_.evaluation.loss, job_.evaluation.accuracy);
  probe_.evaluated(job_.evaluation.accuracy, job_.evaluation.loss);
  tell(events_, log::Level::kInfo, "model.evaluated",
       {{"worker", worker.join.name},
        {"version", report.version.value},
        {"samples", report.samples},
        {"accuracy", job_.evaluation.accuracy},
        {"loss", job_.evaluation.loss}});
  return {};
}

void Contributions::whole_elsewhere(const ShardSession& server, const proto::Whole& whole) {
  spread_.whole[{whole.key, &server}] = whole;
  const auto worker = members_.find(whole.key.member);
  if (!worker || !worker->contribution.pending_end) return;
  const proto::PushEnd end = *worker->contribution.pending_end;
  const Status taken = end_contribution(*worker, end);
  if (!taken.ok()) worker->tasks->spawn(worker->session->goodbye(taken.error()));
}

/// The last round in which a contribution of this name counted, or will when the round closes.
Round Contributions::counted_of(const std::string& name) const {
  if (open_.attempt && !open_.attempt->closed)
    for (const MemberId member : open_.machine.contributed())
      if (members_.name_of(member) == name) return open_.attempt->round;
  Round late;
  for (const StagedPart& part : open_.late_staged)  // they count in one of the next
    if (members_.name_of(part.counts.key.member) == name)
      late = std::max(late, part.counts.key.round);
  if (late != Round()) return late;
  for (const StagedPart& part : open_.parts)  // of the round that is being merged
    if (members_.name_of(part.counts.key.member) == name) return part.counts.key.round;
  return job_.counted.of(name).value_or(Round());
}

}  // namespace centroid::server
