#include "worker/exchange/peer_mean.h"

#include <algorithm>
#include <cstring>

#include "common/base/random.h"
#include "common/tensor/finite.h"
#include "common/tensor/multiversion.h"
#include "transport/collective/collectives.h"

namespace centroid::worker {

namespace {

/// A payload holds at most a 32nd of a bucket, so that it can be cut among the ranks; 256 KiB with
/// the default bucket, where top-k at 0.1 % still has 66 numbers behind each payload's 10 bytes of
/// heads.
constexpr std::uint64_t kChunksPerBucket = 32;
constexpr std::uint64_t kLeastChunkBytes = 64;  // of ChunkPlan

constexpr std::uint64_t kTag = 0x636F646564000000;  // coded
constexpr std::uint64_t kMeanStream = 0x6D65616E;   // mean
/// Rounds between looks at the residual: each is a pass over it.
constexpr std::uint64_t kResidualRounds = 16;
constexpr std::size_t kNoFlight = ~std::size_t{0};

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(now() - begin).count();
}

/// error -= sent; 0 where that is not finite, for it shall be sent again.
struct LeftOut {
  CENTROID_KERNEL void run(const float* sent, float* error, std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float left = error[i] - sent[i];
      error[i] = topk::key_of(left) < topk::kInfinity ? left : 0.0f;
    }
  }
};

}  // namespace

struct CodedMean::Run {
  const PeerGroups& groups;
  const Job& job;
  JobSignals& signals;
  Outcome outcome{};
  double weight = 0;                ///< of what we encode: our own, or that of our node
  double node_weight = 0;           ///< with groups.node
  std::size_t summed = 0;           ///< buckets, in our node
  std::span<const float> source{};  ///< of what we encode

  bool sums_in_node() const { return groups.node && node_weight > 0; }
};

Result<std::unique_ptr<CodedMean>> CodedMean::make(const ChunkPlan& plan, Terms terms) {
  CENTROID_ASSIGN(auto whole, SumEncoder::make(terms.codec));
  const std::uint64_t limit =
      std::clamp(terms.bucket_bytes / kChunksPerBucket, kLeastChunkBytes, plan.max_chunk_bytes());
  CENTROID_ASSIGN(ChunkPlan finer, ChunkPlan::make(plan.manifest(), limit));
  CENTROID_ASSIGN(const auto fragments, FragmentPlan::make(finer, terms.fragments));
  auto mean = std::unique_ptr<CodedMean>(
      new CodedMean(std::move(finer), fragments, std::move(whole), std::move(terms)));
  if (mean->whole_->spec().feedback.enabled) {
    CENTROID_ASSIGN(mean->feedback_, ErrorFeedback::make(mean->terms_.codec, mean->plan_));
    mean->feedback_->pass_nonfinite(mean->terms_.passes_nonfinite);
    if (mean->whole_->is_lossy())
      mean->errors_ = Buffer(mean->plan_.total_elements() * sizeof(float));
  }
  return mean;
}

CodedMean::CodedMean(ChunkPlan plan, const FragmentPlan& fragments,
                     std::unique_ptr<SumEncoder> whole, Terms terms)
    : plan_(std::move(plan)), whole_(std::move(whole)), terms_(std::move(terms)) {
  std::uint32_t number = 0;
  for (std::uint32_t fragment = 0; fragment < fragments.count(); ++fragment) {
    auto& flights = flights_of_.emplace_back();
    for (Bucket& bucket : make_buckets(plan_, terms_.bucket_bytes, fragments, fragment)) {
      Flight& flight = flights.emplace_back();
      flight.number = number++;
      flight.bucket = std::move(bucket);
    }
  }
  out_.resize(largest_payload(whole_->codec(), plan_));
}

// ---- who owns what

