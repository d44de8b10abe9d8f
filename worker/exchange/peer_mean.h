#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/codec/chunk_codec.h"
#include "common/codec/error_feedback.h"
#include "common/codec/whole.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"
#include "transport/collective/exchange.h"
#include "worker/exchange/peer_buckets.h"
#include "worker/exchange/peer_groups.h"
#include "worker/exchange/peer_message.h"
#include "worker/exchange/sparse_mean.h"

namespace centroid::worker {

/// What a job under way waits for: it is told by other threads.
class JobSignals {
 public:
  virtual ~JobSignals() = default;
  /// Block until `condition` is true, which is asked with the lock of `change` held. False: the job
  /// is aborted.
  virtual bool wait(const std::function<bool()>& condition) = 0;
  /// Within `condition`.
  virtual bool is_ready(TensorId tensor) const = 0;
  /// Do this with the lock held, and wake who waits.
  virtual void change(const std::function<void()>& what) = 0;
};

/// What became of a round, for what error feedback holds of it.
enum class RoundEnd : std::uint8_t {
  kCommitted,
  kPromised,  ///< it came late, and is to count in a round that is yet to be committed
  kSkipped,   ///< given up for good: what was sent is to be sent again
  kUndone     ///< begun anew, here or by others: it never was
};

/// What the codec did in one job. In an attempt that is repeated the payloads count again.
struct CodedStats {
  std::uint64_t raw_bytes = 0, encoded_bytes = 0;        ///< of what we gave
  std::uint64_t raw_bytes_in = 0, encoded_bytes_in = 0;  ///< of the means
  std::uint32_t chunks = 0, dense_chunks = 0;            ///< of what we gave
  double residual_norm = 0;  ///< of what is still to be sent, when last looked at
  double encode_seconds = 0;
  double decode_seconds = 0;  ///< adding what came, and decoding means
};

/// The weighted mean of compressed gradients among the workers
/// (docs/explanation/rounds.md#compressed-all-reduce, "Compressed").
///
/// steps   per bucket: every rank encodes its gradients, once, and gives each owner the chunks that
///         are its own; the owner adds in rank order (sum += weight * x, as the server does),
///         divides, encodes the mean, once, and gives it to all; everybody decodes the same bytes,
///         the owner too. Two ways, two roundings, whatever the number of ranks.
/// nodes   with PeerGroups::node the ranks of a node add theirs uncompressed to their leader; the
///         leaders do the above, and pass the mean on in their nodes
/// buffers  their chunks are f32 both ways (codec_of), so that their mean is exact
/// feedback  what a rank's encoding leaves out stays in its ErrorFeedback; what an owner's leaves
///         out goes to the owner's too, times total weight / own weight: nothing is lost when
///         chunks get other owners
/// repeat  an attempt sends the payloads of the attempt before; owners may be others
/// bits    the same on every rank and in every run
/// thread  one at a time
class CodedMean {
 public:
  struct Terms {
    std::string codec;
    std::uint64_t seed = 0;
    std::uint64_t bucket_bytes = 0;
    std::uint32_t fragments = 1;
    bool passes_nonfinite = false;
    std::chrono::milliseconds timeout{60'000};  ///< of one step of one bucket
  };
  /// fails invalid_argument: the codec
  static Result<std::unique_ptr<CodedMean>> make(const ChunkPlan& plan, Terms terms);

  /// The jobs that follow are of these groups.
  void enter(const PeerGroups& groups);

  struct Job {
    std::uint64_t round = 0;
    std::uint32_t fragment = 0;        ///< whose tensors it is about
    double weight = 0;                 ///< samples; 0: nothing to give
    std::span<const float> gradients;  ///< as in PeerReducer::Job
    std::span<float> mean;
    bool may_list = false;  ///< the mean may be left in `sparse_mean` where it is sparse
  };
  struct Outcome {
    Status status;
    std::optional<std::uint32_t> culprit;  ///< rank of the generation that sent what is not right
    std::string nonfinite_tensor;
    bool has_large_mean = false;  ///< of what this rank has added
    std::string nonfinite_mean;   ///< a tensor whose mean is not finite; 0 was sent in its place
    CodedStats stats;
  };
  /// Blocks. When it fails every rank's job of these groups ends with the cause. `groups`: entered.
  Outcome run(const PeerGroups& groups, const Job& job, JobSignals& signals);
  /// Of the round of the last job.
  void round_over(RoundEnd end);

