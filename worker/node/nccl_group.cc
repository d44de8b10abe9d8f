#include "worker/node/nccl_group.h"

#include <algorithm>
#include <cmath>
#include <system_error>

#include "common/base/log.h"

namespace centroid::worker {

using nccl::Comm;

namespace {

/// Check that `whole` numbers are `devices` parts of `part` numbers.
Status check_parts(const char* what, std::size_t whole, std::size_t part, std::size_t devices) {
  if (whole == part * devices) return {};
  return Error(ErrorCode::kInvalidArgument,
               std::string(what) + ": " + std::to_string(whole) + " numbers are not " +
                   std::to_string(devices) + " equal parts of " + std::to_string(part) +
                   ", one for each device: it takes " + std::to_string(part * devices) +
                   ", so choose the part as the total / devices, rounded up, and pad the total");
}

}  // namespace

/// Interval between polls of a waiting call: a fraction of the time of one bucket.
constexpr std::chrono::microseconds kCheckInterval{50};

Result<std::unique_ptr<NcclGroup>> NcclGroup::make(std::shared_ptr<const nccl::Library> library,
                                                   const std::vector<int>& devices,
                                                   Options options) {
  if (devices.empty())
    return Error(ErrorCode::kInvalidArgument, "an NCCL group needs at least one device");
  std::unique_ptr<NcclGroup> group(new NcclGroup(std::move(library), options));
  try {
    // Created before the communicators, which could not be ended without these threads.
    group->enders_.emplace(devices.size());
    std::vector<Comm> comms(devices.size());
    // From one thread, all at once: rank by rank from several threads could deadlock.
    const int code = group->library_->comm_init_all(comms.data(), static_cast<int>(devices.size()),
                                                    devices.data());
    CENTROID_TRY(group->library_->status_of(code, "ncclCommInitAll"));
    group->ranks_.resize(comms.size());
    for (std::size_t rank = 0; rank < comms.size(); ++rank) group->ranks_[rank].comm = comms[rank];
    group->watcher_ =
        std::jthread([self = group.get()](const std::stop_token& stop) { self->watch(stop); });
  } catch (const std::system_error& failure) {
    if (!group->ranks_.empty())
      group->on_all([&](Comm comm) { return group->library_->comm_destroy(comm); });
    return Error(ErrorCode::kResourceExhausted,
                 "no threads for " + std::to_string(devices.size()) +
                     " devices that add with NCCL, one each and one that watches: " +
                     failure.what() + " (see ulimit -u and the limits of the container)");
  }
  return group;
}

NcclGroup::~NcclGroup() {
  if (!watcher_.joinable()) return;  // construction failed
  const bool is_settled = settle().ok();
  watcher_.request_stop();
  watcher_.join();
  if (!is_settled) return;  // the abort freed the communicators
  on_all([this](Comm comm) { return library_->comm_destroy(comm); });
}

std::optional<Error> NcclGroup::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclGroup::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = Error(ErrorCode::kAborted, "the GPUs' addition was aborted: " + why);
  log::error("nccl.aborted", {{"why", why}, {"devices", ranks_.size()}});
  changed_.notify_all();
}

void NcclGroup::abort(const std::string& why) {
  fail(why);
  (void)ended();
}

/// Wait until the abort is complete. Returns why the group failed.
Status NcclGroup::ended() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_released_; });
  return *failure_;
}

Status NcclGroup::settle() {
  if (failure()) return ended();
  std::string pending;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (!ranks_[rank].pending.empty() && pending.empty())
        pending = ranks_[rank].pending.front().what + " of device " + std::to_string(rank) +
                  " was under way";
  }
  if (pending.empty()) return {};
  fail(pending);
  return ended();
}

Status NcclGroup::call(std::size_t rank, const std::string& what,
                       const std::function<int(Comm)>& body) {
  CENTROID_CHECK(rank < ranks_.size());
  Comm comm = nullptr;
  {
    // Recorded under the lock, so that a later abort knows of the call and ends it.
    std::unique_lock lock(mutex_);
    if (failure_) {
      lock.unlock();
      return ended();
    }
    Rank& mine = ranks_[rank];
    mine.pending.push_back({.number = ++mine.calls, .what = what, .begun = Clock::now()});
    mine.is_calling = true;
    comm = mine.comm;
  }
  int code = library_->group_start();
  if (code == nccl::kSuccess) {
    code = body(comm);
    const int ended = library_->group_end();  // also after an error: groups nest
    if (code == nccl::kSuccess) code = ended;
  }
  {
    const std::lock_guard lock(mutex_);
    ranks_[rank].is_calling = false;
    changed_.notify_all();
  }
  if (failure()) return ended();
  const Status status = library_->status_of(code, what);
  if (status.ok()) return status;
  fail("device " + std::to_string(rank) + ": " + status.error().message());
  return ended();
}

Status NcclGroup::scaled(std::size_t rank, const std::string& what, double weight, double total,
                         const std::function<int(Comm, int)>& body) {
  if (!(weight >= 0 && total > 0 && weight <= total && std::isfinite(total)))
    return Error(ErrorCode::kInvalidArgument, what + ": weight " + std::to_string(weight) + " of " +
                                                  std::to_string(total) + " is no part of it");
  auto factor = static_cast<float>(weight / total);
  return call(rank, what, [&](Comm comm) {
    int op = 0;
    int code =
        library_->op_create_scaled_sum(&op, &factor, nccl::kFloat32, nccl::kScalarOnHost, comm);
    if (code != nccl::kSuccess) return code;
    code = body(comm, op);
    const int freed = library_->op_destroy(op, comm);
    return code == nccl::kSuccess ? freed : code;
  });
}