/// Give every contributor a run of the bucket's chunks: a chunk goes where its middle falls. The
/// first run is another one's in every bucket, so that small buckets are not all the same rank's.
void CodedMean::cut(Flight& flight, std::uint32_t owners) const {
  const auto chunks = plan_.chunks();
  const auto at = [&](std::uint64_t position) {
    const auto found = std::lower_bound(
        chunks.begin(), chunks.end(), position,
        [](const Chunk& chunk, std::uint64_t where) { return chunk.position < where; });
    return static_cast<std::uint32_t>(found - chunks.begin());
  };
  const Bucket& bucket = flight.bucket;
  const std::uint32_t end = at(bucket.end);
  std::uint32_t next = at(bucket.begin);
  flight.owned_by.assign(owners, {});
  for (std::uint32_t part = 0; part < owners; ++part) {
    Chunks& owned = flight.owned_by[(part + flight.number) % owners];
    owned.begin = next;
    for (; next < end; ++next) {
      const std::uint64_t twice_middle =
          2 * (chunks[next].position - bucket.begin) + chunks[next].elements;
      if (twice_middle * owners >= 2 * (part + 1ull) * (bucket.end - bucket.begin)) break;
    }
    owned.end = next;
  }
}

std::uint64_t CodedMean::most_bytes(Chunks chunks) const {
  if (chunks.size() == 0) return 0;
  std::uint64_t bytes = kPeerHeadBytes;
  for (const Chunk& chunk : plan_.chunks().subspan(chunks.begin, chunks.size()))
    bytes += sizeof(std::uint32_t) + codec_for(chunk).max_bytes(chunk.elements);
  return bytes;
}

// ---- a job

void CodedMean::enter(const PeerGroups& groups) {
  const std::uint32_t owners = groups.is_leader() ? groups.contributors().world() : 1;
  for (auto& flights : flights_of_)
    for (Flight& flight : flights) cut(flight, owners);
  if (feedback_) feedback_->begin_generation(owners);
}

CodedMean::Outcome CodedMean::run(const PeerGroups& groups, const Job& job, JobSignals& signals) {
  Run run{groups, job, signals};
  run.weight = job.weight;
  run.source = job.gradients;
  flights_ = flights_of_[job.fragment];
  Status status;
  if (groups.node) {
    run.node_weight = job.weight;
    collective::CallOptions sum;
    sum.tag = kTag;
    sum.timeout = terms_.timeout;
    status = collective::all_reduce(*groups.node, std::span(&run.node_weight, 1), sum);
    run.weight = run.node_weight;
    run.source = job.mean;
  }
  sparse_.clear();
  lists_ = job.may_list && !groups.node && whole_->spec().kind == CodecSpec::Kind::kTopk;
  owned_.clear();
  left_index_.clear();
  left_.clear();
  for (Flight& flight : flights_) {
    flight.stage = Stage::kWaits;
    flight.has_ended = false;
    flight.total = 0;
  }
  std::size_t next = 0, left = flights_.size();
  const auto is_ready = [&](const Flight& flight) {
    const bool needs_all = feedback_ && feedback_->needs_all();
    const auto ready = [&](const Flight& one) {
      return std::all_of(one.bucket.tensors.begin(), one.bucket.tensors.end(),
                         [&](TensorId tensor) { return signals.is_ready(tensor); });
    };
    return needs_all ? std::all_of(flights_.begin(), flights_.end(), ready) : ready(flight);
  };
  while (status.ok() && left > 0) {
    std::size_t turn = kNoFlight;
    const auto find = [&] {
      for (std::size_t i = 0; i < next && turn == kNoFlight; ++i)
        if (std::exchange(flights_[i].has_ended, false)) turn = i;
      if (turn == kNoFlight && next < flights_.size() && is_ready(flights_[next])) turn = next;
      return turn != kNoFlight;
    };
    if (!signals.wait(find)) {
      status = Error(ErrorCode::kAborted, "the job was given up");
      break;
    }
    if (turn == next) ++next;
    status = take_turn(run, flights_[turn]);
    if (flights_[turn].stage == Stage::kDone) --left;
  }
  if (!status.ok()) groups.abort(status.error());
  for (Flight& flight : flights_) flight.handle = collective::Handle();  // waits for its end
  run.outcome.status = std::move(status);
  run.outcome.stats.residual_norm = residual_norm_;
  return std::move(run.outcome);
}

