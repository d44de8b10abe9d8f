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

/// One direction of one connection: its share of the buffer, round and round.
struct Half {
  int fd = -1;
  std::uint64_t begin = 0, size = 0, total = 0, moved = 0;
  bool is_done() const { return moved == total; }
};

class Limit final : public Contestant {
 public:
  Limit(const Place& place, std::uint32_t connections) : world_(place.world) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, place.hosts[place.rank].c_str(), &address.sin_addr);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener, plain, size) != 0 || ::listen(listener, 8) != 0 ||
        ::getsockname(listener, plain, &size) != 0)
      die("listen");
    const auto ports = place.exchange(ntohs(address.sin_port));
    const std::uint32_t right = (place.rank + 1) % world_;
    address.sin_port = htons(static_cast<std::uint16_t>(ports[right]));
    ::inet_pton(AF_INET, place.hosts[right].c_str(), &address.sin_addr);
    out_.resize(connections);
    in_.resize(connections);
    for (Half& half : out_) {
      half.fd = ::socket(AF_INET, SOCK_STREAM, 0);
      set_options(half.fd, place.congestion_control);
      if (::connect(half.fd, plain, size) != 0) die("connect");
    }
    for (Half& half : in_) {
      half.fd = ::accept(listener, nullptr, nullptr);
      set_options(half.fd, place.congestion_control);
    }
    ::close(listener);
  }
  ~Limit() override {
    for (const Half& half : out_) ::close(half.fd);
    for (const Half& half : in_) ::close(half.fd);
  }
  bool adds() const override { return false; }

  void reduce(float* data, std::uint64_t count) override {
    const std::uint64_t bytes = count * 4;
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    const std::uint64_t total = 2 * (world_ - 1) * bytes / world_;
    share(out_, bytes, total);
    share(in_, bytes, total);
    const auto* const from = reinterpret_cast<const char*>(data);
    while (!is_done()) {
      bool has_moved = false;
      for (Half& half : out_) {
        if (half.is_done()) continue;
        const std::uint64_t at = half.moved % half.size;
        const std::uint64_t n = std::min({kPiece, half.total - half.moved, half.size - at});
        const ssize_t moved =
            ::send(half.fd, from + half.begin + at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved < 0 && errno != EAGAIN) die("send");
        has_moved |= advance(half, moved);
      }
      for (Half& half : in_) {
        if (half.is_done()) continue;
        const std::uint64_t at = half.moved % half.size;
        const std::uint64_t n = std::min({kPiece, half.total - half.moved, half.size - at});
        const ssize_t moved = ::recv(half.fd, scratch_.data() + half.begin + at, n, MSG_DONTWAIT);
        if (moved == 0 || (moved < 0 && errno != EAGAIN)) die("recv");
        has_moved |= advance(half, moved);
      }
      if (!has_moved) wait();
    }
  }

 private:
  static constexpr std::uint64_t kPiece = 1 << 20;

  static void share(std::vector<Half>& halves, std::uint64_t bytes, std::uint64_t total) {
    const std::uint64_t n = halves.size();
    for (std::uint64_t i = 0; i < n; ++i) {
      halves[i].begin = bytes * i / n;
      halves[i].size = bytes * (i + 1) / n - halves[i].begin;
      halves[i].total = total * (i + 1) / n - total * i / n;
      halves[i].moved = 0;
    }
  }
  static bool advance(Half& half, ssize_t moved) {
    if (moved <= 0) return false;
    half.moved += static_cast<std::uint64_t>(moved);
    return true;
  }
  bool is_done() const {
    const auto done = [](const Half& half) { return half.is_done(); };
    return std::all_of(out_.begin(), out_.end(), done) && std::all_of(in_.begin(), in_.end(), done);
  }
  void wait() {
    waits_.clear();
    for (const Half& half : in_)
      waits_.push_back({half.fd, static_cast<short>(half.is_done() ? 0 : POLLIN), 0});
    for (const Half& half : out_)
      waits_.push_back({half.fd, static_cast<short>(half.is_done() ? 0 : POLLOUT), 0});
    ::poll(waits_.data(), waits_.size(), -1);
  }

  const std::uint32_t world_;
  std::vector<Half> out_, in_;
  std::vector<pollfd> waits_;
  std::vector<char> scratch_;
};

}  // namespace

std::vector<Entry> limit_entries() {
  const auto make = [](std::uint32_t connections) {
    return [=](const Place& place) { return std::make_unique<Limit>(place, connections); };
  };
  std::vector<Entry> out = {
      {"limit", make(1)}, {"connections_2", make(2)}, {"connections_4", make(4)}};
  for (Entry& entry : out) entry.is_asked_for = entry.name != "limit";
  return out;
}

}  // namespace centroid::bench
