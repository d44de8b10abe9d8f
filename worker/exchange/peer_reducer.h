#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/thread.h"
#include "common/tensor/chunk_plan.h"
#include "transport/collective/collectives.h"
#include "transport/collective/mesh.h"
#include "worker/exchange/peer_buckets.h"
#include "worker/exchange/peer_groups.h"
#include "worker/exchange/peer_mean.h"

namespace centroid::worker {

/// What the server prescribes, the same on every worker.
struct ReduceTerms {
  std::string run_id;
  collective::Algorithm algorithm = collective::Algorithm::kAuto;
  std::uint64_t bucket_bytes = 0;
  std::chrono::milliseconds timeout{60'000};
  bool orders_by_bandwidth = false;  ///< rings follow the measured network, not the ranks
  bool refuses_nonfinite = true;     ///< look for NaN and infinity in our own gradients
  std::string codec = "f32";         ///< of what travels; another than f32 has one way to travel
  std::uint64_t seed = 0;            ///< of the codec's rounding
  std::uint32_t fragments = 1;
  bool may_list = false;  ///< a sparse mean need not be written to the plane
};

/// Adds the gradients of a round among the workers: the data plane of the exchanges ring and
/// hierarchical.
///
/// buckets  tensors from the last to the first, until bucket_bytes are together: each is one
///          all-reduce (weighted mean), begun as soon as its tensors are ready, while backward goes
///          on, and in the same order on every rank
/// codec    with another than f32 a bucket is what CodedMean does with it
/// thread   the public functions: one thread (the link's executor); the work has a thread of its
///          own, which reads `gradients` and writes `mean` between `start` and the end of the job
class PeerReducer {
 public:
  static Result<std::unique_ptr<PeerReducer>> open(
      const collective::Mesh::TransportFactory& make_transport, const transport::Endpoint& listen,
      collective::MeshOptions options);
  ~PeerReducer();
  PeerReducer(const PeerReducer&) = delete;
  PeerReducer& operator=(const PeerReducer&) = delete;

  transport::Endpoint endpoint() const { return mesh_->endpoint(); }  ///< with the real port
  /// Before the first job, and again after each join. What error feedback has left to send is kept,
  /// as long as the terms of the codec stay: whether they did.
  /// fails invalid_argument: the codec
  Result<bool> configure(const ChunkPlan& plan, ReduceTerms terms);

  struct Job {
    collective::Roster roster;
    std::uint64_t round = 0;
    std::uint32_t fragment = 0;  ///< whose tensors it is about; the others' mean is left alone
    double weight = 0;           ///< samples; 0: take part without numbers, nothing will be ready
    std::span<const float> gradients;
    std::span<float> mean;           ///< sum of weight times gradient over the sum of the weights
    std::optional<RoundEnd> before;  ///< what became of the round before; set by `start`
    /// StepGuard::refused_tensor, when the mean is here
    std::function<std::string(bool is_large, const SparseMean* listed)> refused_tensor;
    /// Whether that finds a mean that is not finite, too.
    std::function<bool()> looks_at_mean;
  };
  struct Outcome {
    Status status;
    std::optional<std::uint32_t> culprit;  ///< the rank that was lost or silent
    /// Of our own gradients, or of the mean or its step with `norm`; the job went on all the same.
    std::string nonfinite_tensor;
    double norm = -1;             ///< of our own gradients, where they are finite; -1: unknown
    bool has_large_mean = false;  ///< of what this rank has added
    CodedStats stats;             ///< all 0 with codec f32
  };
  /// One job at a time. `done` is called from the worker thread, exactly once.
  void start(Job job, std::function<void(Outcome)> done);
  void ready(TensorId tensor);
  /// End the job soon, with this cause.
  void abort(Error cause);
  /// The mean of the last job, where it is sparse; nullptr when the plane holds all of it. Until
  /// the next job.
  const SparseMean* sparse_mean() const { return coded_ ? coded_->sparse_mean() : nullptr; }
  /// The round of the last job is over. Any time after the job; for error feedback.
  void round_over(RoundEnd end);
  bool has_feedback() const { return coded_ && coded_->feedback() != nullptr; }
  /// What error feedback has left to send, as the last `round_over` made it; nullptr during a job,
  /// and where there is none. Until the next job.
  ErrorFeedback* feedback_at_rest();
  transport::TrafficCounters traffic() const;
  /// As collective::Mesh::reach.
  Task<Status> reach(transport::Endpoint endpoint, std::chrono::milliseconds time) {
    return mesh_->reach(std::move(endpoint), time);
  }
  /// As collective::Mesh::measure, beside a job.
  Task<Result<transport::EchoReport>> measure(transport::Endpoint endpoint, std::string run_id,
                                              std::chrono::milliseconds time, std::uint32_t bytes) {
    return mesh_->measure(std::move(endpoint), std::move(run_id), time, bytes);
  }

 private:
  class Signals;
  explicit PeerReducer(std::unique_ptr<collective::Mesh> mesh);
  void work();
  Outcome run(const Job& job);
  Status enter(const Job& job);
  Outcome reduce(const Job& job);
  void look_at_mean(const Job& job, Outcome& outcome) const;
  void look_at_step(const Job& job, Outcome& outcome) const;
  void refuse_mean(const Job& job, const std::string& tensor, Outcome& outcome) const;
  Outcome reduce_coded(const Job& job);
  void settle();
  bool wait_for(const Bucket& bucket);
  std::optional<Error> aborted() const;
  void count_traffic();

  const std::unique_ptr<collective::Mesh> mesh_;
  ChunkPlan plan_;
  ReduceTerms terms_;
  std::vector<std::vector<Bucket>> buckets_;  // of each fragment
  std::unique_ptr<CodedMean> coded_;          // with another codec than f32

  mutable Mutex mutex_;
  Condition changed_;
  std::optional<Job> job_;
  std::function<void(Outcome)> done_;
  std::vector<bool> ready_;
  std::optional<Error> aborted_;
  std::optional<PeerGroups> groups_;
  collective::Roster entered_;          ///< of `groups_`; of the work's thread
  std::optional<RoundEnd> round_over_;  // the next job begins with it
  transport::TrafficCounters closed_traffic_, live_traffic_;
  bool ends_ = false;
  Thread thread_;
};

}  // namespace centroid::worker