/// The bucket is ready, or its operation has ended: do what comes next.
Status CodedMean::take_turn(Run& run, Flight& flight) {
  if (flight.stage != Stage::kWaits) CENTROID_TRY(flight.handle.wait());
  const bool gives_to_leader = !run.groups.is_leader();
  switch (flight.stage) {
    case Stage::kWaits:
      look_at(run, flight);
      if (run.sums_in_node()) return start_node_sum(run, flight);
      return gives_to_leader ? start_in_node(run, flight) : start_to_owners(run, flight);
    case Stage::kNodeSum:
      if (gives_to_leader) return start_in_node(run, flight);
      if (!feedback_ || !feedback_->needs_all()) return start_to_owners(run, flight);
      flight.stage = Stage::kSummed;
      if (++run.summed < flights_.size()) return {};
      for (Flight& one : flights_) CENTROID_TRY(start_to_owners(run, one));
      return {};
    case Stage::kToOwners:
      CENTROID_TRY(add(run, flight));
      return start_to_all(run, flight);
    case Stage::kToAll:
      CENTROID_TRY(decode(run, flight));
      if (run.groups.node) return start_in_node(run, flight);
      break;
    case Stage::kSummed:
    case Stage::kInNode:
    case Stage::kDone:
      break;
  }
  flight.stage = Stage::kDone;
  return {};
}

/// Is there anything in our gradients that is not finite? Error feedback looks itself, in the pass
/// in which it adds them.
void CodedMean::look_at(Run& run, const Flight& flight) const {
  const bool is_looked_at = feedback_ && !run.groups.node;
  if (terms_.passes_nonfinite || run.job.weight == 0 || is_looked_at) return;
  if (run.outcome.nonfinite_tensor.empty())
    run.outcome.nonfinite_tensor = nonfinite_tensor(run, flight);
}

std::string CodedMean::nonfinite_tensor(const Run& run, const Flight& flight) const {
  for (const TensorId tensor : flight.bucket.tensors) {
    const TensorInfo& info = plan_.manifest()[tensor.value];
    const std::uint64_t begin = plan_.position_of(tensor);
    if (!is_finite(run.job.gradients.subspan(begin, info.elements()))) return info.name;
  }
  return "";
}

/// Which one the codec has refused: where the gradients are finite, and only their sum with what
/// was left out is not, the one it was about to send.
std::string CodedMean::refused_tensor(const Run& run, const Flight& flight,
                                      const Chunk& chunk) const {
  std::string name = nonfinite_tensor(run, flight);
  const bool is_of_all = feedback_ && feedback_->needs_all();
  for (std::size_t i = 0; name.empty() && is_of_all && i < flights_.size(); ++i)
    name = nonfinite_tensor(run, flights_[i]);
  return name.empty() ? plan_.manifest()[chunk.tensor.value].name : name;
}

// ---- operations

collective::CallOptions CodedMean::options(Run& run, Flight& flight, Stage stage) const {
  collective::CallOptions options;
  options.tag = mix64(kTag, flight.number * 8 + static_cast<std::uint64_t>(stage));
  options.timeout = terms_.timeout;
  options.on_end = [&run, &flight] { run.signals.change([&flight] { flight.has_ended = true; }); };
  return options;
}

Status CodedMean::started(Flight& flight, Stage stage, collective::Handle handle) {
  flight.stage = stage;
  flight.handle = std::move(handle);
  // One that was refused does not say that it has ended.
  return flight.handle.test() ? flight.handle.wait() : Status();
}

