#pragma once

#include <string>
#include <vector>

#include "common/proto/messages.h"

/// Messages between the server and a client of tensors that is no worker; docs/reference/wire.md is
/// the contract.
namespace centroid::proto {

enum class PullKind : std::uint16_t {
  kPull = 80,    ///< client -> server, request; answered by PullReply, payload: the manifest
  kValues = 81,  ///< server -> client, payload: the next values, float32
};

struct TensorName {
  std::string name;
  template <class F>
  void fields(F& f) {
    f(name, kMaxNameBytes);
  }
};

struct Pull {
  std::vector<TensorName> names;  ///< none: all of the model
  template <class F>
  void fields(F& f) {
    f(names);
  }
};

struct PullReply {
  Version version;             ///< of all values
  std::uint64_t elements = 0;  ///< of all tensors, that follow in frames of Values
  template <class F>
  void fields(F& f) {
    f(version), f(elements);
  }
};

struct Values {
  std::uint64_t offset = 0;  ///< elements before these; they come in order
  template <class F>
  void fields(F& f) {
    f(offset);
  }
};

}  // namespace centroid::proto
