// One rank of Open MPI's all-reduce, started by centroid-bench-collectives through mpirun. Built
// only where Open MPI is installed; the product never needs it.
//
//   usage: centroid-bench-collectives-mpi NAME SOCKET BYTES

#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "tests/bench/collectives_control.h"

namespace centroid::bench {
namespace {

class OpenMpi final : public Contestant {
 public:
  OpenMpi() { MPI_Init(nullptr, nullptr); }
  ~OpenMpi() override { MPI_Finalize(); }
  void reduce(float* data, std::uint64_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
};

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* const world = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (argc != 4 || rank == nullptr || world == nullptr) {
    std::fprintf(stderr, "usage: mpirun -np N %s NAME SOCKET BYTES\n", argv[0]);
    return 2;
  }
  centroid::bench::RankOptions options;
  options.socket = argv[2];
  options.bytes = std::stoull(argv[3]);
  options.place.rank = static_cast<std::uint32_t>(std::stoul(rank));
  options.place.world = static_cast<std::uint32_t>(std::stoul(world));
  centroid::bench::serve_rank(options, {argv[1], [](const centroid::bench::Place&) {
                                          return std::make_unique<centroid::bench::OpenMpi>();
                                        }});
}
