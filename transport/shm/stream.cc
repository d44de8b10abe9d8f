#include "transport/shm/stream.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <boost/asio/buffer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "transport/fork.h"
#include "transport/waiter.h"

namespace centroid::transport::shm {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kFiles = 3;

/// The only message on the socket; it carries the files of a Handover.
struct Message {
  char magic[8] = {'C', 'N', 'T', 'D', 'S', 'H', 'M', '1'};
  std::uint64_t capacity = 0;
};

struct Envelope {
  explicit Envelope(Message& message) {
    vector.iov_base = &message;
    vector.iov_len = sizeof message;
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  alignas(cmsghdr) char control[CMSG_SPACE(kFiles * sizeof(int))] = {};
  iovec vector{};
  msghdr header{};
};

bool send_message(int socket, Message message, const Handover& files) {
  Envelope envelope(message);
  cmsghdr* const part = CMSG_FIRSTHDR(&envelope.header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(kFiles * sizeof(int));
  const int fds[kFiles] = {files.memory.get(), files.callers_bell.get(),
                           files.listeners_bell.get()};
  std::memcpy(CMSG_DATA(part), fds, sizeof fds);
  return ::sendmsg(socket, &envelope.header, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(Message);
}

/// Bytes received (0: the end), or -1 with errno; received files are owned at once.
ssize_t receive_message(int socket, Message& message, Handover& files) {
  Envelope envelope(message);
  const ssize_t got = ::recvmsg(socket, &envelope.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  std::array<File, kFiles> owned;
  const cmsghdr* const part = CMSG_FIRSTHDR(&envelope.header);
  if (part != nullptr && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
    const std::size_t count = std::min(kFiles, (part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      owned[i] = File(fd);
    }
  }
  files.memory = std::move(owned[0]);
  files.callers_bell = std::move(owned[1]);
  files.listeners_bell = std::move(owned[2]);
  return got;
}

void ring(const File& bell) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto ignored = ::write(bell.get(), &one, sizeof one);
}

std::string name_of_peer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid == 0)
    return "shared memory";
  return "shared memory of process " + std::to_string(peer.pid);
}

}  // namespace

/// State for handlers that may run after the stream is destroyed.
class Stream::Ends : public PollSet::Member, public std::enable_shared_from_this<Ends> {
 public:
  Ends(Executor executor, File socket, PollSet* polls)
      : executor_(executor),
        polls_(polls),
        name_(name_of_peer(socket.get())),
        socket_(executor, socket.release()),
        fork_closed_(socket_.native_handle()) {
    if (polls_ != nullptr) polls_->add(*this);
  }
  virtual ~Ends() { close(); }

  Status attach(const Message& message, Handover files, bool is_caller) {
    if (std::memcmp(message.magic, Message().magic, sizeof message.magic) != 0)
      return Error(ErrorCode::kInvalidArgument, "not a hand-over of shared memory");
    if (!is_caller) {
      CENTROID_ASSIGN(memory_, Memory::open(files.memory, message.capacity));
    }
    out_.attach(*memory_, is_caller ? 0 : 1);
    in_.attach(*memory_, is_caller ? 1 : 0);
    File& ours = is_caller ? files.callers_bell : files.listeners_bell;
    peers_bell_ = std::move(is_caller ? files.listeners_bell : files.callers_bell);
    // Neither end of a bell blocks.
    ::fcntl(ours.get(), F_SETFL, ::fcntl(ours.get(), F_GETFL) | O_NONBLOCK);
    ::fcntl(peers_bell_.get(), F_SETFL, ::fcntl(peers_bell_.get(), F_GETFL) | O_NONBLOCK);
    error_code error;
    bell_.emplace(executor_);
    bell_->assign(ours.get(), error);
    if (error) return Error(ErrorCode::kInvalidArgument, "not a hand-over of shared memory");
    ours.release();
    is_attached_ = true;
    watch_bell();
    return {};
  }

