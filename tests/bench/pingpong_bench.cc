// Round trips of 64 bytes and streams of 1 MiB frames over this project's transports, each against
// the bare means of the system: blocking sockets, or a condition variable. All variants run in
// turn, again and again, in one process on two threads.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/use_future.hpp>

#include "common/async/io_thread.h"
#include "tests/support/certificates.h"
#include "tests/support/in_process_transport.h"
#include "tests/unit/temporary_directory.h"
#include "transport/transport.h"

namespace centroid::transport {
namespace {

constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 1 << 20;

using Samples = std::vector<double>;  // microseconds

double us_since(TimePoint begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}
Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(10); }
double quantile(Samples values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

/// Keeps the calling thread on one core for a while. Small messages are compared with both ends on
/// cores of their own: the system sometimes puts them on one core, for some variants and not for
/// others, which is 10 times faster and says nothing.
class OnCore {
 public:
  explicit OnCore(unsigned core) {
    ::pthread_getaffinity_np(::pthread_self(), sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core % std::max(1u, std::thread::hardware_concurrency()), &one);
    ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one);
  }
  ~OnCore() { ::pthread_setaffinity_np(::pthread_self(), sizeof before_, &before_); }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  cpu_set_t before_{};
};

// ---- bare sockets

struct Sockets {
  int near = -1, far = -1;
  explicit Sockets(const char* congestion_control) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    CENTROID_CHECK(::bind(listener, plain, size) == 0 && ::listen(listener, 1) == 0);
    CENTROID_CHECK(::getsockname(listener, plain, &size) == 0);
    near = ::socket(AF_INET, SOCK_STREAM, 0);
    CENTROID_CHECK(::connect(near, plain, size) == 0);
    far = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    for (const int fd : {near, far}) {
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion_control,
                   static_cast<socklen_t>(std::strlen(congestion_control)));
    }
  }
  ~Sockets() {
    ::close(near);
    ::close(far);
  }
};

void send_all(int fd, const std::vector<char>& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    CENTROID_CHECK(n > 0);
    at += static_cast<std::size_t>(n);
  }
}
void receive_all(int fd, std::vector<char>& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::recv(fd, bytes.data() + at, bytes.size() - at, 0);
    CENTROID_CHECK(n > 0);
    at += static_cast<std::size_t>(n);
  }
}

Samples socket_round_trips(const Sockets& sockets, int count) {
  const OnCore here(0);
  std::thread echo([&] {
    const OnCore there(1);
    std::vector<char> bytes(kSmall);
    for (int i = 0; i < count; ++i) {
      receive_all(sockets.far, bytes);
      send_all(sockets.far, bytes);
    }
  });
  Samples samples;
  std::vector<char> bytes(kSmall);
  for (int i = 0; i < count; ++i) {
    const TimePoint begin = std::chrono::steady_clock::now();
    send_all(sockets.near, bytes);
    receive_all(sockets.near, bytes);
    samples.push_back(us_since(begin));
  }
  echo.join();
  return samples;
}

/// Microseconds per 1 MiB, from the first send to the last byte's arrival.
double socket_stream(const Sockets& sockets, int count, bool is_duplex) {
  auto sender = [count](int fd) {
    const std::vector<char> bytes(kLarge, 1);
    for (int i = 0; i < count; ++i) send_all(fd, bytes);
  };
  auto receiver = [count](int fd) {
    std::vector<char> bytes(kLarge);
    for (int i = 0; i < count; ++i) receive_all(fd, bytes);
  };
  const TimePoint begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  threads.emplace_back(sender, sockets.near);
  threads.emplace_back(receiver, sockets.far);
  if (is_duplex) {
    threads.emplace_back(sender, sockets.far);
    threads.emplace_back(receiver, sockets.near);
  }
  for (auto& thread : threads) thread.join();
  return us_since(begin) / count;
}

// ---- a condition variable between two threads

Samples condition_round_trips(int count) {
  std::mutex mutex;
  std::condition_variable asked, answered;
  int turn = 0;
  std::vector<char> box(kSmall);
  auto pass = [&](std::condition_variable& wait_for, int mine, std::condition_variable& then) {
    std::unique_lock lock(mutex);
    wait_for.wait(lock, [&] { return turn == mine; });
    turn = 1 - mine;
    lock.unlock();
    then.notify_one();
  };
  const OnCore here(0);
  std::thread echo([&] {
    const OnCore there(1);
    for (int i = 0; i < count; ++i) pass(asked, 1, answered);
  });
  Samples samples;
  for (int i = 0; i < count; ++i) {
    const TimePoint begin = std::chrono::steady_clock::now();
    {
      const std::lock_guard lock(mutex);
      std::fill(box.begin(), box.end(), static_cast<char>(i));
      turn = 1;
    }
    asked.notify_one();
    std::unique_lock lock(mutex);
    answered.wait(lock, [&] { return turn == 0; });
    samples.push_back(us_since(begin));
  }
  echo.join();
  return samples;
}

// ---- this project's transports

