#include "tests/bench/raw_star.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <memory>
#include <semaphore>
#include <thread>

#include "common/tensor/buffer.h"

namespace centroid::bench {

namespace {

constexpr std::size_t kPieceBytes = 256 << 10;  // as the service reads

// What the service does for congestion_control "auto".
void prepare(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (const char* name : {"cubic", "reno"})
    if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                     static_cast<socklen_t>(std::strlen(name))) == 0)
      break;
}

struct Connections {
  std::vector<int> near, far;
};

Connections connect_all(std::size_t count) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, plain, size) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, plain, &size) != 0)
    fail("cannot listen on loopback");
  Connections connections;
  for (std::size_t i = 0; i < count; ++i) {
    const int near = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(near, plain, size) != 0) fail("cannot connect on loopback");
    const int far = ::accept(listener, nullptr, nullptr);
    prepare(near);
    prepare(far);
    connections.near.push_back(near);
    connections.far.push_back(far);
  }
  ::close(listener);
  return connections;
}

/// Send `bytes`, the buffer's content again and again.
void send_all(int fd, std::uint64_t bytes, Bytes buffer) {
  for (std::uint64_t sent = 0; sent < bytes;) {
    const std::size_t at = sent % buffer.size();
    const std::uint64_t most = std::min<std::uint64_t>(kPieceBytes, buffer.size() - at);
    const ssize_t n = ::send(fd, buffer.data() + at, std::min(bytes - sent, most), MSG_NOSIGNAL);
    if (n <= 0) ::_exit(0);
    sent += static_cast<std::uint64_t>(n);
  }
}

template <class OnFirst>
void receive_all(int fd, std::uint64_t bytes, MutableBytes buffer, OnFirst on_first) {
  for (std::uint64_t got = 0; got < bytes;) {
    const std::size_t at = got % buffer.size();
    const std::uint64_t most = std::min<std::uint64_t>(kPieceBytes, buffer.size() - at);
    const ssize_t n = ::recv(fd, buffer.data() + at, std::min(bytes - got, most), 0);
    if (n <= 0) ::_exit(0);
    if (got == 0) on_first();
    got += static_cast<std::uint64_t>(n);
  }
}

Buffer make_touched(std::uint64_t bytes) {
  Buffer buffer(bytes);
  std::memset(buffer.data(), 1, bytes);
  return buffer;
}

/// Answers as many bytes as it takes, from the first one on.
void serve(const std::vector<int>& sockets, std::uint64_t bytes) {
  std::vector<std::thread> threads;
  for (const int fd : sockets) {
    auto begun = std::make_shared<std::counting_semaphore<>>(0);
    threads.emplace_back([fd, bytes, begun] {
      const Buffer buffer = make_touched(kPieceBytes);
      for (;;) receive_all(fd, bytes, buffer.bytes(), [&] { begun->release(); });
    });
    threads.emplace_back([fd, bytes, begun] {
      const Buffer buffer = make_touched(kPieceBytes);
      for (;;) {
        begun->acquire();
        send_all(fd, bytes, buffer.bytes());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void exchange_rounds(const std::vector<int>& sockets, std::uint64_t bytes,
                     std::uint64_t buffer_bytes, Board& board) {
  std::barrier<> edge(static_cast<std::ptrdiff_t>(2 * sockets.size() + 1));
  std::vector<std::thread> threads;
  for (const int fd : sockets) {
    threads.emplace_back([=, &edge] {
      const Buffer buffer = make_touched(buffer_bytes);
      for (;;) {
        edge.arrive_and_wait();
        send_all(fd, bytes, buffer.bytes());
        edge.arrive_and_wait();
      }
    });
    threads.emplace_back([=, &edge] {
      const Buffer buffer = make_touched(buffer_bytes);
      for (;;) {
        edge.arrive_and_wait();
        receive_all(fd, bytes, buffer.bytes(), [] {});
        edge.arrive_and_wait();
      }
    });
  }
  board.take_part(
      0,
      [&] {
        edge.arrive_and_wait();
        edge.arrive_and_wait();
      },
      [] { return std::uint64_t{0}; });
}

}  // namespace

Contender make_raw_star(std::size_t connections, std::uint64_t bytes, std::uint64_t worker_bytes,
                        RawBuffers buffers) {
  Board* const board = Board::make();
  const Connections made = connect_all(connections);
  const std::uint64_t each = bytes / connections;
  const bool is_cached = buffers == RawBuffers::kCache;
  const auto close_all = [](const std::vector<int>& sockets) {
    for (const int fd : sockets) ::close(fd);
  };
  Child server = Child::forked([&] {
    close_all(made.near);
    serve(made.far, each);
  });
  std::vector<Child> members;
  members.push_back(Child::forked([&] {
    close_all(made.far);
    exchange_rounds(made.near, each, is_cached ? kPieceBytes : worker_bytes, *board);
  }));
  close_all(made.near);
  close_all(made.far);
  const std::string name = "raw sockets, " + std::to_string(connections) +
                           (connections == 1 ? " connection" : " connections") +
                           (is_cached ? ", in cache" : "");
  return {name, board, std::move(server), std::move(members)};
}

}  // namespace centroid::bench
