// Two bars of the parameter server. Bulk: 32 tensors of 4 MiB are pushed, summed and come back,
// against plain sockets that move the same bytes. Small: a push of 64 bytes to a table of sparse
// rows and its answer, against blocking sockets that send 64 bytes there and back. Contenders take
// turns.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "client/rows_client.h"
#include "tests/bench/bench_run.h"
#include "tests/bench/raw_star.h"
#include "tests/bench/star_cluster.h"
#include "tests/bench/verdict.h"

namespace centroid::bench {
namespace {

constexpr std::uint64_t kTensors = 32, kTensorBytes = 4u << 20;
constexpr std::uint32_t kRoundsPerBlock = 4;
constexpr double kBulkBar = 0.8, kTripBar = 1.5;

struct Options {
  std::uint64_t rounds = 24, trips = 2000, turns = 7;
  std::string optimizer = "mean";
  bool bulk = true, small = true, check = false;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// ---- bulk

/// How many bars were missed.
int bench_bulk(const Options& options) {
  struct Row {
    std::size_t workers;
    Contender contender;
    std::vector<double> seconds;
  };
  std::vector<Row> rows;
  for (const std::size_t workers : {std::size_t{1}, std::size_t{4}}) {
    const std::uint64_t bytes = kTensors * kTensorBytes;
    rows.push_back(
        {workers, make_raw_star(workers, workers * bytes, bytes, RawBuffers::kMemory), {}});
    ClusterSettings settings;
    settings.workers = workers;
    settings.tensors = kTensors;
    settings.parameters = bytes / sizeof(float);
    settings.optimizer = options.optimizer;
    rows.push_back({workers, make_star_cluster(settings), {}});
  }
  for (std::uint64_t done = 0; done < options.rounds; done += kRoundsPerBlock)
    for (Row& row : rows) {
      const BlockTimes times = row.contender.run(kRoundsPerBlock);
      if (done > 0) row.seconds.insert(row.seconds.end(), times.rounds.begin(), times.rounds.end());
    }
  std::printf("%llu tensors of %llu MiB there, summed, and back; %s\n",
              static_cast<unsigned long long>(kTensors),
              static_cast<unsigned long long>(kTensorBytes >> 20), options.optimizer.c_str());
  std::printf("%-10s %-36s %10s %10s %14s %12s\n", "workers", "", "median ms", "least ms",
              "GB/s each way", "of the raw");
  std::vector<double> rates, shares;
  double raw = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const double median = quantile(row.seconds, 0.5);
    const double rate = static_cast<double>(row.workers * kTensors * kTensorBytes) / median / 1e9;
    const bool is_raw = i % 2 == 0;
    if (is_raw) raw = rate;
    std::printf("%-10zu %-36s %10.1f %10.1f %14.2f", row.workers, row.contender.name().c_str(),
                1e3 * median, 1e3 * quantile(row.seconds, 0), rate);
    if (!is_raw) std::printf(" %12.2f", rate / raw);
    std::printf("\n");
    if (is_raw) continue;
    rates.push_back(rate);
    shares.push_back(rate / raw);
  }
  return verdict("1 worker", shares[0], Bar::kAtLeast, kBulkBar, "of the raw rate") +
         verdict("4 workers, as many as 1", rates[1], Bar::kAtLeast, rates[0], "GB/s");
}

// ---- small

/// The calling thread, and what it starts, stay on one core.
void stay_on(unsigned core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core % std::max(1u, std::thread::hardware_concurrency()), &one);
  (void)::sched_setaffinity(0, sizeof one, &one);
}

/// A blocking socket to a process that sends back what it gets.
class Echo {
 public:
  Echo() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener, plain, size) != 0 || ::listen(listener, 1) != 0 ||
        ::getsockname(listener, plain, &size) != 0)
      fail("cannot listen on loopback");
    far_ = Child::forked([&] {
      const int fd = ::accept(listener, nullptr, nullptr);
      no_delay(fd);
      char bytes[64];
      while (::recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes)
        if (::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes) break;
    });
    near_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(near_, plain, size) != 0) fail("cannot connect on loopback");
    no_delay(near_);
    ::close(listener);
  }
  ~Echo() { ::close(near_); }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  void trip() const {
    char bytes[64] = {};
    if (::send(near_, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes ||
        ::recv(near_, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes)
      fail("the other side has gone");
  }

 private:
  static void no_delay(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  int near_ = -1;
  Child far_;
};

/// How many bars were missed.
int bench_small(const Options& options) {
  const Folder folder;
  stay_on(1);  // the server and the echo; this process comes back
  const ServerProcess server =
      start_server(folder.path(), {"--log.level", "warn", "--tables", "bench:dim=14"});
  const Echo echo;
  stay_on(0);
  client::RowsClientOptions to;
  to.servers = server.data.to_string();
  const auto client = client::RowsClient::open(to, "bench");
  if (!client.ok()) fail(client.error().to_string());
  const std::vector<std::uint64_t> keys{7};
  const std::vector<float> gradient(14, 1e-3f);  // with the key: 64 bytes
  std::vector<double> bare, pushed;
  for (std::uint64_t turn = 0; turn <= options.turns; ++turn)
    for (std::uint64_t trip = 0; trip < 2 * options.trips; ++trip) {
      const bool is_bare = trip < options.trips;
      const auto begin = std::chrono::steady_clock::now();
      if (is_bare)
        echo.trip();
      else if (const Status status = (*client)->push(keys, gradient); !status.ok())
        fail(status.error().to_string());
      if (turn > 0) (is_bare ? bare : pushed).push_back(1e6 * seconds_since(begin));
    }
  const double ratio = quantile(pushed, 0.5) / quantile(bare, 0.5);
  std::printf("\n64 bytes there and an answer back, two processes on cores of their own, us\n");
  std::printf("%-30s %8s %8s %8s\n", "", "median", "p10", "p99");
  for (const auto& [name, values] :
       {std::pair{"blocking sockets", bare}, std::pair{"a push of one row of dim 14", pushed}})
    std::printf("%-30s %8.1f %8.1f %8.1f\n", name, quantile(values, 0.5), quantile(values, 0.1),
                quantile(values, 0.99));
  return verdict("a push of 64 bytes", ratio, Bar::kAtMost, kTripBar, "times the socket");
}

int run(const Options& options) {
  int missed = 0;
  if (options.bulk) missed += bench_bulk(options);
  if (options.small) missed += bench_small(options);
  return options.check && missed > 0 ? 1 : 0;
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("rounds", &options.rounds,
               {.text = "rounds of each bulk contender, in blocks of 4; the first is dropped",
                .unit = "rounds",
                .min = 8});
  schema.field("optimizer", &options.optimizer, {.text = "of the server, with bulk"});
  schema.field("trips", &options.trips, {.text = "round trips of a turn", .min = 10});
  schema.field("turns", &options.turns, {.text = "turns of each, with small", .min = 1});
  schema.field("bulk", &options.bulk, {.text = "measure bulk"});
  schema.field("small", &options.small, {.text = "measure small messages"});
  schema.field("check", &options.check, {.text = "exit status 1 when a bar is missed"});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(argc, argv, "centroid-bench-push",
                             "Pushes against plain sockets: bulk, and 64 bytes.", add_fields, run);
}