Task<std::unique_ptr<Connection>> accepted_by(Listener& listener) {
  auto accepted = co_await listener.accept();
  CENTROID_CHECK(accepted.ok());
  co_return std::move(*accepted);
}
Task<std::unique_ptr<Connection>> connected_to(Transport& transport, Endpoint endpoint) {
  auto connected = co_await transport.connect(endpoint, soon());
  CENTROID_CHECK(connected.ok());
  co_return std::move(*connected);
}

Task<void> echo(Connection& connection, int count) {
  const OnCore here(1);
  std::vector<std::byte> bytes(kSmall);
  for (int i = 0; i < count; ++i) {
    const auto request = co_await connection.read_header();
    CENTROID_CHECK(request.ok());
    CENTROID_CHECK((co_await connection.read_payload(bytes)).ok());
    OutFrame answer;
    answer.flags = kFlagResponse;
    answer.id = request->header.id;
    answer.payload = bytes;
    CENTROID_CHECK((co_await connection.write(answer)).ok());
  }
}

Task<Samples> ask(Connection& connection, int count) {
  const OnCore here(0);
  Samples samples;
  std::vector<std::byte> bytes(kSmall);
  for (int i = 0; i < count; ++i) {
    const TimePoint begin = std::chrono::steady_clock::now();
    OutFrame request;
    request.flags = kFlagRequest;
    request.id = static_cast<std::uint64_t>(i);
    request.payload = bytes;
    CENTROID_CHECK((co_await connection.write(request)).ok());
    const auto answer = co_await connection.read_header();
    CENTROID_CHECK(answer.ok());
    CENTROID_CHECK((co_await connection.read_payload(bytes)).ok());
    samples.push_back(us_since(begin));
  }
  co_return samples;
}

Task<void> send_frames(Connection& connection, int count) {
  const std::vector<std::byte> bytes(kLarge, std::byte{1});
  OutFrame frame;
  frame.payload = bytes;
  for (int i = 0; i < count; ++i) {
    CENTROID_CHECK((co_await connection.write(frame)).ok());
  }
}
Task<void> receive_frames(Connection& connection, int count) {
  std::vector<std::byte> bytes(kLarge);
  for (int i = 0; i < count; ++i) {
    CENTROID_CHECK((co_await connection.read_header()).ok());
    CENTROID_CHECK((co_await connection.read_payload(bytes)).ok());
  }
}
Task<void> drop(std::unique_ptr<Connection> connection) {
  connection.reset();
  co_return;
}

class Link {
 public:
  enum class Kind { kTcp, kTls, kInProcess };
  explicit Link(Kind kind, const std::string& congestion_control = "") {
    TransportOptions options;
    options.congestion_control = congestion_control;
    const auto hub = make_inprocess_hub();
    TransportOptions near_options = options, far_options = options;
    const TemporaryDirectory folder;
    test::Authority authority(folder.path());
    if (kind == Kind::kTls) {
      TlsOptions tls = authority.issue("node");
      near_options.layer = make_tls(tls).value();
      tls.is_server = true;
      far_options.layer = make_tls(tls).value();
    }
    auto make = [&](IoThread& thread, const TransportOptions& how) {
      return kind == Kind::kInProcess ? make_inprocess(thread.executor(), hub, how)
                                      : make_tcp(thread.executor(), how);
    };
    const auto near = make(near_, near_options), far = make(far_, far_options);
    auto listener = far->listen(Endpoint());
    CENTROID_CHECK(listener.ok());
    auto accepted =
        boost::asio::co_spawn(far_.executor(), accepted_by(**listener), boost::asio::use_future);
    client_ = near_.wait(connected_to(*near, (*listener)->endpoint()));
    server_ = accepted.get();
    (*listener)->close();
  }
  ~Link() {
    near_.wait(drop(std::move(client_)));
    far_.wait(drop(std::move(server_)));
  }
  Samples round_trips(int count) {
    auto echoing =
        boost::asio::co_spawn(far_.executor(), echo(*server_, count), boost::asio::use_future);
    Samples samples = near_.wait(ask(*client_, count));
    echoing.get();
    return samples;
  }
  double stream(int count, bool is_duplex) {
    const TimePoint begin = std::chrono::steady_clock::now();
    std::vector<std::future<void>> parts;
    auto run = [&](IoThread& thread, Task<void> task) {
      parts.push_back(
          boost::asio::co_spawn(thread.executor(), std::move(task), boost::asio::use_future));
    };
    run(far_, receive_frames(*server_, count));
    run(near_, send_frames(*client_, count));
    if (is_duplex) {
      run(near_, receive_frames(*client_, count));
      run(far_, send_frames(*server_, count));
    }
    for (auto& part : parts) part.get();
    return us_since(begin) / count;
  }

 private:
  IoThread near_{"near"}, far_{"far"};
  std::unique_ptr<Connection> client_, server_;
};

struct Row {
  std::string what;
  std::string against;  // empty: a base line
  std::function<Samples()> run;
  Samples all, medians;
};

