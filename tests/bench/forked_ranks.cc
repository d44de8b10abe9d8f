#include "tests/bench/forked_ranks.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/support/certificates.h"
#include "transport/collective/mesh.h"

namespace centroid::bench {
namespace {

/// What ranks need to find each other.
struct Meeting {
  pthread_barrier_t barrier;
  std::uint16_t ports[256];
};

Result<collective::Group> meet(Meeting& meeting, std::uint32_t rank, std::uint32_t world, Path path,
                               std::unique_ptr<collective::Mesh>& mesh) {
  collective::MeshOptions options;
  options.shared_memory = path == Path::kSharedMemory;
  transport::Endpoint endpoint;
  endpoint.host = "127.0.0.1";
  transport::TransportOptions wire;
  if (path == Path::kTls) wire.layer = test::mutual_tls();
  CENTROID_ASSIGN(mesh, collective::Mesh::open(collective::tcp_factory(wire), endpoint, options));
  meeting.ports[rank] = mesh->endpoint().port;
  ::pthread_barrier_wait(&meeting.barrier);
  collective::Roster roster;
  roster.rank = rank;
  for (std::uint32_t i = 0; i < world; ++i) {
    endpoint.port = meeting.ports[i];
    roster.endpoints.push_back(endpoint);
    roster.nodes.emplace_back("here");
  }
  return mesh->join(roster);
}

Status run_rank(Meeting& meeting, std::uint32_t rank, std::uint32_t world, Path path,
                const std::function<Status(collective::Group&)>& body) {
  std::unique_ptr<collective::Mesh> mesh;
  CENTROID_ASSIGN(collective::Group group, meet(meeting, rank, world, path, mesh));
  return body(group);
}

}  // namespace

void fork_ranks(std::uint32_t world, Path path,
                const std::function<Status(collective::Group&)>& body) {
  Shared<Meeting> meeting(1);
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&meeting[0].barrier, &attributes, world);
  std::fflush(nullptr);
  if (path == Path::kTls) (void)test::mutual_tls();  // one authority for all
  std::vector<pid_t> ranks;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) {
      std::perror("fork");
      std::_Exit(3);
    }
    if (child == 0) {
      const Status ran = run_rank(meeting[0], rank, world, path, body);
      if (!ran.ok()) std::fprintf(stderr, "rank %u: %s\n", rank, ran.error().to_string().c_str());
      std::_Exit(ran.ok() ? 0 : 1);
    }
    ranks.push_back(child);
  }
  for (std::size_t ended = 0; ended < world; ++ended) {
    int status = 0;
    const pid_t child = ::wait(&status);
    ranks.erase(std::ranges::find(ranks, child));
    if (status == 0) continue;
    for (const pid_t other : ranks) ::kill(other, SIGKILL);
    std::fprintf(stderr, "a rank ended with status %d\n", status);
    std::_Exit(3);
  }
}

}  // namespace centroid::bench