Status NcclGroup::all_reduce(std::size_t rank, std::span<const std::span<float>> tensors,
                             double weight, double total, void* stream) {
  return scaled(rank, "ncclAllReduce", weight, total, [&](Comm comm, int op) {
    int code = nccl::kSuccess;
    for (const std::span<float> x : tensors)
      if (code == nccl::kSuccess)
        code = library_->all_reduce(x.data(), x.data(), x.size(), nccl::kFloat32, op, comm, stream);
    return code;
  });
}

Status NcclGroup::reduce_scatter(std::size_t rank, std::span<const float> from,
                                 std::span<float> into, double weight, double total, void* stream) {
  CENTROID_TRY(check_parts("reduce-scatter", from.size(), into.size(), size()));
  return scaled(rank, "ncclReduceScatter", weight, total, [&](Comm comm, int op) {
    return library_->reduce_scatter(from.data(), into.data(), into.size(), nccl::kFloat32, op, comm,
                                    stream);
  });
}

Status NcclGroup::all_gather(std::size_t rank, std::span<const float> from, std::span<float> into,
                             void* stream) {
  CENTROID_TRY(check_parts("all-gather", into.size(), from.size(), size()));
  return call(rank, "ncclAllGather", [&](Comm comm) {
    return library_->all_gather(from.data(), into.data(), from.size(), nccl::kFloat32, comm,
                                stream);
  });
}

Status NcclGroup::broadcast(std::size_t rank, std::span<const std::span<float>> tensors,
                            std::size_t root, void* stream) {
  if (root >= size())
    return Error(ErrorCode::kInvalidArgument,
                 "broadcast from device " + std::to_string(root) + " of " + std::to_string(size()));
  return call(rank, "ncclBroadcast", [&](Comm comm) {
    int code = nccl::kSuccess;
    for (const std::span<float> x : tensors)
      if (code == nccl::kSuccess)
        code = library_->broadcast(x.data(), x.data(), x.size(), nccl::kFloat32,
                                   static_cast<int>(root), comm, stream);
    return code;
  });
}

std::uint64_t NcclGroup::calls(std::size_t rank) const {
  const std::lock_guard lock(mutex_);
  return ranks_.at(rank).calls;
}

void NcclGroup::over(std::size_t rank, std::uint64_t calls) {
  const std::lock_guard lock(mutex_);
  auto& pending = ranks_.at(rank).pending;
  while (!pending.empty() && pending.front().number <= calls) pending.pop_front();
}

Status NcclGroup::wait(std::size_t rank, const std::function<Result<bool>()>& is_done,
                       std::optional<std::uint64_t> upto) {
  const std::uint64_t last = upto ? *upto : calls(rank);
  for (;;) {
    if (failure()) return ended();
    const auto done = is_done();
    if (!done.ok()) {
      fail("device " + std::to_string(rank) + ": " + done.error().message());
      return ended();
    }
    if (*done) {
      over(rank, last);
      return {};
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::min<Clock::duration>(options_.poll, kCheckInterval));
  }
}

/// Reason to abort the group; empty: none.
std::string NcclGroup::find_trouble() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    int code = nccl::kSuccess;
    const int asked = library_->comm_get_async_error(ranks_[rank].comm, &code);
    const Status status = library_->status_of(asked != nccl::kSuccess ? asked : code,
                                              "device " + std::to_string(rank));
    if (!status.ok()) return status.error().message();
  }
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  std::uint64_t most = 0;
  for (const Rank& rank : ranks_) most = std::max(most, rank.calls);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& one = ranks_[rank];
    if (one.pending.empty() || now - one.pending.front().begun < options_.timeout) continue;
    std::string missing;
    for (std::size_t other = 0; other < ranks_.size(); ++other)
      if (ranks_[other].calls < most)
        missing += (missing.empty() ? "" : ", ") + std::to_string(other);
    return one.pending.front().what + " of device " + std::to_string(rank) +
           " has not ended within " + std::to_string(options_.timeout.count()) + " ms" +
           (missing.empty() ? "" : "; not started by device " + missing);
  }
  return {};
}

/// Ends each communicator from its own thread, created with the group: in several releases of NCCL
/// (2.17 among them) ncclCommDestroy and ncclCommAbort of one rank wait for those of the other
/// ranks of the process.
void NcclGroup::on_all(const std::function<int(Comm)>& end) {
  enders_->run([&](std::size_t rank) { (void)end(ranks_[rank].comm); });
}

void NcclGroup::abort_all() {
  constexpr std::chrono::milliseconds kGrace{100};
  {
    const auto is_calling = [](const Rank& rank) { return rank.is_calling; };
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kGrace, [&] { return std::ranges::none_of(ranks_, is_calling); });
  }
  on_all([this](Comm comm) { return library_->comm_abort(comm); });
  const std::lock_guard lock(mutex_);
  is_released_ = true;
  changed_.notify_all();
}

/// The only thread that polls or ends communicators while other threads may use them.
void NcclGroup::watch(const std::stop_token& stop) {
  for (;;) {
    if (const std::string trouble = failure() ? "" : find_trouble(); !trouble.empty())
      fail(trouble);
    if (failure()) return abort_all();
    if (stop.stop_requested()) return;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, options_.poll, [this] { return failure_.has_value(); });
  }
}

}  // namespace centroid::worker