  /// The mean of the last job; nullptr when all of it stands in job.mean. Until the next job.
  const SparseMean* sparse_mean() const { return lists_ ? &sparse_ : nullptr; }

  /// What is still to be sent; nullptr without error feedback.
  const ErrorFeedback* feedback() const { return feedback_.get(); }
  ErrorFeedback* feedback() { return feedback_.get(); }
  const ChunkPlan& plan() const { return plan_; }

 private:
  enum class Stage : std::uint8_t { kWaits, kNodeSum, kSummed, kToOwners, kToAll, kInNode, kDone };
  struct Chunks {
    std::uint32_t begin = 0, end = 0;
    std::size_t size() const { return end - begin; }
  };
  /// One bucket, from round to round.
  struct Flight {
    Bucket bucket;
    std::uint32_t number = 0;
    std::vector<Chunks> owned_by;  ///< by contributor; in order but for where the first one begins
    Stage stage = Stage::kWaits;
    bool has_ended = false;  ///< its operation; under the signals' lock
    collective::Handle handle;
    std::vector<std::byte> given, result;  ///< our messages to the owners; our means
    std::vector<std::size_t> given_at;     ///< where each of them begins, and the end
    Buffer room;                           ///< what comes
    std::vector<collective::Parcel> places;
    std::vector<std::uint64_t> lengths;
    double total = 0;  ///< weight, as far as known
  };
  /// A chunk whose mean we encoded: what that left out is in errors_, or if the mean was sparse in
  /// left_index_ and left_ from `first` on. `factor`: what its error counts among our gradients.
  struct Owned {
    std::uint64_t position = 0, elements = 0;
    bool is_sparse = false;
    std::size_t first = 0;
    float factor = 0;
  };
  struct Run;  // of one job

  CodedMean(ChunkPlan plan, const FragmentPlan& fragments, std::unique_ptr<SumEncoder> whole,
            Terms terms);
  const Codec& codec_for(const Chunk& chunk) const {
    return codec_of(whole_->codec(), plan_, chunk);
  }
  void cut(Flight& flight, std::uint32_t owners) const;
  std::uint64_t most_bytes(Chunks chunks) const;
  Status take_turn(Run& run, Flight& flight);
  Status start_node_sum(Run& run, Flight& flight);
  Status start_to_owners(Run& run, Flight& flight);
  Status start_to_all(Run& run, Flight& flight);
  Status start_in_node(Run& run, Flight& flight);
  Status started(Flight& flight, Stage stage, collective::Handle handle);
  collective::CallOptions options(Run& run, Flight& flight, Stage stage) const;
  Status encode_into(Run& run, Flight& flight);
  Result<Bytes> encode(const Run& run, const Chunk& chunk);
  Status add(Run& run, Flight& flight);
  Status encode_mean(Run& run, const Flight& flight, const Chunk& chunk, PeerMessageWriter& out);
  Status take_mean(Run& run, const Chunk& chunk, Bytes payload);
  void count_mean(Run& run, Chunks chunks, std::uint64_t bytes) const;
  Status decode(Run& run, Flight& flight);
  Result<PeerMessage> message_from(Run& run, const Flight& flight, std::uint32_t rank,
                                   std::size_t chunks) const;
  Error blame(Run& run, std::uint32_t rank, const Flight& flight, const Error& error) const;
  void look_at(Run& run, const Flight& flight) const;
  std::string nonfinite_tensor(const Run& run, const Flight& flight) const;
  std::string refused_tensor(const Run& run, const Flight& flight, const Chunk& chunk) const;

  const ChunkPlan plan_;  // of the payloads: finer than the server's
  const std::unique_ptr<SumEncoder> whole_;
  const Terms terms_;
  std::unique_ptr<ErrorFeedback> feedback_;
  std::vector<std::vector<Flight>> flights_of_;  // fragment
  std::span<Flight> flights_;                    // of the job's fragment
  std::vector<Owned> owned_;                     // of the last job
  std::vector<std::uint32_t> left_index_;
  std::vector<float> left_;
  Buffer errors_;  // of its means
  SparseMean sparse_;
  bool lists_ = false;  // in the last job
  double residual_norm_ = 0;
  std::uint64_t rounds_ = 0;  // that are over
  std::vector<std::byte> out_;
};

}  // namespace centroid::worker
