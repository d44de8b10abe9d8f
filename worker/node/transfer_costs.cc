#include "worker/node/transfer_costs.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <memory>
#include <vector>

#include "transport/collective/collectives.h"
#include "transport/collective/mesh.h"
#include "worker/node/rank_threads.h"

namespace centroid::worker {

namespace {

constexpr std::size_t kRanks = 2, kElements = 4 << 20;  // of both ranks
constexpr int kRuns = 5;

double processor_seconds() {
  timespec spent{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

/// A rank's part of the measurement.
class TransferRank {
 public:
  Status open() {
    collective::MeshOptions options;
    options.shared_memory = false;
    options.thread_name = "measure";
    CENTROID_ASSIGN(mesh_, collective::Mesh::open(collective::tcp_factory(), {}, options));
    return {};
  }
  const collective::Mesh& mesh() const { return *mesh_; }

  /// Seconds of both ranks for a byte that one sends; of rank 0.
  Status measure(collective::Roster roster) {
    CENTROID_ASSIGN(const collective::Group group, mesh_->join(roster));
    std::vector<float> values(kElements, 1);
    const std::span<float> all(values);
    const std::size_t part = kElements / kRanks;
    const std::span<float> own = all.subspan(group.rank() * part, part);
    const auto gather = [&] { return collective::all_gather(group, own, all); };
    const auto reduce = [&] { return collective::reduce_scatter(group, all, own); };
    for (int run = 0; run < kRuns; ++run) {
      CENTROID_TRY(improve(group, gather, costs_.gather));
      CENTROID_TRY(improve(group, reduce, costs_.reduce));
    }
    return collective::barrier(group);
  }
  const TransferCosts& costs() const { return costs_; }

 private:
  template <class Operation>
  static Status improve(const collective::Group& group, const Operation& operation, double& best) {
    CENTROID_TRY(collective::barrier(group));
    const double begin = processor_seconds();
    CENTROID_TRY(operation());
    CENTROID_TRY(collective::barrier(group));
    constexpr double kSent = sizeof(float) * kElements;  // by both
    best = std::min(best, (processor_seconds() - begin) / kSent);
    return {};
  }

  std::unique_ptr<collective::Mesh> mesh_;
  TransferCosts costs_{std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::infinity()};
};

}  // namespace

Result<TransferCosts> measure_transfers() {
  std::array<TransferRank, kRanks> ranks;
  collective::Roster roster;
  for (TransferRank& rank : ranks) {
    CENTROID_TRY(rank.open());
    roster.endpoints.push_back(rank.mesh().endpoint());
  }
  std::array<Status, kRanks> ended;
  RankThreads(kRanks).run([&](std::size_t rank) {
    collective::Roster own = roster;
    own.rank = static_cast<std::uint32_t>(rank);
    ended[rank] = ranks[rank].measure(std::move(own));
  });
  for (Status& status : ended) CENTROID_TRY(std::move(status));
  return ranks[0].costs();
}

unsigned usable_cores() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const bool is_known = ::sched_getaffinity(0, sizeof usable, &usable) == 0;
  return is_known ? std::max(1u, static_cast<unsigned>(CPU_COUNT(&usable))) : 1u;
}

}  // namespace centroid::worker
