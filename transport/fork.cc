#include "transport/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace centroid::transport {

namespace {

constexpr std::size_t kFiles = 1 << 16;
/// A bit for each file number; a child of a fork can read it, whatever other threads were doing.
std::array<std::atomic<std::uint64_t>, kFiles / 64> sockets;

void in_child() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (std::size_t word = 0; word < sockets.size(); ++word) {
    for (std::uint64_t bits = sockets[word]; bits != 0; bits &= bits - 1) {
      const int file = static_cast<int>(64 * word) + __builtin_ctzll(bits);
      if (nothing >= 0) ::dup3(nothing, file, O_CLOEXEC);
    }
    sockets[word] = 0;
  }
  if (nothing >= 0) ::close(nothing);
}

std::atomic<std::uint64_t>& word_of(int file) {
  return sockets[static_cast<std::size_t>(file) / 64];
}
std::uint64_t bit_of(int file) { return std::uint64_t{1} << (file % 64); }

}  // namespace

void close_sockets_in_children() {
  static const int done = ::pthread_atfork(nullptr, nullptr, in_child);
  (void)done;
}

ForkClosed::ForkClosed(int file) {
  if (file < 0 || file >= static_cast<int>(kFiles)) return;
  ::fcntl(file, F_SETFD, FD_CLOEXEC);
  file_ = file;
  word_of(file) |= bit_of(file);
}

void ForkClosed::release() noexcept {
  if (file_ < 0) return;
  word_of(file_) &= ~bit_of(file_);
  file_ = -1;
}

}  // namespace centroid::transport