  Status begin_call(std::uint64_t capacity) {
    Handover files;
    CENTROID_ASSIGN(memory_, Memory::make(capacity, files.memory));
    files.callers_bell = File(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    files.listeners_bell = File(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Message message;
    message.capacity = capacity;
    if (!files.callers_bell || !files.listeners_bell ||
        !send_message(socket_.native_handle(), message, files)) {
      return Error(ErrorCode::kUnavailable,
                   std::string("hand-over of shared memory: ") + std::strerror(errno));
    }
    CENTROID_TRY(attach(message, std::move(files), true));
    watch_socket();
    return {};
  }

  /// The socket carries one message, the hand-over; after that it only ends.
  void watch_socket() {
    auto on_ready = [self = shared_from_this()](const error_code& error) {
      if (error || self->is_closed_) return;
      if (self->on_socket()) {
        self->watch_socket();
      } else {
        self->has_ended_ = true;
      }
      self->check();
    };
    socket_.async_wait(asio::posix::stream_descriptor::wait_read, on_ready);
  }

  bool poll() override {
    bool found_work = false;
    if (reads_ && can_read()) {
      reads_ = false;
      reader_.wake();
      found_work = true;
    }
    if (writes_ && can_write()) {
      writes_ = false;
      writer_.wake();
      found_work = true;
    }
    return found_work;
  }

  bool arm() override {
    if (!is_attached_ || is_closed_ || (!reads_ && !writes_)) return true;
    is_armed_ = true;
    if (reads_) in_.sleep();
    if (writes_) out_.await_free(awaited_out_);
    return !poll();
  }

  void disarm() override {
    if (!std::exchange(is_armed_, false)) return;
    in_.stop_sleeping();
    out_.stop_awaiting();
  }

  Moved try_view(std::size_t least, Bytes& view) {
    Moved moved;
    if (is_closed_) {
      moved.error = asio::error::operation_aborted;
      return moved;
    }
    const bool has_ended = has_ended_;  // read before the ring: earlier bytes count
    const std::uint64_t there = is_attached_ ? in_.available() : 0;
    if (there == kBroken) {
      moved.error = boost::system::errc::make_error_code(boost::system::errc::protocol_error);
    } else if (there >= least) {
      view = in_.view(there);
      moved.bytes = there;
    } else if (has_ended) {
      moved.error = asio::error::eof;
    } else {
      moved.error = asio::error::would_block;
    }
    return moved;
  }

  Moved try_write(std::span<const Bytes> parts) {
    Moved moved;
    if (is_closed_) {
      moved.error = asio::error::operation_aborted;
    } else if (has_ended_) {
      moved.error = asio::error::broken_pipe;
    } else if (!is_attached_ || out_.free() == 0) {
      moved.error = asio::error::would_block;
    } else if (out_.free() == kBroken) {
      moved.error = boost::system::errc::make_error_code(boost::system::errc::protocol_error);
    } else if (out_.write(parts, moved.bytes)) {
      ring(peers_bell_);
    }
    return moved;
  }

  void consume(std::size_t bytes) {
    if (is_attached_ && in_.consume(bytes)) ring(peers_bell_);
  }
  void end_frame() {
    if (is_attached_ && in_.align()) ring(peers_bell_);
  }

  /// False if the waiting task was cancelled.
  Task<bool> wait_read(std::size_t least) {
    awaited_in_ = least;
    reads_ = true;
    begin_wait();
    const bool is_woken = co_await reader_.park();
    reads_ = false;
    co_return is_woken;
  }
  Task<bool> wait_write(std::size_t bytes) {
    // Wait for a quarter of the ring: not a wake-up by the other side per piece.
    awaited_out_ = std::min<std::uint64_t>(bytes, is_attached_ ? out_.most() / 4 : 1);
    writes_ = true;
    begin_wait();
    const bool is_woken = co_await writer_.park();
    writes_ = false;
    co_return is_woken;
  }

  void close() noexcept {
    if (std::exchange(is_closed_, true)) return;
    if (polls_ != nullptr) polls_->remove(*this);
    error_code ignored;
    fork_closed_.release();
    socket_.close(ignored);
    if (bell_) bell_->close(ignored);
    peers_bell_ = File();
    is_attached_ = is_armed_ = false;
    memory_.reset();
    if (std::exchange(reads_, false)) reader_.wake();
    if (std::exchange(writes_, false)) writer_.wake();
  }

  const std::string& name() const { return name_; }
  const Executor& executor() const { return executor_; }

 private:
  bool can_read() const {
    if (is_closed_ || has_ended_) return true;
    return is_attached_ && in_.available() >= awaited_in_;
  }
  bool can_write() const {
    if (is_closed_ || has_ended_) return true;
    return is_attached_ && out_.free() >= awaited_out_;
  }

  // Without a driver that polls and arms, a waiter sleeps.
  void begin_wait() {
    if (polls_ == nullptr) (void)arm();
  }
  void check() {
    (void)poll();
    begin_wait();  // for waiters without bytes
  }

  /// False: the peer has ended, or sent no valid hand-over.
  bool on_socket() {
    Message message;
    Handover files;
    const ssize_t got = receive_message(socket_.native_handle(), message, files);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got != sizeof message || is_attached_) return false;
    return attach(message, std::move(files), false).ok();
  }

  void watch_bell() {
    auto on_ready = [self = shared_from_this()](const error_code& error, std::size_t) {
      if (error || self->is_closed_) return;
      self->check();
      self->watch_bell();
    };
    bell_->async_read_some(asio::buffer(&rings_, sizeof rings_), on_ready);
  }

  const Executor executor_;
  PollSet* const polls_;
  const std::string name_;
  asio::posix::stream_descriptor socket_;
  ForkClosed fork_closed_;
  std::optional<asio::posix::stream_descriptor> bell_;
  File peers_bell_;
  std::uint64_t rings_ = 0;
  std::unique_ptr<Memory> memory_;
  RingWriter out_;
  RingReader in_;
  Waiter reader_, writer_;
  std::uint64_t awaited_in_ = 1, awaited_out_ = 1;
  bool reads_ = false, writes_ = false;  ///< a task waits
  bool is_attached_ = false, is_armed_ = false;
  bool has_ended_ = false;  ///< the peer
  bool is_closed_ = false;
};

Stream::Stream(std::shared_ptr<Ends> ends) : ends_(std::move(ends)) {}

Stream::~Stream() { ends_->close(); }

Result<std::unique_ptr<Stream>> Stream::call(Executor executor, File socket, std::uint64_t capacity,
                                             PollSet* polls) {
  auto ends = std::make_shared<Ends>(executor, std::move(socket), polls);
  CENTROID_TRY(ends->begin_call(capacity));
  return std::unique_ptr<Stream>(new Stream(std::move(ends)));
}

std::unique_ptr<Stream> Stream::answer(Executor executor, File socket, PollSet* polls) {
  auto ends = std::make_shared<Ends>(executor, std::move(socket), polls);
  ends->watch_socket();
  return std::unique_ptr<Stream>(new Stream(std::move(ends)));
}

Moved Stream::try_read(MutableBytes into) {
  Bytes view;
  Moved moved = ends_->try_view(1, view);
  if (moved.error) return moved;
  // Returned in pieces, so that the peer can continue while this copies.
  constexpr std::size_t kPiece = 64 << 10;
  moved.bytes = std::min(moved.bytes, into.size());
  for (std::size_t at = 0; at < moved.bytes; at += kPiece) {
    const std::size_t n = std::min(kPiece, moved.bytes - at);
    std::memcpy(into.data() + at, view.data() + at, n);
    ends_->consume(n);
  }
  return moved;
}

Moved Stream::try_write(std::span<const Bytes> parts) { return ends_->try_write(parts); }

Task<Moved> Stream::read_some(MutableBytes into) {
  while (true) {
    Moved moved = try_read(into);
    if (!moved.is_blocked()) co_return moved;
    if (!co_await ends_->wait_read(1)) {
      moved.error = asio::error::operation_aborted;
      co_return moved;
    }
  }
}

Task<Moved> Stream::write_some(std::span<const Bytes> parts) {
  std::size_t bytes = 0;
  for (const Bytes part : parts) bytes += part.size();
  while (true) {
    Moved moved = try_write(parts);
    if (!moved.is_blocked()) co_return moved;
    if (!co_await ends_->wait_write(bytes)) {
      moved.error = asio::error::operation_aborted;
      co_return moved;
    }
  }
}

Moved Stream::try_view(std::size_t least, Bytes& view) { return ends_->try_view(least, view); }

Task<Moved> Stream::wait_view(std::size_t least) {
  while (true) {
    Bytes view;
    Moved moved = ends_->try_view(least, view);
    if (!moved.is_blocked()) co_return moved;
    if (!co_await ends_->wait_read(least)) {
      moved.error = asio::error::operation_aborted;
      co_return moved;
    }
  }
}

void Stream::consume(std::size_t bytes) { ends_->consume(bytes); }
void Stream::end_frame() { ends_->end_frame(); }
void Stream::close() noexcept { ends_->close(); }
std::string Stream::peer() const { return ends_->name(); }
Executor Stream::executor() const { return ends_->executor(); }

}  // namespace centroid::transport::shm
