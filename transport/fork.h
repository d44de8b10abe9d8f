#pragma once

namespace centroid::transport {

/// From now on a forked child of this process loses the sockets of `ForkClosed`: otherwise a child
/// that outlives its parent keeps the connections open, and peers do not notice the parent's end.
/// For libraries in programs that fork (DataLoader, multiprocessing).
void close_sockets_in_children();

/// A socket that a forked child does not keep, during this object's lifetime: the child finds
/// /dev/null at its number. Also sets close-on-exec.
///
/// thread  any
class ForkClosed {
 public:
  ForkClosed() = default;
  explicit ForkClosed(int file);
  ForkClosed(ForkClosed&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  ForkClosed& operator=(ForkClosed&& other) = delete;
  ~ForkClosed() { release(); }
  void release() noexcept;  ///< before the file is closed

 private:
  int file_ = -1;
};

}  // namespace centroid::transport
