#pragma once

#include <memory>

#include "transport/byte_stream.h"
#include "transport/transport.h"

namespace centroid::transport {

/// A layer between a socket's bytes and the frames, e.g. encryption. Its streams live on the
/// executor of the transport that calls.
class StreamLayer {
 public:
  virtual ~StreamLayer() = default;
  /// The near end of a connection that this side opened to `to`.
  virtual std::unique_ptr<ByteStream> connected(std::unique_ptr<ByteStream> inner,
                                                const Endpoint& to) = 0;
  /// The near end of a connection that the other side opened.
  virtual std::unique_ptr<ByteStream> accepted(std::unique_ptr<ByteStream> inner) = 0;
};

}  // namespace centroid::transport
