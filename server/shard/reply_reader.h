#pragma once

#include <vector>

#include "common/codec/codec.h"
#include "server/store/parameter_store.h"

namespace centroid::server {

/// Results that went through a codec, as workers read them: what the server's own copy of the
/// parameters steps by.
///
/// thread  one
class ReplyReader {
 public:
  /// Both outlive it.
  ReplyReader(const Codec& codec, ParameterStore& store);

  /// Sum of squares of the mean that the workers decode (PlaneNorm).
  /// fails  as the codec
  Result<double> squares(const Chunk& chunk, Bytes payload);
  /// The workers' step with it, into the parameters.
  /// fails  as the codec
  Status apply(const Chunk& chunk, Bytes payload);

 private:
  const Codec& codec_;
  ParameterStore& store_;
  std::vector<float> mean_;  // a chunk, decoded
};

}  // namespace centroid::server