Status CodedMean::start_node_sum(Run& run, Flight& flight) {
  const std::uint64_t begin = flight.bucket.begin, elements = flight.bucket.end - begin;
  const std::span<float> mean = run.job.mean.subspan(begin, elements);
  std::span<const float> own = run.job.gradients.subspan(begin, elements);
  if (run.job.weight == 0) {  // the gradients are those of an earlier round
    std::ranges::fill(mean, 0.0f);
    own = mean;
  }
  auto call = options(run, flight, Stage::kNodeSum);
  call.reduction = collective::Reduction::kWeightedMean;
  call.weight = run.job.weight;
  std::vector<std::uint64_t> counts(run.groups.node->world(), 0);
  counts[0] = elements;
  const std::span<float> output = run.groups.is_leader() ? mean : mean.first(0);
  return started(
      flight, Stage::kNodeSum,
      collective::reduce_scatter_async(*run.groups.node, own, output, std::move(call), counts));
}

Status CodedMean::start_to_owners(Run& run, Flight& flight) {
  CENTROID_TRY(encode_into(run, flight));
  const collective::Group& group = run.groups.contributors();
  const std::uint64_t most_in = most_bytes(flight.owned_by[group.rank()]);
  std::vector<collective::Parcel> out;
  flight.places.clear();
  std::uint64_t room = 0;
  for (std::uint32_t rank = 0; rank < group.world(); ++rank) {
    const std::size_t begin = flight.given_at[rank];
    out.push_back({begin, flight.given_at[rank + 1] - begin, most_bytes(flight.owned_by[rank])});
    const bool is_own = rank == group.rank();
    flight.places.push_back({room, 0, is_own ? 0 : most_in});
    room += flight.places.back().most;
  }
  if (flight.room.size() < room) flight.room = Buffer(room);
  flight.lengths.resize(group.world());
  return started(
      flight, Stage::kToOwners,
      collective::exchange_async(group, flight.given, out, flight.room.bytes(), flight.places,
                                 flight.lengths, options(run, flight, Stage::kToOwners)));
}

Status CodedMean::start_to_all(Run& run, Flight& flight) {
  const collective::Group& group = run.groups.contributors();
  const std::uint64_t most_out = most_bytes(flight.owned_by[group.rank()]);
  const std::vector<collective::Parcel> out(group.world(), {0, flight.result.size(), most_out});
  flight.places.clear();
  std::uint64_t room = 0;
  for (std::uint32_t rank = 0; rank < group.world(); ++rank) {
    const bool is_own = rank == group.rank();
    flight.places.push_back({room, 0, is_own ? 0 : most_bytes(flight.owned_by[rank])});
    room += flight.places.back().most;
  }
  if (flight.room.size() < room) flight.room = Buffer(room);
  return started(
      flight, Stage::kToAll,
      collective::exchange_async(group, flight.result, out, flight.room.bytes(), flight.places,
                                 flight.lengths, options(run, flight, Stage::kToAll)));
}

Status CodedMean::start_in_node(Run& run, Flight& flight) {
  const std::uint64_t begin = flight.bucket.begin, elements = flight.bucket.end - begin;
  return started(
      flight, Stage::kInNode,
      collective::broadcast_async(*run.groups.node, run.job.mean.subspan(begin, elements), 0,
                                  options(run, flight, Stage::kInNode)));
}

// ---- what is sent

/// A payload: the same in every attempt of the round.
Result<Bytes> CodedMean::encode(const Run& run, const Chunk& chunk) {
  if (feedback_) return feedback_->encode(chunk.id, run.source, run.job.round);
  const std::uint64_t stream = mix64(mix64(terms_.seed, run.job.round),
                                     mix64(run.groups.contributors().rank(), chunk.id.value));
  const auto values = run.source.subspan(chunk.position, chunk.elements);
  CENTROID_ASSIGN(const std::size_t bytes, codec_for(chunk).encode(values, out_, stream));
  return Bytes(out_).first(bytes);
}

