#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/scalars.h"
#include "common/optim/optimizer_config.h"
#include "common/tensor/tensor.h"

/// Messages between worker and server: heads of frames, as structs. docs/reference/wire.md is the
/// contract; the order of `fields` is the order on the wire. A change here is a new wire version.
namespace centroid::proto {

/// Frame kinds (transport's own are below 16).
enum class Kind : std::uint16_t {
  kJoin = 16,         ///< worker -> server, request; answered by JoinReply
  kInitRequest = 17,  ///< server -> worker: send your initial parameters
  kInitChunk = 18,    ///< worker -> server, payload: one chunk, float32
  kInitDone = 19,     ///< worker -> server
  kStateChunk =
      20,  ///< server -> worker, payload: one chunk of a plane of the committed state, float32
  kRoundOpen = 21,    ///< server -> worker: your part of a round
  kPush = 22,         ///< worker -> server, request: I leave
  kPushEnd = 23,      ///< worker -> server: the contribution is complete
  kResult = 24,       ///< server -> worker, payload: one encoded chunk of the round's result
  kRoundClosed = 25,  ///< server -> worker: outcome of an attempt
  kHeartbeat = 26,    ///< both ways
  kLeave = 27,        ///< worker -> server, request: I go
  kFinish = 28,       ///< server -> worker: there is no next round for you
  kReport = 29,       ///< worker -> server: result of an evaluation
  // with a peer-to-peer exchange (ring, hierarchical)
  kPeers = 30,         ///< server -> worker: where the other ranks of a generation listen
  kStateRequest = 31,  ///< server -> worker: send your state
  kStateDone = 32,     ///< worker -> server: the state is complete (StateChunk before)
  kReady = 35,         ///< worker -> server: done with a round that closed without me
  kComputed = 33,      ///< worker -> server: my gradients are complete, the rest is the peers' work
  kExchangeFailed = 34,  ///< worker -> server: the attempt cannot be completed
  kKeep = 36,            ///< server -> worker: I save the state after this round, save yours
  kWait = 37,            ///< server -> worker or client of rows: why you wait
};

/// Layout of a frame of a known kind: fails invalid_argument if the request flag is missing or
/// unexpected, or a message without head or payload has one; names the message. Other kinds pass.
Status check_frame(std::uint16_t kind, bool is_request, std::uint64_t head_bytes,
                   std::uint64_t payload_bytes);

inline constexpr std::size_t kMaxNameBytes = 256;
inline constexpr std::size_t kMaxTextBytes = 4096;
inline constexpr std::size_t kMaxTensors = 100'000;
/// Of an encoded manifest: so many tensors with the longest names and 8 dimensions.
inline constexpr std::uint64_t kMaxManifestBytes =
    4 + kMaxTensors * (4 + kMaxNameBytes + 1 + 1 + 8 * sizeof(std::uint64_t));
inline constexpr std::size_t kMaxPeers = 4096;
/// Largest weight of a contribution: numbers of samples stay exact.
inline constexpr double kMaxWeight = 1e15;
/// Largest sum of losses: sums over all workers stay finite.
inline constexpr double kMaxLoss = 1e300;
/// Seconds that a worker reports, 31 years.
inline constexpr double kMaxSeconds = 1e9;
/// Of a worker in a round, and of a data set: sums over all workers neither overflow nor round.
inline constexpr std::uint64_t kMaxBatch = std::uint64_t{1} << 32;
inline constexpr std::uint64_t kMaxTrainSamples = std::uint64_t{1} << 48;
/// A sum of losses as it is sent: one that is not finite becomes the largest finite one.
double wire_loss(double loss_sum);

struct Join {
  std::string name;      ///< unique in the cluster; ranks follow the order of names
  std::string exchange;  ///< "auto", or the server's: "star", "ring" or "hierarchical"
  std::string codec;     ///< of the contributions, e.g. "f32"
  std::uint32_t devices = 1;
  std::uint64_t batch = 0;  ///< samples this worker takes a round
  std::uint64_t train_samples = 0;
  std::uint64_t data_fingerprint = 0;
  std::uint64_t sample_tokens = 0;  ///< that a sample has at most; 0: it has none
  std::string model;                ///< spec, for humans
  std::string peer_endpoint;  ///< HOST:PORT where other workers reach this one; "": they cannot
  std::string node;   ///< the same on one machine; "": unknown. Its sender accepts payloads without
                      ///< a checksum from a server that has the same
  Manifest manifest;  ///< travels as the payload: encode_manifest
  template <class F>
  void fields(F& f) {
    f(name, kMaxNameBytes), f(exchange, kMaxNameBytes), f(codec, kMaxNameBytes), f(devices),
        f(batch), f(train_samples);
    f(data_fingerprint), f(sample_tokens), f(model, kMaxNameBytes), f(peer_endpoint, kMaxNameBytes),
        f(node, kMaxNameBytes);
  }
  Status check() const;
};

/// What determines the weight of a contribution in the mean.
enum class WeightBy : std::uint8_t { kSamples = 0, kSteps = 1, kEqual = 2, kTokens = 3 };
constexpr std::uint8_t last_value(WeightBy) { return 3; }

/// As part of a message.
template <class F>
void optimizer_fields(F& f, OptimizerConfig& of) {
  f(of.name, kMaxNameBytes), f(of.learning_rate), f(of.momentum), f(of.beta1), f(of.beta2);
  f(of.epsilon), f(of.weight_decay), f(of.l1), f(of.ftrl_beta), f(of.schedule, kMaxNameBytes);
  f(of.clip_norm);
}

struct JoinReply {
  MemberId member;
  std::string run_id;
  std::uint64_t seed = 0;
  std::uint64_t chunk_bytes = 0;  ///< cut of the chunk plan
  std::uint64_t plan_hash = 0;
  std::uint32_t lease_ms =
      0;  ///< silence after which the member is lost; send a heartbeat every third of it
  bool apply_on_worker = false;  ///< results are mean gradients (true) or new parameters (false)
  std::uint8_t nonfinite = 0;    ///< NonFinite
  OptimizerConfig optimizer;     ///< used with apply_on_worker
  // peer-to-peer exchanges: the same on every worker
  std::uint8_t algorithm = 0;  ///< Algorithm of docs/explanation/rounds.md#all-reduce-algorithms
  std::uint64_t bucket_bytes = 0;  ///< least gradient bytes of one operation
  /// An operation without progress for this long has failed. 0: exchange star, no peers are named.
  std::uint32_t peer_timeout_ms = 0;
  bool ring_by_bandwidth = false;       ///< rings follow the measured network's bandwidth
  std::string codec_down = "f32";       ///< of the results, with exchange star
  std::uint64_t checkpoint_rounds = 0;  ///< the server saves after this number of rounds; 0: not
  bool no_payload_crc = false;  ///< both are one machine: payloads of messages carry no checksum
  Round counted;  ///< the last one in which a contribution of this name counted; 0: none
  // docs/how-to/diloco.md
  std::uint32_t local_steps = 1;  ///< of a worker between two contributions of a tensor
  std::uint32_t fragments = 1;    ///< into which the tensors are divided, one a round
  WeightBy weight_by = WeightBy::kSamples;
  std::uint64_t term =
      0;  ///< of the leader, with several servers: never smaller than one seen before
  /// The learning rate of a step is multiplied by 1 + (RoundClosed.contributors - 1) times this.
  double scale_ratio = 0;
  template <class F>
  void fields(F& f) {
    f(member), f(run_id, kMaxNameBytes), f(seed), f(chunk_bytes), f(plan_hash), f(lease_ms),
        f(apply_on_worker), f(nonfinite);
    optimizer_fields(f, optimizer);
    f(algorithm), f(bucket_bytes), f(peer_timeout_ms), f(ring_by_bandwidth),
        f(codec_down, kMaxNameBytes), f(checkpoint_rounds), f(no_payload_crc), f(counted);
    f(local_steps), f(fragments), f(weight_by), f(term), f.tail(scale_ratio, 0.0);
  }
  Status check() const;
};

/// Reaction to a contribution with NaN or infinity.
enum class NonFinite : std::uint8_t { kHalt = 0, kSkip = 1, kPropagate = 2 };

struct InitChunk {
  ChunkId chunk;
  template <class F>
  void fields(F& f) {
    f(chunk);
  }
};

struct Empty {
  template <class F>
  void fields(F&) {}
};

struct StateChunk {
  Version version;
  std::uint8_t plane = 0;  ///< 0: parameters; 1..: optimizer slots (only with apply_on_worker)
  ChunkId chunk;
  template <class F>
  void fields(F& f) {
    f(version), f(plane), f(chunk);
  }
};

/// Learning rates of a round, where they are not those that the worker knows.
struct RoundRates {
  /// Of the step with the round's result, in place of JoinReply.optimizer's rate and schedule; -1:
  /// as JoinReply says.
  double learning_rate = -1;
  double inner = -1;  ///< of local steps, in place of the worker's own before its schedule; -1: own
  bool operator==(const RoundRates&) const = default;
  template <class F>
  void fields(F& f) {
    f(learning_rate), f(inner);
  }
};

struct RoundOpen {
  Generation generation;
  Round round;
  std::uint32_t attempt = 0;  ///< > 0 with `resend`: send the present gradients again
  Rank rank;
  std::uint32_t world = 0;
  Version version;  ///< parameters from which the gradients are computed
  std::uint64_t optimizer_step = 0;
  std::uint64_t epoch = 0;
  /// Your samples: positions in the epoch's permutation; those after its end are of the next one.
  std::uint64_t begin = 0, end = 0;
  bool resend = false;
  bool evaluate =
      false;  ///< first evaluate these parameters on the held-out data and send a Report
  std::uint32_t overlap = 0;  ///< local steps of the share after the contribution
  std::uint64_t count = 0;    ///< its meaning depends on the job: see the two functions
  RoundRates rates;
  /// Local steps of all workers in the rounds before; 0 without local steps.
  std::uint64_t steps_before(const JoinReply& terms) const {
    return terms.local_steps > 1 ? count : 0;
  }
  /// Workers that will contribute, among peers with a scale_ratio. An older server does not say.
  std::uint64_t contributors(const JoinReply& terms) const {
    return terms.local_steps <= 1 && count > 0 ? count : world;
  }
  template <class F>
  void fields(F& f) {
    f(generation), f(round), f(attempt), f(rank), f(world), f(version), f(optimizer_step), f(epoch),
        f(begin), f(end), f(resend);
    f(evaluate), f(overlap), f(count), f.tail(rates, RoundRates());
  }
  Status check() const;
};

struct Push {
  Generation generation;
  Round round;
  std::uint32_t attempt = 0;
  ChunkId chunk;
  double weight = 0;  ///< samples; the same in every Push of a contribution
  template <class F>
  void fields(F& f) {
    f(generation), f(round), f(attempt), f(chunk), f(weight);
  }
  Status check() const;
};

/// A number that the training program names: sum of `count` values.
struct Scalar {
  std::string name;
  double sum = 0;
  std::uint64_t count = 0;
  template <class F>
  void fields(F& f) {
    f(name, Scalars::kMaxNameBytes), f(sum), f(count);
  }
};
std::vector<Scalar> to_wire(const Scalars& scalars);

struct PushEnd {
  Generation generation;
  Round round;
  std::uint32_t attempt = 0;
  double weight = 0;  ///< 0: no chunk was sent, the worker takes part without a share
  std::uint64_t samples = 0, correct = 0;
  double loss_sum = 0;
  double compute_seconds = 0;  ///< forward and backward of this round
  double wait_seconds = 0;     ///< waiting for the previous round's result
  bool nonfinite = false;      ///< a gradient has NaN or infinity; chunks may be missing
  std::string nonfinite_tensor;
  // work of the codecs, for the operator
  double encode_seconds = 0;  ///< this contribution
  double decode_seconds = 0;  ///< the previous round's result
  double residual_norm = 0;   ///< of the residual of error feedback, when last measured
  std::uint64_t raw_bytes = 0, encoded_bytes = 0;  ///< of this contribution
  std::uint32_t chunks = 0, dense_chunks = 0;      ///< sent; for top-k those sent completely
  // in the round before; a divergence is of local steps
  double exchange_seconds = 0;  ///< all but computing; 0: not measured
  double divergence = -1;       ///< |own - new| / |new| of the parameters; -1: not measured
  double norm = -1;             ///< of the contribution as the server decodes it; -1: unknown
  /// Of its parameters, Euclidean, when last measured; -1: not since the last PushEnd.
  double parameter_norm = -1;
  // stages of the gradient path that are not above, since the last PushEnd
  double send_seconds = 0;        ///< chunks to the servers, with waiting for credit
  double addition_seconds = 0;    ///< additions with other workers: stage `exchange`
  double apply_seconds = 0;       ///< the results of the round before becoming the parameters
  std::vector<Scalar> scalars;    ///< of this contribution, ascending by name, at most kMaxNames
  std::uint64_t fingerprint = 0;  ///< of its parameters and slots before the round; 0: not said
  template <class F>
  void fields(F& f) {
    f(generation), f(round), f(attempt), f(weight), f(samples), f(correct), f(loss_sum),
        f(compute_seconds), f(wait_seconds);
    f(nonfinite), f(nonfinite_tensor, kMaxNameBytes), f(encode_seconds), f(decode_seconds),
        f(residual_norm), f(raw_bytes), f(encoded_bytes), f(chunks), f(dense_chunks),
        f(exchange_seconds), f(divergence), f(norm), f(parameter_norm), f(send_seconds),
        f(addition_seconds), f(apply_seconds), f(scalars);
    f.tail(fingerprint, std::uint64_t{0});
  }
  Status check() const;
};

struct ResultChunk {
  Round round;
  std::uint32_t attempt = 0;
  ChunkId chunk;
  template <class F>
  void fields(F& f) {
    f(round), f(attempt), f(chunk);
  }
};

enum class Outcome : std::uint8_t {
  kCommitted = 0,  ///< the results sent are the new state
  kSkipped = 1,    ///< no effect (non-finite, policy skip; or all weights 0); drop the results
  kAborted = 2,    ///< drop the results; a RoundOpen with the next attempt follows
  kLate = 3,       ///< over without this worker: send Ready when the round's work has ended
  kCarried = 4,    ///< as kLate, but the contribution counts in a later round
};

constexpr std::uint8_t last_value(Outcome) { return 4; }

/// The round closed without waiting for this worker.
constexpr bool is_late(Outcome outcome) {
  return outcome == Outcome::kLate || outcome == Outcome::kCarried;
}

struct RoundClosed {
  Round round;
  std::uint32_t attempt = 0;
  Outcome outcome = Outcome::kCommitted;
  Version version;  ///< after the round
  std::uint64_t optimizer_step = 0;
  double weight = 0;  ///< sum over the contributors
  std::uint32_t contributors = 0;
  std::string reason;
  template <class F>
  void fields(F& f) {
    f(round), f(attempt), f(outcome), f(version), f(optimizer_step), f(weight), f(contributors),
        f(reason, kMaxTextBytes);
  }
  Status check() const;
};

enum class FinishReason : std::uint8_t { kFinished = 0, kStopped = 1, kDrained = 2, kHalted = 3 };
constexpr std::uint8_t last_value(FinishReason) { return 3; }

struct Finish {
  FinishReason reason = FinishReason::kFinished;
  bool evaluate = false;  ///< evaluate the last parameters and send a Report before Leave
  Version version;
  std::string text;
  template <class F>
  void fields(F& f) {
    f(reason), f(evaluate), f(version), f(text, kMaxTextBytes);
  }
};

struct Leave {
  std::string reason;
  template <class F>
  void fields(F& f) {
    f(reason, kMaxTextBytes);
  }
};

struct Report {
  Version version;
  std::uint64_t samples = 0, correct = 0;
  double loss_sum = 0;
  template <class F>
  void fields(F& f) {
    f(version), f(samples), f(correct), f(loss_sum);
  }
  Status check() const;
};

/// One rank of a generation, as the others see it.
struct Peer {
  std::string endpoint;  ///< HOST:PORT
  std::string node;
  template <class F>
  void fields(F& f) {
    f(endpoint, kMaxNameBytes), f(node, kMaxNameBytes);
  }
};

struct Peers {
  Generation generation;
  std::vector<Peer> ranks;
  template <class F>
  void fields(F& f) {
    f(generation), f(ranks);
  }
  Status check() const;
};

/// StateRequest and StateDone.
struct StateMark {
  Version version;
  template <class F>
  void fields(F& f) {
    f(version);
  }
};

/// Computed and Ready.
struct Computed {
  Generation generation;
  Round round;
  std::uint32_t attempt = 0;
  template <class F>
  void fields(F& f) {
    f(generation), f(round), f(attempt);
  }
};

struct Keep {
  Round round;  ///< the last closed one
  template <class F>
  void fields(F& f) {
    f(round);
  }
};

/// Sent every two seconds while the other side's request is delayed.
struct Wait {
  std::uint32_t ms = 0;  ///< delayed for this long
  std::string what;      ///< who and what it waits for
  template <class F>
  void fields(F& f) {
    f(ms), f(what, kMaxTextBytes);
  }
};

struct ExchangeFailed {
  Generation generation;
  Round round;
  std::uint32_t attempt = 0;
  bool has_culprit = false;
  Rank culprit;  ///< the rank that was lost or silent, as this worker observes it
  std::string reason;
  template <class F>
  void fields(F& f) {
    f(generation), f(round), f(attempt), f(has_culprit), f(culprit), f(reason, kMaxTextBytes);
  }
};

/// Message <-> head bytes. decode fails invalid_argument (short, long, a number out of range, a
/// string over its limit), naming the message; it allocates no more than the input's length. A
/// refusal by a message's `check` names field and value.
template <class M>
std::vector<std::byte> encode(const M& message);
template <class M>
Result<M> decode(Bytes head);

/// The tensors of a model <-> payload of Join and Model: too long for a head. At most
/// kMaxManifestBytes; decode fails as above, and with too many tensors.
std::vector<std::byte> encode_manifest(const Manifest& manifest);
Result<Manifest> decode_manifest(Bytes payload);

}  // namespace centroid::proto
