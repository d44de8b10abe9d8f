#include "worker/data/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace centroid::worker {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kPipeBytes = 1U << 16;

std::string reason(int number) { return std::generic_category().message(number); }

/// A child process and the pipe it writes to; killed and reaped at the end of its scope.
class Child {
 public:
  Child(pid_t pid, int output) : pid_(pid), output_(output) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::close(output_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  int output() const { return output_; }
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
  int output_;
};

struct SpawnSettings {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  SpawnSettings() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
};

int spawn(const std::vector<std::string>& arguments, int write_end, pid_t* pid) {
  SpawnSettings settings;
  posix_spawn_file_actions_addopen(&settings.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.files, write_end, STDOUT_FILENO);
  // Our threads block and handle signals; the child starts with the defaults.
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &all);
  posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> words = arguments;
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  std::string locale = "LC_ALL=C.UTF-8";
  char* environment[] = {path.data(), locale.data(), nullptr};
  return posix_spawnp(pid, argv[0], &settings.files, &settings.attributes, argv.data(),
                      environment);
}

/// Read until the writer closes the pipe.
Result<std::string> read_all(int fd, const std::string& name, std::size_t limit_bytes,
                             Clock::time_point deadline) {
  std::string out;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0)
      return Error(ErrorCode::kDeadlineExceeded, name + " did not finish in time");
    pollfd waiting{fd, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::min<long>(left.count(), 60'000)));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const std::size_t before = out.size();
    out.resize(before + kPipeBytes);
    const ssize_t got = ::read(fd, out.data() + before, kPipeBytes);
    out.resize(before + (got > 0 ? static_cast<std::size_t>(got) : 0));
    if (got == 0) return out;
    if (got < 0 && errno != EINTR)
      return Error(ErrorCode::kInternal, "reading the output of " + name + ": " + reason(errno));
    if (out.size() > limit_bytes)
      return Error(ErrorCode::kResourceExhausted,
                   name + " wrote more than " + std::to_string(limit_bytes) + " bytes");
  }
}

}  // namespace

Result<std::string> run_command(const std::vector<std::string>& arguments, std::size_t limit_bytes,
                                std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  if (arguments.empty()) return Error(ErrorCode::kInvalidArgument, "no program to run");
  const std::string& name = arguments.front();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Error(ErrorCode::kResourceExhausted, "no pipe to run " + name + ": " + reason(errno));
  pid_t pid = -1;
  const int failure = spawn(arguments, ends[1], &pid);
  ::close(ends[1]);
  Child child(failure == 0 ? pid : -1, ends[0]);
  if (failure != 0)
    return Error(failure == ENOENT ? ErrorCode::kNotFound : ErrorCode::kFailedPrecondition,
                 "cannot run " + name + ": " + reason(failure));
  CENTROID_ASSIGN(std::string out, read_all(child.output(), name, limit_bytes, deadline));
  const int status = child.wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return out;
  return Error(
      ErrorCode::kFailedPrecondition,
      name + (WIFEXITED(status) ? " ended with status " + std::to_string(WEXITSTATUS(status))
                                : " was ended by signal " + std::to_string(WTERMSIG(status))));
}

}  // namespace centroid::worker
