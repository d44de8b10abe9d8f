#include "worker/exchange/peer_reducer.h"

#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/tensor/finite.h"
#include "common/tensor/squares.h"
#include "transport/collective/ring_order.h"
#include "transport/collective/schedule.h"

namespace centroid::worker {

namespace {
void add(transport::TrafficCounters& sum, const transport::TrafficCounters& more) {
  sum.bytes_in += more.bytes_in;
  sum.bytes_out += more.bytes_out;
  sum.frames_in += more.frames_in;
  sum.frames_out += more.frames_out;
}
}  // namespace

Result<std::unique_ptr<PeerReducer>> PeerReducer::open(
    const collective::Mesh::TransportFactory& make_transport, const transport::Endpoint& listen,
    collective::MeshOptions options) {
  // Whoever leaves a generation owes its peers nothing: the round is committed or given up.
  options.leave_timeout = std::chrono::milliseconds(0);
  CENTROID_ASSIGN(auto mesh, collective::Mesh::open(make_transport, listen, std::move(options)));
  return std::unique_ptr<PeerReducer>(new PeerReducer(std::move(mesh)));
}

PeerReducer::PeerReducer(std::unique_ptr<collective::Mesh> mesh) : mesh_(std::move(mesh)) {
  thread_ = Thread("reducer", [this] { work(); });
}

PeerReducer::~PeerReducer() {
  abort(Error(ErrorCode::kCancelled, "the worker is going"));
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<bool> PeerReducer::configure(const ChunkPlan& plan, ReduceTerms terms) {
  const bool is_same = coded_ && plan.hash() == plan_.hash() && terms.codec == terms_.codec &&
                       terms.seed == terms_.seed && terms.bucket_bytes == terms_.bucket_bytes &&
                       terms.refuses_nonfinite == terms_.refuses_nonfinite &&
                       terms.timeout == terms_.timeout;
  plan_ = plan;
  terms_ = std::move(terms);
  CENTROID_ASSIGN(const auto fragments, FragmentPlan::make(plan_, terms_.fragments));
  buckets_.clear();
  for (std::uint32_t fragment = 0; fragment < fragments.count(); ++fragment)
    buckets_.push_back(make_buckets(plan_, terms_.bucket_bytes, fragments, fragment));
  if (is_same) return true;
  coded_.reset();
  entered_ = {};  // what is made here has not entered the group
  if (terms_.codec == "f32") return false;
  CodedMean::Terms coded;
  coded.codec = terms_.codec;
  coded.seed = terms_.seed;
  coded.bucket_bytes = terms_.bucket_bytes;
  coded.fragments = terms_.fragments;
  coded.passes_nonfinite = !terms_.refuses_nonfinite;
  coded.timeout = terms_.timeout;
  CENTROID_ASSIGN(coded_, CodedMean::make(plan_, std::move(coded)));
  return false;
}

void PeerReducer::start(Job job, std::function<void(Outcome)> done) {
  const std::lock_guard lock(mutex_);
  CENTROID_CHECK(!job_);
  job_ = std::move(job);
  job_->before =
      std::exchange(round_over_, std::nullopt);  // what is told from here on is of this one
  done_ = std::move(done);
  ready_.assign(plan_.manifest().size(), job_->weight == 0);
  aborted_.reset();
  changed_.notify_all();
}

void PeerReducer::ready(TensorId tensor) {
  const std::lock_guard lock(mutex_);
  ready_[tensor.value] = true;
  changed_.notify_all();
}

void PeerReducer::abort(Error cause) {
  std::optional<PeerGroups> groups;
  {
    const std::lock_guard lock(mutex_);
    if (!job_ || aborted_) return;
    aborted_ = cause;
    groups = groups_;
    changed_.notify_all();
  }
  if (groups) groups->abort(cause);
}

void PeerReducer::round_over(RoundEnd end) {
  const std::lock_guard lock(mutex_);
  if (!round_over_) round_over_ = end;
}

std::optional<Error> PeerReducer::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

void PeerReducer::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return job_ || ends_; });
    if (!job_) return;
    const Job job = *job_;
    lock.unlock();
    Outcome outcome = run(job);
    count_traffic();
    lock.lock();
    job_.reset();
    const auto done = std::exchange(done_, nullptr);
    lock.unlock();
    done(std::move(outcome));
    lock.lock();
  }
}

