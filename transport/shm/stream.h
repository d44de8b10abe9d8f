#pragma once

#include <memory>
#include <string>

#include "transport/byte_stream.h"
#include "transport/poll_set.h"
#include "transport/shm/ring.h"

namespace centroid::transport::shm {

/// The hand-over between two processes, over the socket that then shows when one of them ends.
struct Handover {
  File memory;
  File callers_bell, listeners_bell;  ///< eventfds: written to wake that side
};

/// Two rings in shared memory as ByteStream. The reader reads received bytes in place.
///
/// wake-ups  an eventfd of each side, rung only while that side sleeps, which it announces before
/// ends      the socket between the processes closes with them
class Stream final : public ByteStream {
 public:
  /// The calling side: it makes the memory and sends it.
  static Result<std::unique_ptr<Stream>> call(Executor executor, File socket,
                                              std::uint64_t capacity, PollSet* polls);
  /// The listening side: the hand-over arrives with the first read.
  static std::unique_ptr<Stream> answer(Executor executor, File socket, PollSet* polls);
  ~Stream() override;

  Moved try_read(MutableBytes into) override;
  Moved try_write(std::span<const Bytes> parts) override;
  Task<Moved> read_some(MutableBytes into) override;
  Task<Moved> write_some(std::span<const Bytes> parts) override;
  bool has_view() const override { return true; }
  Moved try_view(std::size_t least, Bytes& view) override;
  Task<Moved> wait_view(std::size_t least) override;
  void consume(std::size_t bytes) override;
  void end_frame() override;
  void close() noexcept override;
  std::string peer() const override;
  Executor executor() const override;

 private:
  class Ends;
  explicit Stream(std::shared_ptr<Ends> ends);

  const std::shared_ptr<Ends> ends_;
};

}  // namespace centroid::transport::shm
