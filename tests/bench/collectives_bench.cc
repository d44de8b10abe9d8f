// All-reduce of float32 sums between processes over TCP: this project's, a bare two-way socket
// program that moves the same bytes ("limit"), and Gloo and Open MPI where they are installed. All
// contestants live at the same time, one process per rank, and take turns; results are verified.
//
// As root the program moves into a network namespace of its own, where every socket has the same
// congestion control. Elsewhere all use the system's.

#include "tests/bench/collectives_bench.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/bench/collectives_control.h"
#include "tests/bench/collectives_report.h"

namespace centroid::bench {
namespace {

constexpr const char* kCongestionFile = "/proc/sys/net/ipv4/tcp_congestion_control";

struct Settings {
  std::vector<std::uint32_t> worlds = {2, 4};
  std::vector<std::uint64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20};
  std::string congestion_control = "reno", format = "table";
  std::vector<std::string> only, namespaces, hosts;
  std::uint32_t rounds = 5, spin_us = 0;
  double seconds = 0.15;  ///< per contestant, size and round
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(3);
}

/// One congestion control for everybody, also for those that cannot choose it.
void settle_congestion_control(Settings& settings) {
  if (!settings.namespaces.empty()) return;  // whoever made them has chosen
  if (::geteuid() == 0 && ::unshare(CLONE_NEWNET) == 0) {
    ifreq request{};
    std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
    if (::ioctl(fd, SIOCSIFFLAGS, &request) != 0) die("cannot bring the loopback up");
    ::close(fd);
    std::ofstream(kCongestionFile) << settings.congestion_control;
  }
  std::string system;
  std::ifstream(kCongestionFile) >> system;
  if (system != settings.congestion_control)
    std::fprintf(stderr, "congestion control: the system's, %s\n", system.c_str());
  settings.congestion_control = system;
}

void enter_namespace(const std::string& name) {
  const int fd = ::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) die("cannot enter the namespace " + name);
  ::close(fd);
}

std::vector<pid_t> fork_ranks(const Settings& settings, const RankOptions& options,
                              const Entry& entry) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (std::uint32_t rank = 0; rank < options.place.world; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) die("fork failed");
    if (child == 0) {
      if (!settings.namespaces.empty()) enter_namespace(settings.namespaces[rank]);
      RankOptions mine = options;
      mine.place.rank = rank;
      serve_rank(mine, entry);
    }
    children.push_back(child);
  }
  return children;
}

#if defined(CENTROID_BENCH_MPI)
/// Open MPI's processes can only be started by itself.
std::vector<pid_t> run_mpi(const std::string& name, const RankOptions& options) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) die("fork failed");
  if (child != 0) return {child};
  const std::string program =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / CENTROID_BENCH_MPI).string();
  const std::string ranks = std::to_string(options.place.world);
  const std::string bytes = std::to_string(options.bytes);
  std::vector<const char*> arguments = {"mpirun",
                                        "--allow-run-as-root",
                                        "--oversubscribe",
                                        "-np",
                                        ranks.c_str(),
                                        "--bind-to",
                                        "none",
                                        "--mca",
                                        "oob_tcp_if_include",
                                        "lo"};
  if (name == "openmpi_tcp") {
    for (const char* one : {"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"})
      arguments.push_back(one);
  }
  for (const std::string* one : {&program, &name, &options.socket, &bytes})
    arguments.push_back(one->c_str());
  arguments.push_back(nullptr);
  ::execvp("mpirun", const_cast<char* const*>(arguments.data()));
  std::_Exit(3);
}
#endif

struct Launch {
  std::string name;
  std::uint64_t most_bytes;
  std::function<std::vector<pid_t>(const RankOptions&)> start;
};

std::vector<Launch> contestants(const Settings& settings) {
  std::vector<Entry> entries = limit_entries();
  for (Entry& entry : centroid_entries()) entries.push_back(std::move(entry));
#if defined(CENTROID_BENCH_GLOO)
  for (Entry& entry : gloo_entries()) entries.push_back(std::move(entry));
#endif
  std::vector<Launch> out;
  for (const Entry& entry : entries) {
    if (entry.is_asked_for && settings.only.empty()) continue;
    out.push_back({entry.name, entry.most_bytes, [&settings, entry](const RankOptions& options) {
                     return fork_ranks(settings, options, entry);
                   }});
  }
#if defined(CENTROID_BENCH_MPI)
  for (const std::string name : {"openmpi_tcp", "openmpi_shm"}) {
    if (!settings.namespaces.empty()) break;  // mpirun starts all ranks in one
    out.push_back({name, ~std::uint64_t{0},
                   [name](const RankOptions& options) { return run_mpi(name, options); }});
  }
#endif
  // A name, or the beginning of several when no name is so.
  const auto is_wanted = [&](const Launch& launch) {
    for (const std::string& name : settings.only) {
      const bool is_name = std::any_of(out.begin(), out.end(),
                                       [&](const Launch& other) { return other.name == name; });
      if (is_name ? launch.name == name : launch.name.starts_with(name)) return true;
    }
    return settings.only.empty();
  };
  std::vector<Launch> wanted;
  std::copy_if(out.begin(), out.end(), std::back_inserter(wanted), is_wanted);
  return wanted;
}