PeerReducer::Outcome PeerReducer::run(const Job& job) {
  if (coded_ && job.before) coded_->round_over(*job.before);
  Outcome outcome;
  outcome.status = enter(job);
  if (outcome.status.ok() && coded_)
    outcome = reduce_coded(job);
  else if (outcome.status.ok())
    outcome = reduce(job);
  if (outcome.status.ok() && !coded_) look_at_mean(job, outcome);  // who encodes it has looked
  if (outcome.status.ok()) look_at_step(job, outcome);
  if (!outcome.status.ok() && !outcome.culprit && groups_) outcome.culprit = groups_->all.culprit();
  return outcome;
}

/// What became of the round before.
void PeerReducer::settle() {
  std::optional<RoundEnd> end;
  {
    const std::lock_guard lock(mutex_);
    end = std::exchange(round_over_, std::nullopt);
  }
  if (coded_ && end) coded_->round_over(*end);
}

ErrorFeedback* PeerReducer::feedback_at_rest() {
  {
    const std::lock_guard lock(mutex_);
    if (job_) return nullptr;
  }
  settle();  // the work's thread waits for a job, which only our caller gives
  return coded_ ? coded_->feedback() : nullptr;
}

/// Be in the group of the job's generation.
Status PeerReducer::enter(const Job& job) {
  // A server that was started again may give the number of a generation to other workers.
  const bool is_same = entered_.generation == job.roster.generation &&
                       entered_.rank == job.roster.rank &&
                       entered_.endpoints == job.roster.endpoints;
  if (groups_ && is_same) return {};
  entered_ = job.roster;
  std::optional<PeerGroups> old;
  {
    const std::lock_guard lock(mutex_);
    old = std::exchange(groups_, std::nullopt);
    add(closed_traffic_, live_traffic_);
    live_traffic_ = {};
  }
  old.reset();  // says goodbye to the peers of the generation before
  if (auto cause = aborted()) return *std::move(cause);
  collective::Roster roster = job.roster;
  roster.run_id = terms_.run_id;
  auto group = mesh_->join(roster);
  if (!group.ok()) return std::move(group).error();
  log::debug("peers.joined", {{"generation", roster.generation},
                              {"rank", roster.rank},
                              {"world", roster.endpoints.size()}});
  const bool may_split = terms_.algorithm == collective::Algorithm::kAuto ||
                         terms_.algorithm == collective::Algorithm::kHierarchical;
  PeerGroups groups{std::move(group).value()};
  const auto take = [this](PeerGroups made) {
    const std::lock_guard held(mutex_);
    groups_ = std::move(made);
    return aborted_ ? Status(*aborted_) : Status();
  };
  if (coded_ && may_split && collective::pays_hierarchy(groups.all.nodes())) {
    CENTROID_ASSIGN(groups, split_by_node(std::move(groups.all)));
  }
  if (coded_) coded_->enter(groups);
  const bool measures = terms_.orders_by_bandwidth && !coded_;
  const collective::Group all = groups.all;
  CENTROID_TRY(take(std::move(groups)));  // from now on `abort` ends what it does
  if (!measures) return {};
  auto ordered = collective::order_by_bandwidth(all);
  if (!ordered.ok()) return std::move(ordered).error().with_context("measuring the network");
  std::string ring;
  for (const std::uint32_t rank : ordered->ring()) {
    if (!ring.empty()) ring += ',';
    ring += std::to_string(rank);
  }
  log::info("peers.ring_ordered",
            {{"generation", roster.generation}, {"order", ring.empty() ? "ranks" : ring}});
  return take(PeerGroups{std::move(ordered).value()});
}

/// False: the job is aborted.
bool PeerReducer::wait_for(const Bucket& bucket) {
  std::unique_lock lock(mutex_);
  const auto is_ready = [&] {
    return std::all_of(bucket.tensors.begin(), bucket.tensors.end(),
                       [&](TensorId tensor) { return ready_[tensor.value]; });
  };
  changed_.wait(lock, [&] { return aborted_ || is_ready(); });
  return !aborted_;
}

class PeerReducer::Signals final : public JobSignals {
 public:
  explicit Signals(PeerReducer& peers) : peers_(peers) {}

  bool wait(const std::function<bool()>& condition) override {
    std::unique_lock lock(peers_.mutex_);
    peers_.changed_.wait(lock, [&] { return peers_.aborted_ || condition(); });
    return !peers_.aborted_;
  }
  bool is_ready(TensorId tensor) const override { return peers_.ready_[tensor.value]; }
  void change(const std::function<void()>& what) override {
    const std::lock_guard lock(peers_.mutex_);
    what();
    peers_.changed_.notify_all();
  }

 private:
  PeerReducer& peers_;
};