/// Our messages to the owners of the bucket. Numbers that the codec refuses are told, not sent.
Status CodedMean::encode_into(Run& run, Flight& flight) {
  const TimePoint begin = now();
  const std::uint64_t dense_before = feedback_ ? feedback_->totals().dense_chunks : 0;
  PeerForm form = run.weight > 0 ? PeerForm::kNumbers : PeerForm::kNothing;
  if (form == PeerForm::kNumbers && !run.outcome.nonfinite_tensor.empty())
    form = PeerForm::kRefused;  // the round will not count, so the residual need not change
  CodedStats& stats = run.outcome.stats;
  CodedStats mine;
  for (bool again = true; again;) {
    again = false;
    mine = {};
    flight.given.clear();
    flight.given_at.assign(1, 0);
    for (std::size_t owner = 0; owner < flight.owned_by.size() && !again; ++owner) {
      const Chunks owned = flight.owned_by[owner];
      if (owned.size() != 0) {
        PeerMessageWriter out(flight.given, run.weight, form, owned.size());
        for (std::uint32_t c = owned.begin; c < owned.end && form == PeerForm::kNumbers; ++c) {
          const Chunk& chunk = plan_.chunks()[c];
          const auto payload = encode(run, chunk);
          if (!payload.ok()) {  // e.g. the gradient and what was left out are infinite together
            run.outcome.nonfinite_tensor = refused_tensor(run, flight, chunk);
            form = PeerForm::kRefused;
            again = true;
            break;
          }
          out.add(*payload);
          ++mine.chunks;
          mine.raw_bytes += chunk.elements * sizeof(float);
          mine.encoded_bytes += payload->size();
        }
      }
      flight.given_at.push_back(flight.given.size());
    }
  }
  stats.chunks += mine.chunks;
  stats.raw_bytes += mine.raw_bytes;
  stats.encoded_bytes += mine.encoded_bytes;
  if (feedback_)
    stats.dense_chunks +=
        static_cast<std::uint32_t>(feedback_->totals().dense_chunks - dense_before);
  stats.encode_seconds += seconds_since(begin);
  return {};
}

// ---- what comes

Error CodedMean::blame(Run& run, std::uint32_t rank, const Flight& flight,
                       const Error& error) const {
  const std::uint32_t culprit = run.groups.contributors().members()[rank];
  run.outcome.culprit = culprit;
  return error.with_context("bucket " + std::to_string(flight.number) + " from rank " +
                            std::to_string(culprit));
}

Result<PeerMessage> CodedMean::message_from(Run& run, const Flight& flight, std::uint32_t rank,
                                            std::size_t chunks) const {
  const collective::Group& group = run.groups.contributors();
  Bytes bytes;
  if (rank == group.rank())
    bytes = Bytes(flight.given)
                .subspan(flight.given_at[rank], flight.given_at[rank + 1] - flight.given_at[rank]);
  else
    bytes = Bytes(flight.room.bytes()).subspan(flight.places[rank].begin, flight.lengths[rank]);
  auto message = read_peer_message(bytes, chunks);
  if (!message.ok()) return blame(run, rank, flight, message.error());
  return message;
}

