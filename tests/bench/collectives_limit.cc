#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/bench/collectives_bench.h"

namespace centroid::bench {
namespace {

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::_Exit(3);
}

void set_options(int fd, const std::string& congestion_control) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (congestion_control.empty()) return;
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(),
               static_cast<socklen_t>(congestion_control.size()));
}

class Limit final : public Contestant {
 public:
  explicit Limit(const Place& place) : world_(place.world) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, place.hosts[place.rank].c_str(), &address.sin_addr);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener, plain, size) != 0 || ::listen(listener, 1) != 0 ||
        ::getsockname(listener, plain, &size) != 0)
      die("listen");
    const auto ports = place.exchange(ntohs(address.sin_port));
    const std::uint32_t right = (place.rank + 1) % world_;
    address.sin_port = htons(static_cast<std::uint16_t>(ports[right]));
    ::inet_pton(AF_INET, place.hosts[right].c_str(), &address.sin_addr);
    out_ = ::socket(AF_INET, SOCK_STREAM, 0);
    set_options(out_, place.congestion_control);
    if (::connect(out_, plain, size) != 0) die("connect");
    in_ = ::accept(listener, nullptr, nullptr);
    set_options(in_, place.congestion_control);
    ::close(listener);
  }
  ~Limit() override {
    ::close(out_);
    ::close(in_);
  }
  bool adds() const override { return false; }

  void reduce(float* data, std::uint64_t count) override {
    const std::uint64_t bytes = count * 4;
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    const std::uint64_t total = 2 * (world_ - 1) * bytes / world_;
    const auto* const from = reinterpret_cast<const char*>(data);
    std::uint64_t sent = 0, got = 0;
    while (sent < total || got < total) {
      bool has_moved = false;
      if (sent < total) {
        const std::uint64_t at = sent % bytes;
        const std::uint64_t n = std::min({kPiece, total - sent, bytes - at});
        const ssize_t moved = ::send(out_, from + at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved > 0) {
          sent += static_cast<std::uint64_t>(moved);
          has_moved = true;
        } else if (errno != EAGAIN) {
          die("send");
        }
      }
      if (got < total) {
        const std::uint64_t at = got % bytes;
        const std::uint64_t n = std::min({kPiece, total - got, bytes - at});
        const ssize_t moved = ::recv(in_, scratch_.data() + at, n, MSG_DONTWAIT);
        if (moved > 0) {
          got += static_cast<std::uint64_t>(moved);
          has_moved = true;
        } else if (moved == 0 || errno != EAGAIN) {
          die("recv");
        }
      }
      if (has_moved) continue;
      pollfd waits[2] = {{in_, static_cast<short>(got < total ? POLLIN : 0), 0},
                         {out_, static_cast<short>(sent < total ? POLLOUT : 0), 0}};
      ::poll(waits, 2, -1);
    }
  }

 private:
  static constexpr std::uint64_t kPiece = 1 << 20;
  const std::uint32_t world_;
  int out_ = -1, in_ = -1;
  std::vector<char> scratch_;
};

}  // namespace

Entry limit_entry() {
  return {"limit", [](const Place& place) { return std::make_unique<Limit>(place); }};
}

}  // namespace centroid::bench
