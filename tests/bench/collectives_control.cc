#include "tests/bench/collectives_control.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace centroid::bench {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(3);
}

bool put(int fd, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t n = ::send(fd, from, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    from += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}
bool get(int fd, void* data, std::size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes != 0) {
    const ssize_t n = ::read(fd, to, bytes);
    if (n <= 0) return false;
    to += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) die(path + " is too long for a socket");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

std::uint64_t memory_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1));
  return 0;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

float number_of(std::uint64_t at) { return static_cast<float>((at + 1) % 17); }

void verify(Contestant& contestant, const Place& place, float* data, std::uint64_t count,
            const std::string& name) {
  for (std::uint64_t k = 0; k < count; ++k)
    data[k] = number_of(k) * static_cast<float>(place.rank + 1);
  contestant.reduce(data, count);
  const auto sum = static_cast<float>(place.world * (place.world + 1) / 2);
  for (std::uint64_t k = 0; contestant.adds() && k < count; ++k)
    if (data[k] != number_of(k) * sum) die(name + ": wrong sum");
  std::memset(data, 0, count * 4);
}

}  // namespace

void serve_rank(const RankOptions& options, const Entry& entry) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(options.socket);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    die(entry.name + ": no driver");
  Place place = options.place;
  const auto send = [fd](const Message& message) {
    if (!put(fd, &message, sizeof message)) std::_Exit(0);
  };
  Message hello;
  hello.value = place.rank;
  send(hello);
  place.exchange = [&](std::uint32_t value) {
    Message message;
    message.kind = Message::kExchange;
    message.value = value;
    send(message);
    std::vector<std::uint32_t> all(place.world);
    if (!get(fd, all.data(), 4 * all.size())) std::_Exit(0);
    return all;
  };
  auto* const data =
      static_cast<float*>(std::aligned_alloc(4096, (options.bytes + 4095) / 4096 * 4096));
  std::memset(data, 0, options.bytes);
  const std::uint64_t before_kib = memory_kib("VmRSS");
  auto contestant = entry.make(place);
  Message ready;
  ready.kind = Message::kReport;
  send(ready);
  std::vector<double> samples;
  for (Message order; get(fd, &order, sizeof order) && order.kind != Message::kStop;) {
    const std::uint64_t count = order.bytes / 4;
    Message report;
    report.kind = Message::kReport;
    samples.clear();
    if (order.kind == Message::kVerify) {
      verify(*contestant, place, data, count, entry.name);
    } else {
      const double cpu_before = cpu_seconds();
      for (std::uint64_t k = 0; k < order.repeats; ++k) {
        const auto begin = Clock::now();
        contestant->reduce(data, count);
        samples.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
      report.cpu_seconds = cpu_seconds() - cpu_before;
    }
    report.extra_kib = memory_kib("VmHWM") - std::min(before_kib, memory_kib("VmHWM"));
    if (place.rank == 0) report.samples = samples.size();
    send(report);
    if (report.samples != 0) put(fd, samples.data(), 8 * samples.size());
  }
  contestant.reset();
  std::_Exit(0);
}

std::unique_ptr<Team> Team::start(const std::string& name, std::uint32_t world,
                                  const std::string& socket,
                                  const std::function<std::vector<pid_t>()>& launch) {
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(socket);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener, static_cast<int>(world)) != 0)
    die("cannot listen at " + socket);
  std::unique_ptr<Team> team(new Team(name));
  team->processes_ = launch();
  team->ranks_.assign(world, -1);
  const auto until = Clock::now() + std::chrono::seconds(30);
  bool is_up = true;
  for (std::uint32_t connected = 0; connected < world && is_up;) {
    pollfd wait{listener, POLLIN, 0};
    if (::poll(&wait, 1, 100) == 1) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      Message hello;
      is_up = fd >= 0 && get(fd, &hello, sizeof hello) && hello.value < world;
      if (is_up) team->ranks_[hello.value] = fd;
      ++connected;
      continue;
    }
    siginfo_t info{};
    for (const pid_t process : team->processes_)
      if (::waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == process)
        is_up = false;
    is_up = is_up && Clock::now() < until;
  }
  ::close(listener);
  ::unlink(socket.c_str());
  if (is_up) {
    team->reports();
    return team;
  }
  std::fprintf(stderr, "%s does not start here and is left out\n", name.c_str());
  return nullptr;
}

Team::~Team() {
  Message stop;
  stop.kind = Message::kStop;
  for (const int fd : ranks_) {
    if (fd < 0) continue;
    put(fd, &stop, sizeof stop);
    ::shutdown(fd, SHUT_WR);
  }
  const auto until = Clock::now() + std::chrono::seconds(10);
  for (const pid_t process : processes_) {
    while (::waitpid(process, nullptr, WNOHANG) == 0) {
      if (Clock::now() > until) ::kill(process, SIGKILL);
      ::poll(nullptr, 0, 5);
    }
  }
  for (const int fd : ranks_)
    if (fd >= 0) ::close(fd);
}

void Team::order(Message::Kind kind, std::uint64_t bytes, std::uint64_t repeats) {
  Message message;
  message.kind = kind;
  message.bytes = bytes;
  message.repeats = repeats;
  for (const int fd : ranks_)
    if (!put(fd, &message, sizeof message)) die(name_ + ": a rank is gone");
}

Team::Sample Team::reports() {
  Sample out;
  std::vector<Message> all(ranks_.size());
  while (true) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Message& message = all[rank];
      bool is_here = get(ranks_[rank], &message, sizeof message);
      if (is_here && message.samples != 0) {
        out.seconds.resize(message.samples);
        is_here = get(ranks_[rank], out.seconds.data(), 8 * message.samples);
      }
      if (!is_here) die(name_ + ": a rank is gone");
    }
    if (all[0].kind == Message::kReport) break;
    std::vector<std::uint32_t> values;  // an exchange
    for (const Message& message : all) values.push_back(message.value);
    for (const int fd : ranks_) put(fd, values.data(), 4 * values.size());
  }
  for (const Message& message : all) {
    out.cpu_seconds += message.cpu_seconds;
    out.extra_kib = std::max(out.extra_kib, message.extra_kib);
  }
  return out;
}

void Team::verify(std::uint64_t bytes) {
  order(Message::kVerify, bytes, 1);
  reports();
}

Team::Sample Team::run(std::uint64_t bytes, std::uint64_t repeats) {
  order(Message::kRun, bytes, repeats);
  Sample sample = reports();
  sample.cpu_seconds /= static_cast<double>(repeats);
  return sample;
}

}  // namespace centroid::bench
