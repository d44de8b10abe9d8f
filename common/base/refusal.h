#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "common/base/result.h"

namespace centroid {

/// Another server leads.
struct NotLeader {
  std::string endpoint;  ///< the leader's, HOST:PORT; empty: unknown
};

/// The server will accept the caller later; the message names what it waits for. Retry as long as
/// this is the answer.
struct NotReady {};

/// The sides have no common wire version.
struct VersionMismatch {
  struct Range {
    std::uint16_t oldest = 0, newest = 0;
    bool operator==(const Range&) const = default;
  };
  Range mine, yours;  ///< of the refusing side, and of the other
};

/// Why a program refuses another, if the other side acts on it. Travels with the error
/// (docs/reference/wire.md, "Handshake").
struct Refusal {
  std::variant<NotLeader, NotReady, VersionMismatch> reason;
};

/// The refusal's reason if it is a T, else nullptr.
template <class T>
const T* refusal_of(const Error& error) {
  return error.refusal() ? std::get_if<T>(&error.refusal()->reason) : nullptr;
}

/// unavailable: the server `name` at `endpoint` leads; empty: unknown.
Error not_leader(const std::string& name, const std::string& endpoint);
/// unavailable: "not yet: <why>".
Error not_ready(const std::string& why);

}  // namespace centroid