PeerReducer::Outcome PeerReducer::reduce_coded(const Job& job) {
  Signals signals(*this);
  CodedMean::Job coded;
  coded.round = job.round;
  coded.fragment = job.fragment;
  coded.weight = job.weight;
  coded.gradients = job.gradients;
  coded.mean = job.mean;
  coded.may_list = terms_.may_list;
  auto ended = coded_->run(*groups_, coded, signals);
  Outcome outcome;
  outcome.status = std::move(ended.status);
  outcome.culprit = ended.culprit;
  outcome.nonfinite_tensor = std::move(ended.nonfinite_tensor);
  if (outcome.nonfinite_tensor.empty() && !ended.nonfinite_mean.empty())
    refuse_mean(job, ended.nonfinite_mean, outcome);
  outcome.stats = ended.stats;
  outcome.has_large_mean = ended.has_large_mean;
  if (auto cause = aborted()) outcome.status = *std::move(cause);
  return outcome;
}

/// Finite gradients may have a sum that is not. Every rank has the same mean, so every rank says
/// so, with the norm of what it gave.
void PeerReducer::look_at_mean(const Job& job, Outcome& outcome) const {
  if (!terms_.refuses_nonfinite || !outcome.nonfinite_tensor.empty()) return;
  if (job.looks_at_mean && job.looks_at_mean()) return;
  for (const Bucket& bucket : buckets_[job.fragment]) {
    const auto size = magnitude_of(job.mean.subspan(bucket.begin, bucket.end - bucket.begin));
    outcome.has_large_mean = outcome.has_large_mean || size != Magnitude::kModerate;
    if (size != Magnitude::kInfinite) continue;
    for (const TensorId tensor : bucket.tensors) {
      const TensorInfo& info = plan_.manifest()[tensor.value];
      if (!is_finite(job.mean.subspan(plan_.position_of(tensor), info.elements())))
        return refuse_mean(job, info.name, outcome);
    }
  }
}

/// Every rank makes the same step when the round counts.
void PeerReducer::look_at_step(const Job& job, Outcome& outcome) const {
  if (!terms_.refuses_nonfinite || !outcome.nonfinite_tensor.empty() || !job.refused_tensor) return;
  const std::string tensor = job.refused_tensor(outcome.has_large_mean, sparse_mean());
  if (!tensor.empty()) refuse_mean(job, tensor, outcome);
}

void PeerReducer::refuse_mean(const Job& job, const std::string& tensor, Outcome& outcome) const {
  double squares = 0;
  for (const Bucket& bucket : buckets_[job.fragment])
    if (job.weight > 0)
      squares += squares_of(job.gradients.subspan(bucket.begin, bucket.end - bucket.begin));
  outcome.nonfinite_tensor = tensor;
  outcome.norm = std::sqrt(squares);
}

PeerReducer::Outcome PeerReducer::reduce(const Job& job) {
  Outcome outcome;
  std::string& nonfinite_tensor = outcome.nonfinite_tensor;
  collective::CallOptions options;
  options.reduction = collective::Reduction::kWeightedMean;
  options.weight = job.weight;
  options.algorithm = terms_.algorithm;
  options.timeout = terms_.timeout;
  std::vector<collective::Handle> under_way;
  for (const Bucket& bucket : buckets_[job.fragment]) {
    if (!wait_for(bucket)) break;
    const std::uint64_t elements = bucket.end - bucket.begin;
    const std::span<float> mean = job.mean.subspan(bucket.begin, elements);
    if (job.weight == 0) {  // the gradients are those of an earlier round
      std::memset(mean.data(), 0, mean.size_bytes());
      under_way.push_back(collective::all_reduce_async(groups_->all, mean, options));
      continue;
    }
    if (terms_.refuses_nonfinite && nonfinite_tensor.empty())
      for (const TensorId tensor : bucket.tensors) {
        const TensorInfo& info = plan_.manifest()[tensor.value];
        if (!is_finite(job.gradients.subspan(plan_.position_of(tensor), info.elements())))
          nonfinite_tensor = info.name;
      }
    under_way.push_back(collective::all_reduce_async(
        groups_->all, job.gradients.subspan(bucket.begin, elements), mean, options));
  }
  for (collective::Handle& handle : under_way) {
    Status ended = handle.wait();
    if (outcome.status.ok()) outcome.status = std::move(ended);
  }
  if (auto cause = aborted()) outcome.status = *std::move(cause);
  return outcome;
}

void PeerReducer::count_traffic() {
  if (!groups_) return;
  const auto traffic = groups_->all.traffic();
  const std::lock_guard lock(mutex_);
  live_traffic_ = traffic;
}

transport::TrafficCounters PeerReducer::traffic() const {
  const std::lock_guard lock(mutex_);
  transport::TrafficCounters sum = closed_traffic_;
  add(sum, live_traffic_);
  return sum;
}

}  // namespace centroid::worker
