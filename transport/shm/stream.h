#pragma once

#include <memory>
#include <string>

#include "transport/byte_stream.h"
#include "transport/poll_set.h"
#include "transport/shm/ring.h"

namespace centroid::transport::shm {

/// What one process gives the other, over the socket that then shows when one of them ends.
struct Handover {
  File memory;
  File callers_bell, listeners_bell;  ///< eventfds: written to wake that side
};

/// Two rings in shared memory as ByteStream. Who reads gets at what came where it lies.
///
/// wake-ups  an eventfd of each side, rung only when that side sleeps: it says so before
/// ends      the socket between the processes closes with them
class Stream final : public ByteStream {
 public:
  /// The side that called: it has made the memory and sends it.
  static Result<std::unique_ptr<Stream>> call(Executor executor, File socket,
                                              std::uint64_t capacity, PollSet* polls);
  /// The side that listens: the hand-over comes with the first read.
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