/// The mean of the chunks that are ours, into job.mean and as our message to all.
Status CodedMean::add(Run& run, Flight& flight) {
  const TimePoint begin = now();
  const collective::Group& group = run.groups.contributors();
  const Chunks owned = flight.owned_by[group.rank()];
  flight.result.clear();
  if (owned.size() == 0) return {};
  std::vector<PeerMessage> given;
  bool is_refused = false;
  for (std::uint32_t rank = 0; rank < group.world(); ++rank) {
    CENTROID_ASSIGN(auto message, message_from(run, flight, rank, owned.size()));
    if (message.form == PeerForm::kNumbers) flight.total += message.weight;
    is_refused = is_refused || message.form == PeerForm::kRefused;
    given.push_back(std::move(message));
  }
  if (flight.total == 0 && !is_refused)
    return Error(ErrorCode::kInvalidArgument, "weight: the sum over all ranks is 0");
  const bool has_numbers = flight.total > 0;
  PeerMessageWriter out(flight.result, flight.total,
                        has_numbers ? PeerForm::kNumbers : PeerForm::kNothing, owned.size());
  const auto factor = static_cast<float>(1.0 / flight.total);  // as the server divides
  for (std::uint32_t c = owned.begin; c < owned.end; ++c) {
    const Chunk& chunk = plan_.chunks()[c];
    const auto sum = run.job.mean.subspan(chunk.position, chunk.elements);
    if (!has_numbers) {
      std::ranges::fill(sum, 0.0f);
      if (lists_) sparse_.list(chunk, {}, {});
      continue;
    }
    bool is_first = true;
    for (std::uint32_t rank = 0; rank < group.world(); ++rank) {
      if (given[rank].form != PeerForm::kNumbers) continue;
      const Status added =
          codec_for(chunk).decode_add(given[rank].payloads[c - owned.begin],
                                      static_cast<float>(given[rank].weight), is_first, sum);
      if (!added.ok())
        return blame(run, rank, flight, added.error().with_context("chunk " + to_string(chunk.id)));
      is_first = false;
    }
    // Where nothing is sent others have 0: so that we have not -0 there, 0 is added.
    for (float& x : sum) x = x * factor + 0.0f;
    const Magnitude size = terms_.passes_nonfinite ? Magnitude::kModerate : magnitude_of(sum);
    run.outcome.has_large_mean = run.outcome.has_large_mean || size != Magnitude::kModerate;
    if (size == Magnitude::kInfinite) {  // no codec takes it
      run.outcome.nonfinite_mean = plan_.manifest()[chunk.tensor.value].name;
      std::ranges::fill(sum, 0.0f);
    }
    CENTROID_TRY(encode_mean(run, flight, chunk, out));
  }
  count_mean(run, owned, flight.result.size());
  run.outcome.stats.decode_seconds += seconds_since(begin);
  return {};
}

void CodedMean::count_mean(Run& run, Chunks chunks, std::uint64_t bytes) const {
  const Chunk &first = plan_.chunks()[chunks.begin], &last = plan_.chunks()[chunks.end - 1];
  run.outcome.stats.raw_bytes_in +=
      (last.position + last.elements - first.position) * sizeof(float);
  run.outcome.stats.encoded_bytes_in += bytes;
}

/// Encode the mean that stands in job.mean, and put what was sent in its place.
Status CodedMean::encode_mean(Run& run, const Flight& flight, const Chunk& chunk,
                              PeerMessageWriter& out) {
  const auto mean = run.job.mean.subspan(chunk.position, chunk.elements);
  if (plan_.is_buffer(chunk)) {
    out.add(std::as_bytes(mean));
    if (lists_) sparse_.leave(plan_, chunk);
    return {};
  }
  const std::uint64_t stream =
      mix64(mix64(terms_.seed, run.job.round), mix64(kMeanStream, chunk.id.value));
  CENTROID_ASSIGN(const std::size_t bytes, whole_->encode(mean, out_, stream));
  const Bytes payload = Bytes(out_).first(bytes);
  out.add(payload);
  if (lists_) {
    if (const auto sparse = whole_->sparse())
      sparse_.list(chunk, sparse->index, sparse->sent);
    else
      sparse_.leave(plan_, chunk);
  }
  if (!whole_->is_lossy()) return {};
  Owned owned{chunk.position, chunk.elements, false, left_.size()};
  const double all = run.groups.contributors().world();
  owned.factor = static_cast<float>(run.weight > 0 ? flight.total / run.weight : all);
  if (const auto sparse = whole_->sparse()) {
    owned.is_sparse = true;
    for (std::size_t j = 0; j < sparse->index.size(); ++j) {
      mean[sparse->index[j]] = sparse->sent[j];
      if (!errors_) continue;
      left_index_.push_back(sparse->index[j]);
      left_.push_back(sparse->value[j] - sparse->sent[j]);
    }
  } else {
    std::span<float> error;
    if (errors_) {
      error = errors_.as<float>().subspan(chunk.position, chunk.elements);
      std::ranges::copy(mean, error.begin());
    }
    CENTROID_TRY(whole_->codec().decode(payload, mean));
    if (errors_) run_multiversioned<LeftOut>(mean.data(), error.data(), error.size());
  }
  if (errors_) owned_.push_back(owned);
  return {};
}