/// All contestants at one size: each starts, is verified, and then they take turns.
std::vector<Row> run_size(const Settings& settings, std::uint32_t world, std::uint64_t bytes,
                          const std::filesystem::path& folder) {
  std::vector<std::unique_ptr<Team>> teams;
  for (const Launch& launch : contestants(settings)) {
    if (bytes > launch.most_bytes) continue;
    const std::filesystem::path home = folder / launch.name;
    std::filesystem::create_directories(home);
    RankOptions options;
    options.socket = folder / (launch.name + ".socket");
    options.bytes = bytes;
    options.place.world = world;
    options.place.hosts = settings.hosts;
    options.place.hosts.resize(world, "127.0.0.1");
    options.place.congestion_control = settings.congestion_control;
    options.place.folder = home;
    options.place.spin_us = settings.spin_us;
    auto team =
        Team::start(launch.name, world, options.socket, [&] { return launch.start(options); });
    if (team) teams.push_back(std::move(team));
  }
  std::vector<Row> rows;
  std::vector<std::uint64_t> repeats;
  for (const auto& team : teams) {
    team->verify(bytes);
    const Team::Sample probe = team->run(bytes, 3);
    const double once = *std::min_element(probe.seconds.begin(), probe.seconds.end());
    repeats.push_back(static_cast<std::uint64_t>(
        std::clamp(settings.seconds / std::max(once, 1e-6), 3.0, 3000.0)));
    Row row;
    row.name = team->name();
    row.world = world;
    row.bytes = bytes;
    rows.push_back(row);
  }
  for (std::uint32_t round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < teams.size(); ++i) {
      (void)teams[i]->run(bytes, 2);  // its buffers come back into the cache
      const Team::Sample sample = teams[i]->run(bytes, repeats[i]);
      rows[i].medians.push_back(quantile(sample.seconds, 0.5));
      rows[i].cpu.push_back(sample.cpu_seconds);
      rows[i].all.insert(rows[i].all.end(), sample.seconds.begin(), sample.seconds.end());
      rows[i].extra_kib = sample.extra_kib;
    }
  }
  for (const auto& team : teams) team->verify(bytes);
  return rows;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one, ',');) out.push_back(one);
  return out;
}
template <class T>
std::vector<T> numbers(const std::string& text) {
  std::vector<T> out;
  for (const std::string& one : words(text)) out.push_back(static_cast<T>(std::stoull(one)));
  return out;
}

int run(Settings settings) {
  settle_congestion_control(settings);
  std::string folder = std::filesystem::temp_directory_path() / "centroid-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) die("mkdtemp failed: " + folder);
  std::vector<Row> rows;
  for (const std::uint32_t world : settings.worlds) {
    if (!settings.namespaces.empty() && settings.namespaces.size() < world)
      die("fewer namespaces than ranks");
    for (const std::uint64_t bytes : settings.sizes) {
      const auto home = std::filesystem::path(folder) / std::to_string(rows.size());
      std::filesystem::create_directories(home);
      const auto more = run_size(settings, world, bytes, home);
      rows.insert(rows.end(), more.begin(), more.end());
    }
  }
  std::filesystem::remove_all(folder);
  print(settings.format, rows);
  return 0;
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using centroid::bench::numbers, centroid::bench::words;
  centroid::bench::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--ranks")
      settings.worlds = numbers<std::uint32_t>(value);
    else if (flag == "--sizes")
      settings.sizes = numbers<std::uint64_t>(value);
    else if (flag == "--rounds")
      settings.rounds = static_cast<std::uint32_t>(std::stoul(value));
    else if (flag == "--seconds")
      settings.seconds = std::stod(value);
    else if (flag == "--spin-us")
      settings.spin_us = static_cast<std::uint32_t>(std::stoul(value));
    else if (flag == "--congestion-control")
      settings.congestion_control = value;
    else if (flag == "--only")
      settings.only = words(value);
    else if (flag == "--namespaces")
      settings.namespaces = words(value);
    else if (flag == "--hosts")
      settings.hosts = words(value);
    else if (flag == "--format")
      settings.format = value;
    else
      argc = 0;
  }
  if (argc % 2 == 0) {
    std::fprintf(
        stderr,
        "usage: %s [--ranks 2,4] [--sizes BYTES,...] [--rounds N] [--seconds S] "
        "[--spin-us N] [--congestion-control NAME] [--only NAME,... (also algorithm, connections)] "
        "[--namespaces NAME,... --hosts ADDRESS,...] [--format table|csv|json]\n",
        argv[0]);
    return 2;
  }
  return centroid::bench::run(settings);
}
