#pragma once

#include <semaphore.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace centroid::bench {

inline constexpr std::size_t kMaxMembers = 64;
inline constexpr std::size_t kMaxBlockRounds = 1024;

/// Processor seconds, as the system counts them: in steps of 10 ms.
struct CpuTimes {
  double user = 0, system = 0;
};

/// A child process that dies with this one.
///
/// thread  the parent must have one thread only while it makes children by `forked`
class Child {
 public:
  /// Run `body` in a fork of this process.
  static Child forked(const std::function<void()>& body);
  /// Run another program.
  static Child executed(const std::vector<std::string>& command,
                        const std::string& network_namespace = "");
  Child() = default;
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();

  double cpu_seconds() const;         ///< of all its threads, so far
  double rested_cpu_seconds() const;  ///< the same, once it has nothing to do
  CpuTimes cpu_times() const;
  std::uint64_t status_bytes(const char* field) const;  ///< "VmRSS", "VmHWM"
  bool is_alive() const;
  void stop();  ///< by SIGTERM; returns when it has ended

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
};

/// Memory shared by the measuring process and those that it measures: who may begin, who has ended
/// when.
struct Board {
  static constexpr std::uint32_t kHash = ~std::uint32_t{0};

  sem_t go[kMaxMembers];
  sem_t done;
  std::atomic<std::uint32_t> rounds;  ///< of the block; kHash: none, but say what you hold
  std::atomic<std::int64_t> finished_ns[kMaxMembers][kMaxBlockRounds];
  std::atomic<std::uint64_t> fingerprint[kMaxMembers];  ///< of what a member holds
  std::atomic<std::uint64_t> sent_bytes[kMaxMembers];   ///< by a member, so far; where it says so

  static Board* make();
  /// For a member: wait for blocks and run them, `round` once per round.
  [[noreturn]] void take_part(std::size_t member, const std::function<void()>& round,
                              const std::function<std::uint64_t()>& hash);
};

/// Wall seconds of each round of one block, and processor seconds of the whole block.
struct BlockTimes {
  std::vector<double> rounds;
  double server_cpu = 0, members_cpu = 0;
  std::uint64_t most_sent_bytes = 0;  ///< by the member that sent most
};

/// One way of moving the bytes: a server and members, alive from start to end, idle between blocks.
class Contender {
 public:
  Contender(std::string name, Board* board, Child server, std::vector<Child> members)
      : name_(std::move(name)),
        board_(board),
        server_(std::move(server)),
        members_(std::move(members)) {}
  Contender(Contender&&) = default;

  /// Let all members run `rounds` rounds, at most kMaxBlockRounds, and wait until the server rests.
  BlockTimes run(std::uint32_t rounds);
  /// All members hold the same bits.
  bool members_are_equal();
  const std::string& name() const { return name_; }
  const Child& server() const { return server_; }

 private:
  void post(std::uint32_t rounds);
  double members_cpu() const;

  std::string name_;
  Board* board_;
  Child server_;
  std::vector<Child> members_;
};

[[noreturn]] void fail(const std::string& why);
/// Move this thread into a network namespace of `ip netns`.
void enter_namespace(const std::string& name);
std::int64_t now_ns();

}  // namespace centroid::bench
