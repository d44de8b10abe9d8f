#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "common/proto/messages.h"
#include "transport/session.h"

/// What a shard server's parts return, as the answer to the leader's request.
namespace centroid::server {

/// A message with its payload.
template <class M>
Result<transport::Reply> reply_of(const Result<M>& message, std::vector<std::byte> payload = {}) {
  if (!message.ok()) return message.error();
  return transport::Reply{proto::encode(message.value()), std::move(payload)};
}

/// Numbers, as a payload.
template <class T>
Result<transport::Reply> reply_of(const Result<std::vector<T>>& numbers) {
  if (!numbers.ok()) return numbers.error();
  const Bytes bytes = std::as_bytes(std::span(numbers.value()));
  return transport::Reply{{}, {bytes.begin(), bytes.end()}};
}

/// Nothing.
inline Result<transport::Reply> reply_of(const Status& done) {
  if (!done.ok()) return done.error();
  return transport::Reply();
}

}  // namespace centroid::server
