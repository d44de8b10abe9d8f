#include "tests/bench/star_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <new>
#include <sstream>
#include <thread>
#include <utility>

namespace centroid::bench {

namespace {

constexpr double kRestSeconds = 0.0005;  // of processor time in 5 ms: the server has nothing to do
constexpr auto kRestPause = std::chrono::milliseconds(5);
constexpr std::int64_t kBlockTimeoutNs = 300'000'000'000;

}  // namespace

void fail(const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", ::program_invocation_short_name, why.c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

void enter_namespace(const std::string& name) {
  const int fd = ::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) fail("cannot enter the namespace " + name);
  ::close(fd);
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Child Child::forked(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail("cannot fork");
  if (pid > 0) return Child(pid);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  body();
  std::fflush(nullptr);
  ::_exit(0);
}

Child Child::executed(const std::vector<std::string>& command,
                      const std::string& network_namespace) {
  return forked([&] {
    if (!network_namespace.empty()) enter_namespace(network_namespace);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    fail("cannot run " + command[0]);
  });
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Child::stop() {
  ::kill(pid_, SIGTERM);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

bool Child::is_alive() const { return pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0; }

double Child::cpu_seconds() const {
  clockid_t clock;
  timespec time{};
  if (::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &time) != 0)
    fail("a process has gone");
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Child::rested_cpu_seconds() const {
  double spent = cpu_seconds();
  for (double seen = 0; spent - seen > kRestSeconds; spent = cpu_seconds()) {
    seen = spent;
    std::this_thread::sleep_for(kRestPause);  // lint-ok: no test
  }
  return spent;
}

CpuTimes Child::cpu_times() const {
  std::ifstream in("/proc/" + std::to_string(pid_) + "/stat");
  std::string text;
  std::getline(in, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;  // state is field 3 of proc(5), utime 14
  std::uint64_t user = 0, system = 0;
  if (!(fields >> user >> system)) fail("a process has gone");
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return {static_cast<double>(user) / ticks, static_cast<double>(system) / ticks};
}

std::uint64_t Child::status_bytes(const char* field) const {
  std::ifstream in("/proc/" + std::to_string(pid_) + "/status");
  const std::string wanted = std::string(field) + ":";
  for (std::string line; std::getline(in, line);)
    if (line.compare(0, wanted.size(), wanted) == 0)
      return std::strtoull(line.c_str() + wanted.size(), nullptr, 10) * 1024;
  fail(wanted + " is unknown");
}

Board* Board::make() {
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no shared memory");
  auto* const board = new (memory) Board();
  for (sem_t& go : board->go) ::sem_init(&go, 1, 0);
  ::sem_init(&board->done, 1, 0);
  return board;
}

void Board::take_part(std::size_t member, const std::function<void()>& round,
                      const std::function<std::uint64_t()>& hash) {
  for (;;) {
    while (::sem_wait(&go[member]) != 0) {
    }
    const std::uint32_t count = rounds;
    if (count == kHash) {
      fingerprint[member] = hash();
      ::sem_post(&done);
      continue;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      round();
      finished_ns[member][i] = now_ns();
    }
    ::sem_post(&done);
  }
}

void Contender::post(std::uint32_t rounds) {
  board_->rounds = rounds;
  for (std::size_t m = 0; m < members_.size(); ++m) ::sem_post(&board_->go[m]);
  const std::int64_t begin = now_ns();
  for (std::size_t done = 0; done < members_.size();) {
    timespec soon{};
    ::clock_gettime(CLOCK_REALTIME, &soon);
    ++soon.tv_sec;
    if (::sem_timedwait(&board_->done, &soon) == 0) {
      ++done;
    } else if (now_ns() - begin > kBlockTimeoutNs) {
      fail(name_ + ": a block does not end");
    } else if (!server_.is_alive() || !std::all_of(members_.begin(), members_.end(),
                                                   [](auto& m) { return m.is_alive(); })) {
      fail(name_ + ": a process has ended");
    }
  }
}

double Contender::members_cpu() const {
  double sum = 0;
  for (const Child& member : members_) sum += member.cpu_seconds();
  return sum;
}

BlockTimes Contender::run(std::uint32_t rounds) {
  BlockTimes times;
  const double cpu = server_.cpu_seconds(), others = members_cpu();
  std::vector<std::uint64_t> sent(board_->sent_bytes, board_->sent_bytes + members_.size());
  std::int64_t before = now_ns();
  post(rounds);
  for (std::uint32_t i = 0; i < rounds; ++i) {
    std::int64_t last = 0;
    for (std::size_t m = 0; m < members_.size(); ++m)
      last = std::max(last, board_->finished_ns[m][i].load());
    times.rounds.push_back(1e-9 * static_cast<double>(last - std::exchange(before, last)));
  }
  // Work that a server does after it has answered belongs to the round too.
  times.server_cpu = server_.rested_cpu_seconds() - cpu;
  times.members_cpu = members_cpu() - others;
  for (std::size_t m = 0; m < members_.size(); ++m)
    times.most_sent_bytes = std::max(times.most_sent_bytes, board_->sent_bytes[m] - sent[m]);
  return times;
}

bool Contender::members_are_equal() {
  post(Board::kHash);
  for (std::size_t m = 1; m < members_.size(); ++m)
    if (board_->fingerprint[m] != board_->fingerprint[0]) return false;
  return true;
}

}  // namespace centroid::bench