/// The means of the others.
Status CodedMean::decode(Run& run, Flight& flight) {
  const TimePoint begin = now();
  const collective::Group& group = run.groups.contributors();
  bool is_known = flight.owned_by[group.rank()].size() != 0;
  for (std::uint32_t rank = 0; rank < group.world(); ++rank) {
    const Chunks owned = flight.owned_by[rank];
    if (rank == group.rank() || owned.size() == 0) continue;
    CENTROID_ASSIGN(const auto message, message_from(run, flight, rank, owned.size()));
    if (!is_known) flight.total = message.weight;
    is_known = true;
    if (message.weight != flight.total || message.form == PeerForm::kRefused)
      return blame(run, rank, flight,
                   Error(ErrorCode::kDataLoss,
                         "its mean is over a weight of " + std::to_string(message.weight) +
                             ", another one's over " + std::to_string(flight.total)));
    count_mean(run, owned, flight.lengths[rank]);
    for (std::uint32_t c = owned.begin; c < owned.end; ++c) {
      const Chunk& chunk = plan_.chunks()[c];
      if (message.form == PeerForm::kNothing) {
        std::ranges::fill(run.job.mean.subspan(chunk.position, chunk.elements), 0.0f);
        if (lists_) sparse_.list(chunk, {}, {});
        continue;
      }
      const Status decoded = take_mean(run, chunk, message.payloads[c - owned.begin]);
      if (!decoded.ok())
        return blame(run, rank, flight,
                     decoded.error().with_context("mean of chunk " + to_string(chunk.id)));
    }
  }
  run.outcome.stats.decode_seconds += seconds_since(begin);
  return {};
}

/// The mean of a chunk that another rank encoded.
Status CodedMean::take_mean(Run& run, const Chunk& chunk, Bytes payload) {
  if (lists_) {
    CENTROID_ASSIGN(const auto numbers, codec_for(chunk).sparse(payload, chunk.elements));
    if (numbers) {
      sparse_.list(chunk, numbers->index, numbers->value);
      return {};
    }
    sparse_.leave(plan_, chunk);
  }
  return codec_for(chunk).decode(payload, run.job.mean.subspan(chunk.position, chunk.elements));
}

void CodedMean::round_over(RoundEnd end) {
  if (!feedback_) return;
  if (rounds_++ % kResidualRounds == 0) residual_norm_ = feedback_->residual_norm();
  if (end == RoundEnd::kUndone) {
    feedback_->undo();
  } else if (end == RoundEnd::kSkipped) {
    feedback_->take_back();
  } else {
    feedback_->commit();
    for (std::size_t i = 0; i < owned_.size(); ++i) {
      const Owned& owned = owned_[i];
      if (!owned.is_sparse) {
        feedback_->add_residual(owned.position,
                                errors_.as<float>().subspan(owned.position, owned.elements),
                                owned.factor);
        continue;
      }
      const std::size_t behind = i + 1 < owned_.size() ? owned_[i + 1].first : left_.size();
      feedback_->add_residual(
          owned.position, std::span(left_index_).subspan(owned.first, behind - owned.first),
          std::span(left_).subspan(owned.first, behind - owned.first), owned.factor);
    }
  }
  owned_.clear();
}

}  // namespace centroid::worker