void print(std::vector<Row>& rows, bool is_json, int repetitions) {
  auto of = [&](const std::string& name) -> Row& {
    return *std::find_if(rows.begin(), rows.end(),
                         [&](const Row& row) { return row.what == name; });
  };
  if (!is_json)
    std::printf("%-24s %9s %9s %9s   %s\n", "microseconds", "min", "p50", "p99",
                "ratio (range over repetitions)");
  std::string json;
  for (Row& row : rows) {
    const double p50 = quantile(row.medians, 0.5);
    char line[400];
    double ratio = 1, low = 1, high = 1;
    if (!row.against.empty()) {
      Samples ratios;
      for (std::size_t i = 0; i < row.medians.size(); ++i)
        ratios.push_back(row.medians[i] / of(row.against).medians[i]);
      ratio = quantile(ratios, 0.5);
      low = quantile(ratios, 0.0);
      high = quantile(ratios, 1.0);
    }
    std::snprintf(line, sizeof line,
                  "{\"what\": \"%s\", \"min_us\": %.2f, \"p50_us\": %.2f, \"p99_us\": %.2f, "
                  "\"against\": \"%s\", \"ratio\": %.3f, "
                  "\"ratio_low\": %.3f, \"ratio_high\": %.3f}",
                  row.what.c_str(), quantile(row.all, 0), p50, quantile(row.all, 0.99),
                  row.against.c_str(), ratio, low, high);
    json += (json.empty() ? "" : ",\n  ") + std::string(line);
    if (is_json) continue;
    std::printf("%-24s %9.2f %9.2f %9.2f", row.what.c_str(), quantile(row.all, 0), p50,
                quantile(row.all, 0.99));
    if (!row.against.empty())
      std::printf("   %.2f (%.2f .. %.2f) of %s", ratio, low, high, row.against.c_str());
    std::printf("\n");
  }
  if (is_json)
    std::printf("{\"repetitions\": %d, \"rows\": [\n  %s]}\n", repetitions, json.c_str());
}

int run(bool is_json, int repetitions, int trips, int frames, const std::string& congestion_control,
        const std::string& only) {
  const Sockets sockets(congestion_control.c_str());
  Link tcp(Link::Kind::kTcp, congestion_control), tls(Link::Kind::kTls, congestion_control),
      inprocess(Link::Kind::kInProcess);
  auto one = [](double value) { return Samples{value}; };
  std::vector<Row> rows;
  auto add = [&rows](std::string what, std::string against, std::function<Samples()> body) {
    Row row;
    row.what = std::move(what);
    row.against = std::move(against);
    row.run = std::move(body);
    rows.push_back(std::move(row));
  };
  add("socket 64 B", "", [&] { return socket_round_trips(sockets, trips); });
  add("tcp 64 B", "socket 64 B", [&] { return tcp.round_trips(trips); });
  add("tls 64 B", "tcp 64 B", [&] { return tls.round_trips(trips); });
  add("condition 64 B", "", [&] { return condition_round_trips(trips); });
  add("inprocess 64 B", "condition 64 B", [&] { return inprocess.round_trips(trips); });
  for (const bool is_duplex : {false, true}) {
    const std::string way = is_duplex ? " 1 MiB both ways" : " 1 MiB one way";
    add("socket" + way, "",
        [&, is_duplex] { return one(socket_stream(sockets, frames, is_duplex)); });
    add("tcp" + way, "socket" + way, [&, is_duplex] { return one(tcp.stream(frames, is_duplex)); });
    add("tls" + way, "tcp" + way, [&, is_duplex] { return one(tls.stream(frames, is_duplex)); });
    add("inprocess" + way, "socket" + way,
        [&, is_duplex] { return one(inprocess.stream(frames, is_duplex)); });
  }
  std::erase_if(rows, [&](const Row& row) { return row.what.find(only) == std::string::npos; });
  for (Row& row : rows) {
    const auto is_base = [&](const Row& other) { return other.what == row.against; };
    if (std::none_of(rows.begin(), rows.end(), is_base)) row.against.clear();
  }
  for (Row& row : rows) row.run();  // warm up
  for (int i = 0; i < repetitions; ++i) {
    for (Row& row : rows) {
      const Samples samples = row.run();
      row.medians.push_back(quantile(samples, 0.5));
      row.all.insert(row.all.end(), samples.begin(), samples.end());
    }
  }
  print(rows, is_json, repetitions);
  return 0;
}

}  // namespace
}  // namespace centroid::transport

int main(int argc, char** argv) {
  bool is_json = false;
  int repetitions = 15, trips = 2000, frames = 200;
  std::string congestion_control = "reno", only;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--json") {
      is_json = true;
      continue;
    }
    if (flag == "--repetitions")
      repetitions = std::stoi(value);
    else if (flag == "--trips")
      trips = std::stoi(value);
    else if (flag == "--frames")
      frames = std::stoi(value);
    else if (flag == "--congestion-control")
      congestion_control = value;
    else if (flag == "--only")
      only = value;
    else {
      std::fprintf(stderr,
                   "usage: %s [--json] [--repetitions N] [--trips N] [--frames N] "
                   "[--congestion-control NAME] [--only TEXT]\n",
                   argv[0]);
      return 2;
    }
    ++i;
  }
  return centroid::transport::run(is_json, repetitions, trips, frames, congestion_control, only);
}
